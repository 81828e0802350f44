// Transposed copies on CPUs: squares of sixteen by sixteen in registers.
#pragma once

#include "gemm.hpp"

namespace backplane::kernels {

// Whether `factor`, float32, lies row by row of its transpose, so that squares of it are vectors.
bool lies_transposed(const Factor& factor, std::int64_t depth, std::int64_t columns);

// `factor` in panels: `packed` is [batch…, panels, depth, width], zero beyond the last column.
void pack_transposed(Builder& builder, const Factor& factor, const TensorView& packed,
                     std::int64_t columns);

}  // namespace backplane::kernels
