// Block functions for any x86-64 processor.
#include <immintrin.h>

#include "kernels/vector_table.h"

// Vectors are passed between inlined functions only, so their calling convention is moot.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace backplane::onednn {
namespace baseline {

#include "kernels/vector_kernels.inc"
// The kernels need the vector types.
#include "kernels/vector_gemm.inc"

}  // namespace baseline

const VectorTable kVectorBaseline = {"baseline", baseline::find, baseline::load_bf16, baseline::load_bool, baseline::store_bf16,
                                baseline::store_bool, baseline::gemm, baseline::add_columns};

}  // namespace backplane::onednn
