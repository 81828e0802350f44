// Row loops of the backward kernels for AVX2.
#include <immintrin.h>

#include "kernels/simd/row_loops.h"

#define BP_VECTOR_LANES 8

// The C++ front end reads the whole file before it heeds a target, so that macros such as
// __AVX2__ say nothing here.
#define BP_VECTOR_LANES 8

// Vectors are passed between inlined functions only, so their calling convention is moot.
#pragma GCC diagnostic ignored "-Wpsabi"
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace backplane::onednn {
namespace avx2 {

#include "kernels/simd/vector_math.inc"
// The loops need the vector types.
#include "kernels/simd/row_loops.inc"

}  // namespace avx2

const RowLoops kBackwardAvx2 = avx2::kTable;

}  // namespace backplane::onednn

#pragma GCC pop_options
