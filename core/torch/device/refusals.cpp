#include "core/torch/device/refusals.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/torch/device/memory.h"
#include "core/torch/device/operation.h"
#include "core/torch/device/written.h"

namespace backplane::device {

namespace {

using c10::IValue;
using torch::jit::Stack;

// Sizes up to here stay: kernels' windows, dims of coordinates, groups.
constexpr std::int64_t kKeptSize = 16;

enum class Form : std::uint8_t { kSmall, kAsItLies };

// Says nothing: the call that counts warns by itself.
class Silence final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

bool is_size(const c10::Argument& argument) {
  const c10::TypePtr& type = argument.real_type();
  const c10::TypeKind kind = type->kind();
  if (kind == c10::TypeKind::IntType || kind == c10::TypeKind::SymIntType) return true;
  const auto list = type->cast<c10::ListType>();
  return list != nullptr && (list->getElementType()->kind() == c10::TypeKind::IntType ||
                             list->getElementType()->kind() == c10::TypeKind::SymIntType);
}

// The arguments of a call for the CPU, each number of their tensors `fill`.
class Mirror {
 public:
  Mirror(Form form, int fill) : form_(form), fill_(fill) {}

  Stack of(const c10::FunctionSchema& schema, std::span<const IValue> arguments) {
    if (form_ == Form::kSmall)
      for (const IValue& value : arguments) find_sizes(value);
    std::int64_t next = kKeptSize;
    for (auto& [size, small] : sizes_) small = std::min(size, ++next);
    Stack stack;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      // What is drawn here must not move the program's random numbers.
      if (argument.name() == "generator")
        stack.emplace_back(at::detail::createCPUGenerator());
      else
        stack.push_back(value_of(arguments[i], is_size(argument)));
    }
    return stack;
  }
  bool changes_sizes() const {
    return std::ranges::any_of(sizes_, [](const auto& one) { return one.first != one.second; });
  }

 private:
  void find_sizes(const IValue& value) {
    if (value.isTensor()) {
      if (!value.toTensor().defined()) return;
      for (const std::int64_t size : value.toTensor().sizes())
        if (size > kKeptSize) sizes_[size] = size;
    } else if (value.isList()) {
      for (const IValue& item : value.toListRef()) find_sizes(item);
    }
  }

  std::int64_t small(std::int64_t size) const {
    const auto found = sizes_.find(size);
    return found == sizes_.end() ? size : found->second;
  }

  IValue value_of(const IValue& value, bool sizes) {
    if (value.isTensor()) return tensor_of(value.toTensor());
    if (value.isDevice()) return c10::Device(c10::kCPU);
    if (value.isInt() && sizes) return small(value.toInt());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(tensor_of(tensor));
      return list;
    }
    if (value.isIntList() && sizes) {
      c10::List<std::int64_t> list;
      for (const std::int64_t size : value.toIntVector()) list.push_back(small(size));
      return list;
    }
    if (value.isList() && std::ranges::any_of(value.toListRef(), &IValue::isTensor)) {
      c10::List<std::optional<at::Tensor>> list;
      for (const IValue& item : value.toListRef())
        list.push_back(item.isTensor() ? std::optional(tensor_of(item.toTensor())) : std::nullopt);
      return list;
    }
    return value;
  }

  at::Tensor tensor_of(const at::Tensor& like) {
    if (!is_on_device(like)) return like;  // a number
    const at::TensorOptions options = at::TensorOptions().dtype(like.scalar_type());
    if (form_ == Form::kSmall) {
      std::vector<std::int64_t> sizes = like.sizes().vec();
      for (std::int64_t& size : sizes) size = small(size);
      return at::full(sizes, fill_, options);
    }
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

  Form form_;
  int fill_;
  std::map<std::int64_t, std::int64_t> sizes_;
  std::map<const Block*, at::Tensor> storages_;
};

// The exception of the first try, null where one went well.
std::exception_ptr try_on_cpu(const c10::OperatorHandle& op, std::span<const IValue> arguments,
                              Form form, bool& out_changes_sizes) {
  std::exception_ptr error;
  // Zeros are indices, but no divisors.
  for (const int fill : {0, 1}) {
    try {
      Mirror mirror(form, fill);
      Stack stack = mirror.of(op.schema(), arguments);
      out_changes_sizes = mirror.changes_sizes();
      op.callBoxed(&stack);
      return nullptr;
    } catch (const std::exception&) {
      if (!error) error = std::current_exception();
    }
  }
  return error;
}

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

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& raised) {
    return raised.what_without_backtrace();
  } catch (const std::exception& raised) {
    return raised.what();
  }
}

}  // namespace

std::string find_refusal(const c10::OperatorHandle& op, std::span<const IValue> arguments) {
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silence);
  bool changes_sizes = false;
  std::exception_ptr error = try_on_cpu(op, arguments, Form::kSmall, changes_sizes);
  // Sizes that a call has as products, or in lists of numbers that mean something else.
  if (error && changes_sizes) error = try_on_cpu(op, arguments, Form::kAsItLies, changes_sizes);
  return error ? text_of(error) : std::string();
}

void check_overlap(const c10::OperatorHandle& op, const Stack& stack) {
  if (!writes_shared(op, stack)) return;
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silence);
  const std::size_t count = op.schema().arguments().size();
  const std::span<const IValue> arguments(stack.data() + (stack.size() - count), count);
  thread_local std::unordered_set<std::string> taken;
  const std::string key = key_of(op, arguments);
  if (taken.contains(key)) return;
  bool changes_sizes = false;
  const std::exception_ptr error = try_on_cpu(op, arguments, Form::kAsItLies, changes_sizes);
  if (!error) {
    taken.insert(key);
    return;
  }
  // What else is wrong shows with the real numbers; the copies that the fallback makes lie apart.
  if (text_of(error).find("memory location") != std::string::npos) std::rethrow_exception(error);
}

}  // namespace backplane::device
