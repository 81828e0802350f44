// Row loops of the backward kernels for AVX-512.
#include <immintrin.h>

#include "kernels/simd/row_loops.h"

#define BP_VECTOR_LANES 16

// The C++ front end reads the whole file before it heeds a target, so that macros such as
// __AVX2__ say nothing here.
#define BP_VECTOR_LANES 16

// Vectors are passed between inlined functions only, so their calling convention is moot.
#pragma GCC diagnostic ignored "-Wpsabi"
// Intrinsics of GCC 12 read a value that they leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
// Intrinsics of GCC 12 read a value that they leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,prefer-vector-width=512")

namespace backplane::onednn {
namespace avx512 {

#include "kernels/simd/vector_math.inc"
// The loops need the vector types.
#include "kernels/simd/row_loops.inc"

}  // namespace avx512

const RowLoops kBackwardAvx512 = avx512::kTable;

}  // namespace backplane::onednn

#pragma GCC pop_options
