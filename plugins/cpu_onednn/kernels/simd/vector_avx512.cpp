// Block functions for AVX-512.
#include <immintrin.h>

#include "kernels/simd/vector_library.h"
#include "kernels/simd/vector_table.h"

// The C++ front end reads the whole file before it heeds a target, so that macros such as
// __AVX2__ say nothing here.
#define BP_VECTOR_LANES 16

// Vectors are passed between inlined functions only, so their calling convention is moot.
#pragma GCC diagnostic ignored "-Wpsabi"
// Intrinsics of GCC 12 read a value that they leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,prefer-vector-width=512")

namespace backplane::onednn {
namespace avx512 {

#include "kernels/simd/vector_kernels.inc"
// The kernels need the vector types.
#include "kernels/simd/library_kernels.inc"
#include "kernels/simd/vector_gemm.inc"

}  // namespace avx512

const VectorTable kVectorAvx512 = {"avx512",
                                   avx512::find,
                                   avx512::find_in_library,
                                   avx512::find_doubles_in_library,
                                   avx512::load_bf16,
                                   avx512::load_bool,
                                   avx512::store_bf16,
                                   avx512::store_bool,
                                   avx512::gemm<float>,
                                   avx512::gemm<double>,
                                   avx512::gemm<std::int64_t>,
                                   avx512::add_columns};

}  // namespace backplane::onednn

#pragma GCC pop_options
