// Images [N, C, ...] whose channels are the dense dim of memory.
#pragma once

#include "tensor.h"

namespace backplane::onednn {

// Whether a row-major copy would turn it.
inline bool channels_inside(const sdk::TensorSpec& spec) {
  return spec.rank() > 2 && spec.dims[1] > 1 && spec.strides[1] == 1 &&
         product({spec.dims.data() + 2, spec.rank() - 2}) > 1;
}
// Strides without gaps.
inline Shape channels_last_order(const Shape& dims) {
  Shape strides(dims.size(), 1);
  std::int64_t step = dims[1];
  for (std::size_t d = dims.size(); d-- > 2; step *= dims[d]) strides[d] = step;
  strides[0] = step;
  return strides;
}
// A result nobody asked for has no value, or one without type and dims.
inline bool result_exists(const sdk::StepContext& context, std::size_t result, std::size_t rank) {
  if (result >= context.step().results.size() || context.step().results[result] == BP_NONE)
    return false;
  const sdk::TensorSpec& spec = context.result(result);
  return spec.dtype.bits != 0 && spec.rank() == rank;
}
inline bool result_wanted(const sdk::StepContext& context, std::size_t result, std::size_t rank) {
  return result_exists(context, result, rank) && context.result(result).elements() != 0;
}

}  // namespace backplane::onednn
