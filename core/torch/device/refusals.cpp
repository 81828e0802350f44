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
    return made;
  }

 private:
  int fill_;
  std::map<const Block*, at::Tensor> storages_;
};

const record::Trial kTrial{is_on_device, [](int fill) { return Lying(fill); }};

// The operator and how its tensors lie; of the rest nothing that a kernel minds only then.
std::string key_of(const c10::OperatorHandle& op, std::span<const IValue> arguments) {
  std::string text;
  KeyWriter key(text);
  key.add(&op.schema());
  std::vector<const Block*> blocks;
  const auto add = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !is_on_device(tensor)) return key.add('-');
    const Memory memory = memory_of(tensor.storage());
    const auto at = std::ranges::find(blocks, memory.block) - blocks.begin();
    if (static_cast<std::size_t>(at) == blocks.size()) blocks.push_back(memory.block);
    key.add(at);
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
  // What else is wrong shows with the real numbers; the copies that the fallback makes lie apart.
  if (record::text_of(error).find("memory location") != std::string::npos)
    std::rethrow_exception(error);
}

}  // namespace backplane::device
