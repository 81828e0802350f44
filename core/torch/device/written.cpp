#include "core/torch/device/written.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/torch/device/copy.h"
#include "core/torch/device/memory.h"

namespace backplane::device {

namespace {

// Without the repetitions that `like` shows of its elements: who may write these writes them alike.
at::Tensor once(at::Tensor tensor, const at::Tensor& like) {
  for (std::int64_t d = 0; d < like.dim(); ++d)
    if (like.stride(d) == 0 && like.size(d) > 1) tensor = tensor.narrow(d, 0, 1);
  return tensor;
}

}  // namespace

bool writes_shared(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const std::size_t base = stack.size() - arguments.size();
  const auto is_tensor = [&](std::size_t i) {
    return stack[base + i].isTensor() && is_on_device(stack[base + i].toTensor());
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].alias_info() || !arguments[i].alias_info()->isWrite() || !is_tensor(i))
      continue;
    const at::Tensor& target = stack[base + i].toTensor();
    if (at::has_internal_overlap(target) == at::MemOverlap::Yes) return true;
    const auto lies_over = [&](const at::Tensor& other) {
      if (!is_on_device(other)) return false;
      const at::MemOverlapStatus status = at::get_overlap_status(other, target);
      return status == at::MemOverlapStatus::Full || status == at::MemOverlapStatus::Partial;
    };
    for (std::size_t j = 0; j < arguments.size(); ++j) {
      if (j == i) continue;
      const c10::IValue& value = stack[base + j];
      if (is_tensor(j)
              ? lies_over(value.toTensor())
              : value.isTensorList() && std::ranges::any_of(value.toTensorVector(), lies_over))
        return true;
    }
  }
  return false;
}

void put(const at::Tensor& target, at::Tensor result) {
  if (covers_storage(target) && covers_storage(result) &&
      target.scalar_type() == result.scalar_type() && target.sizes() == result.sizes() &&
      target.strides() == result.strides() && !target.is_conj() && !target.is_neg())
    take_content(target, std::move(result));
  else
    copy_from(once(result, target), once(target, target), false);
}

}  // namespace backplane::device
