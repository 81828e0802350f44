#include "core/torch/device/resized.h"

#include <algorithm>
#include <numeric>

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
  at::Tensor made = make_empty(like.device(), sizes, strides, like.scalar_type());
  if (like.requires_grad()) {
    made.set_requires_grad(true);
    if (!like.is_leaf()) made = made.clone();
  }
  return made;
}

}  // namespace backplane::device
