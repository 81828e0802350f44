// Row loops of the backward kernels for any x86-64 processor.
#include <immintrin.h>

#include "kernels/backward_table.h"
#include "kernels/vector_table.h"

#define BP_VECTOR_LANES 4

// Vectors are passed between inlined functions only, so their calling convention is moot.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace backplane::onednn {
namespace baseline {

#include "kernels/vector_math.inc"
// The loops need the vector types.
#include "kernels/backward_kernels.inc"

}  // namespace baseline

const BackwardTable kBackwardBaseline = baseline::kTable;

const BackwardTable& backward_table() {
  static const BackwardTable& best = &vector_table() == &kVectorAvx512 ? kBackwardAvx512
                                     : &vector_table() == &kVectorAvx2 ? kBackwardAvx2
                                                                       : kBackwardBaseline;
  return best;
}

}  // namespace backplane::onednn
