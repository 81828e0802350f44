// Row loops of the backward kernels for any x86-64 processor.
#include <immintrin.h>

#include "kernels/simd/row_loops.h"
#include "kernels/simd/vector_table.h"

#define BP_VECTOR_LANES 4

// Vectors are passed between inlined functions only, so their calling convention is moot.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace backplane::onednn {
namespace baseline {

#include "kernels/simd/vector_math.inc"
// The loops need the vector types.
#include "kernels/simd/row_loops.inc"

}  // namespace baseline

const RowLoops kBackwardBaseline = baseline::kTable;

const RowLoops& row_loops() {
  static const RowLoops& best = &vector_table() == &kVectorAvx512 ? kBackwardAvx512
                                : &vector_table() == &kVectorAvx2 ? kBackwardAvx2
                                                                  : kBackwardBaseline;
  return best;
}

}  // namespace backplane::onednn
