#include "core/torch/device/written.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/torch/device/copy.h"
#include "core/torch/device/memory.h"
#include "core/torch/record/operands.h"
#include "core/torch/record/overlap.h"

namespace backplane::device {

namespace {

using c10::IValue;

// Tensors of the device as ones of the host that share memory as these do.
class Picture {
 public:
  IValue of(const IValue& value) {
    if (value.isDevice()) return c10::Device(c10::kCPU);
    return record::with_tensors(value, [this](const at::Tensor& tensor) { return of(tensor); });
  }

  // What a kernel gave back of what it was given.
  at::Tensor origin_of(const at::Tensor& host) const {
    const auto found =
        std::ranges::find_if(shown_, [&](const auto& one) { return one.second.is_same(host); });
    return found == shown_.end() ? host : found->first;
  }

  void send_back(const at::Tensor& written) {
    if (!is_on_device(written)) return;
    const Copy& copy = copies_.at(written.storage().unsafeGetStorageImpl());
    copy_from(copy.host, copy.there, /*non_blocking=*/false);
    if (const at::Tensor host = of(written); host.sizes() != written.sizes())
      copy_from_and_resize(host, written);
  }

 private:
  struct Copy {  // the bytes of a storage
    at::Tensor there, host;
  };

  // One and the same tensor stays one: kernels take their output for an operand by that.
  at::Tensor of(const at::Tensor& tensor) {
    if (!is_on_device(tensor)) return tensor;
    for (const auto& [there, host] : shown_)
      if (there.is_same(tensor)) return host;
    const auto [entry, is_new] = copies_.try_emplace(tensor.storage().unsafeGetStorageImpl());
    Copy& copy = entry->second;
    if (is_new) {
      const auto bytes = static_cast<std::int64_t>(tensor.storage().nbytes());
      copy.there = over_memory(tensor, {bytes}, {1}, 0, at::kByte);
      copy.host = make_empty(c10::Device(c10::kCPU), {bytes}, {1}, at::kByte);
      copy_from(copy.there, copy.host, /*non_blocking=*/false);
    }
    at::Tensor made = at::detail::empty_strided_cpu({0}, {1}, tensor.scalar_type());
    made.set_(copy.host.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
    made._set_conj(tensor.is_conj());
    made._set_neg(tensor.is_neg());
    shown_.emplace_back(tensor, made);
    return made;
  }

  std::map<const c10::StorageImpl*, Copy> copies_;
  std::vector<std::pair<at::Tensor, at::Tensor>> shown_;  // on the device, on the host
};

bool is_write_target(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

}  // namespace

bool writes_shared(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const std::size_t base = stack.size() - arguments.size();
  const auto is_tensor = [&](std::size_t i) {
    return stack[base + i].isTensor() && is_on_device(stack[base + i].toTensor());
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!is_write_target(arguments[i]) || !is_tensor(i)) continue;
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

bool writes_element_twice(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto is_twice = [](const at::Tensor& tensor) {
    return is_on_device(tensor) && record::shows_element_twice(tensor);
  };
  const auto& arguments = op.schema().arguments();
  const std::size_t base = stack.size() - arguments.size();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!is_write_target(arguments[i])) continue;
    const IValue& value = stack[base + i];
    if (value.isTensor()
            ? is_twice(value.toTensor())
            : value.isTensorList() && std::ranges::any_of(value.toTensorVector(), is_twice))
      return true;
  }
  return false;
}

void run_as_it_lies(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const std::size_t base = stack.size() - arguments.size();
  Picture picture;
  std::vector<at::Tensor> written;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    IValue& value = stack[base + i];
    if (is_write_target(arguments[i])) {
      if (value.isTensor())
        written.push_back(value.toTensor());
      else if (value.isTensorList())
        for (const at::Tensor& tensor : value.toTensorVector()) written.push_back(tensor);
    }
    value = picture.of(value);
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  for (const at::Tensor& tensor : written) picture.send_back(tensor);
  for (std::size_t i = base; i < stack.size(); ++i)
    if (stack[i].isTensor()) stack[i] = picture.origin_of(stack[i].toTensor());
}

void put(const at::Tensor& target, at::Tensor result) {
  if (covers_storage(target) && covers_storage(result) &&
      target.scalar_type() == result.scalar_type() && target.sizes() == result.sizes() &&
      target.strides() == result.strides() && !target.is_conj() && !target.is_neg())
    take_content(target, std::move(result));
  else
    copy_from(result, target, false);
}

}  // namespace backplane::device
