#include "core/torch/device/refusals.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/torch/device/memory.h"
#include "core/torch/device/operation.h"
#include "core/torch/device/written.h"
#include "core/torch/record/kernel_trial.h"

namespace backplane::device {

namespace {

using c10::IValue;
using torch::jit::Stack;

// As in the memory of the device, with its sharing.
class Lying {
 public:
  explicit Lying(int fill) : fill_(fill) {}

  at::Tensor operator()(const at::Tensor& like) {
    // One and the same tensor stays one: kernels do not resize an output that is an operand.
    const auto known = tensors_.find(like.unsafeGetTensorImpl());
    if (known != tensors_.end()) return known->second;
    const at::TensorOptions options = at::TensorOptions().dtype(like.scalar_type());
    const Memory memory = memory_of(like.storage());
    const auto [entry, is_new] = storages_.try_emplace(memory.block);
    at::Tensor& whole = entry->second;
    const std::int64_t item = static_cast<std::int64_t>(like.element_size());
    const auto start = static_cast<std::int64_t>(memory.offset_bytes) / item;
    if (is_new) {
      const std::uint64_t bytes = memory.block != nullptr ? memory.block->bytes : 0;
      whole = at::full({static_cast<std::int64_t>(bytes) / item}, fill_, options);
    }
    at::Tensor made = at::empty({0}, options);
    made.set_(whole.storage(), start + like.storage_offset(), like.sizes(), like.strides());
    return tensors_[like.unsafeGetTensorImpl()] = made;
  }

 private:
  int fill_;
  std::map<const Block*, at::Tensor> storages_;
  std::map<const c10::TensorImpl*, at::Tensor> tensors_;
};

const record::Trial kTrial{is_on_device, [](int fill) { return Lying(fill); },
                           /*keeps_order=*/true};

// The operator and how its tensors lie; of the rest nothing that a kernel minds only then.
std::string key_of(const c10::OperatorHandle& op, std::span<const IValue> arguments) {
  std::string text;
  KeyWriter key(text);
  key.add(&op.schema());
  std::vector<const Block*> blocks;
  std::vector<const c10::TensorImpl*> tensors;
  const auto add_place = [&](auto& seen, auto one) {
    const auto at = std::ranges::find(seen, one) - seen.begin();
    if (static_cast<std::size_t>(at) == seen.size()) seen.push_back(one);
    key.add(at);
  };
  const auto add = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !is_on_device(tensor)) return key.add('-');
    const Memory memory = memory_of(tensor.storage());
    add_place(blocks, static_cast<const Block*>(memory.block));
    add_place(tensors, static_cast<const c10::TensorImpl*>(tensor.unsafeGetTensorImpl()));
    key.add(memory.offset_bytes);
    key.add(tensor.storage_offset());
    key.add_tensor(tensor);
  };
  for (const IValue& value : arguments) {
    if (value.isTensor()) {
      add(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
    } else if (value.isList()) {
      for (const IValue& item : value.toListRef())
        if (item.isTensor()) add(item.toTensor());
    }
    key.add('|');
  }
  return text;
}

}  // namespace

std::string find_refusal(const c10::OperatorHandle& op, std::span<const IValue> arguments) {
  const std::exception_ptr error = record::find_refusal(op, arguments, kTrial);
  return error ? record::text_of(error) : std::string();
}

std::optional<record::Resizing> find_resizing(const c10::OperatorHandle& op,
                                              std::span<const IValue> arguments,
                                              std::span<const at::IntArrayRef> sizes) {
  return record::find_resizing(op, arguments, kTrial, sizes);
}

void check_overlap(const c10::OperatorHandle& op, const Stack& stack) {
  if (!writes_shared(op, stack)) return;
  const std::size_t count = op.schema().arguments().size();
  const std::span<const IValue> arguments(stack.data() + (stack.size() - count), count);
  thread_local std::unordered_set<std::string> taken;
  const std::string key = key_of(op, arguments);
  if (taken.contains(key)) return;
  const std::exception_ptr error = record::find_refusal_as_it_lies(op, arguments, kTrial);
  if (!error) {
    taken.insert(key);
    return;
  }
  // What else is wrong shows with the real numbers; the copies that the fallback makes lie apart,
  // and an output that is no operand there is resized.
  const std::string text = record::text_of(error);
  if (text.find("memory location") != std::string::npos ||
      text.find("doesn't match the broadcast shape") != std::string::npos)
    std::rethrow_exception(error);
}

}  // namespace backplane::device
