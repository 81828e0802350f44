// Block functions for AVX2.
#include <immintrin.h>

#include "kernels/simd/vector_library.h"
#include "kernels/simd/vector_table.h"

// The C++ front end reads the whole file before it heeds a target, so that macros such as
// __AVX2__ say nothing here.
#define BP_VECTOR_LANES 8

// Vectors are passed between inlined functions only, so their calling convention is moot.
#pragma GCC diagnostic ignored "-Wpsabi"
// Intrinsics of GCC 12 read a value that they leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace backplane::onednn {
namespace avx2 {

#include "kernels/simd/vector_kernels.inc"
// The kernels need the vector types.
#include "kernels/simd/library_kernels.inc"
#include "kernels/simd/vector_gemm.inc"

}  // namespace avx2

const VectorTable kVectorAvx2 = {"avx2",
                                 avx2::find,
                                 avx2::find_in_library,
                                 avx2::find_doubles_in_library,
                                 avx2::load_bf16,
                                 avx2::load_bool,
                                 avx2::store_bf16,
                                 avx2::store_bool,
                                 avx2::gemm<float>,
                                 avx2::gemm<double>,
                                 avx2::gemm<std::int64_t>,
                                 avx2::add_columns};

}  // namespace backplane::onednn

#pragma GCC pop_options
