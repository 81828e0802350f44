// Block functions for any x86-64 processor.
#include <immintrin.h>

#include "kernels/simd/vector_library.h"
#include "kernels/simd/vector_table.h"

// The C++ front end reads the whole file before it heeds a target, so that macros such as
// __AVX2__ say nothing here.
#define BP_VECTOR_LANES 4

// Vectors are passed between inlined functions only, so their calling convention is moot.
#pragma GCC diagnostic ignored "-Wpsabi"
// Intrinsics of GCC 12 read a value that they leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace backplane::onednn {
namespace baseline {

#include "kernels/simd/vector_kernels.inc"
// The kernels need the vector types.
#include "kernels/simd/library_kernels.inc"
#include "kernels/simd/vector_gemm.inc"

}  // namespace baseline

const VectorTable kVectorBaseline = {"baseline",
                                     baseline::find,
                                     baseline::find_in_library,
                                     baseline::find_doubles_in_library,
                                     baseline::load_bf16,
                                     baseline::load_bool,
                                     baseline::store_bf16,
                                     baseline::store_bool,
                                     baseline::gemm<float>,
                                     baseline::gemm<double>,
                                     baseline::gemm<std::int64_t>,
                                     baseline::add_columns};

}  // namespace backplane::onednn
