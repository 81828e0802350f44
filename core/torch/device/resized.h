// A tensor for recording only: as another, but for its sizes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace backplane::device {

// Of the same dtype, device, order of strides and place in autograd as `like`; its content is
// anything. None where the strides of `like` have gaps or overlap.
std::optional<at::Tensor> resized(const at::Tensor& like, const std::vector<std::int64_t>& sizes);

}  // namespace backplane::device
