#include "core/torch/device/resized.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <numeric>

#include "core/torch/device/devices.h"
#include "core/torch/device/memory.h"

namespace backplane::device {

std::optional<at::Tensor> resized(const at::Tensor& like, const std::vector<std::int64_t>& sizes) {
  if (!like.is_non_overlapping_and_dense()) return std::nullopt;
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return like.strides()[a] < like.strides()[b] ||
           (like.strides()[a] == like.strides()[b] && a > b);
  });
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t next = 1;
  for (const std::size_t d : order) {
    strides[d] = next;
    next *= sizes[d];
  }
  // Below the dispatcher: PyTorch's fake mode may be on here.
  at::Tensor made = is_on_device(like)
                        ? make_empty(owner_of(like), sizes, strides, like.scalar_type())
                        : at::detail::empty_strided_cpu(sizes, strides, like.scalar_type());
  if (like.requires_grad()) {
    made.set_requires_grad(true);
    if (!like.is_leaf()) made = made.clone();
  }
  return made;
}

}  // namespace backplane::device
