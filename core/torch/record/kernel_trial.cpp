#include "core/torch/record/kernel_trial.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/stack.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace backplane::record {

namespace {

using c10::IValue;
using torch::jit::Stack;

// Sizes up to here stay: kernels' windows, dims of coordinates, groups.
constexpr std::int64_t kKeptSize = 16;

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

// Rows that a factorization swapped, counted from one.
bool are_pivots(const c10::Argument& argument) {
  return argument.name() == "pivots" || argument.name() == "LU_pivots";
}

// Large sizes and what they become.
class SmallSizes {
 public:
  explicit SmallSizes(std::span<const IValue> arguments) {
    for (const IValue& value : arguments) find(value);
    std::int64_t next = kKeptSize;
    for (auto& [size, small] : sizes_) small = std::min(size, ++next);
  }

  bool has(std::int64_t size) const { return sizes_.contains(size); }
  std::int64_t of(std::int64_t size) const {
    const auto found = sizes_.find(size);
    return found == sizes_.end() ? size : found->second;
  }
  bool differ() const {
    return std::ranges::any_of(sizes_, [](const auto& one) { return one.first != one.second; });
  }

 private:
  void find(const IValue& value) {
    if (value.isTensor()) {
      if (!value.toTensor().defined()) return;
      for (const std::int64_t size : value.toTensor().sizes())
        if (size > kKeptSize) sizes_[size] = size;
    } else if (value.isList()) {
      for (const IValue& item : value.toListRef()) find(item);
    }
  }

  std::map<std::int64_t, std::int64_t> sizes_;
};

// The arguments of a call for the CPU.
class Mirror {
 public:
  // `small`: null where sizes stay.
  Mirror(const Trial& trial, int fill, const SmallSizes* small)
      : trial_(trial), fill_(fill), small_(small) {
    if (!small) as_it_lies_ = trial.as_it_lies(fill);
  }

  Stack of(const c10::FunctionSchema& schema, std::span<const IValue> arguments) {
    Stack stack;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      // What is drawn here must not move the program's random numbers.
      if (argument.name() == "generator")
        stack.emplace_back(at::detail::createCPUGenerator());
      else if (argument.name() == "unsafe")
        stack.emplace_back(true);  // lengths that add up are a matter of values
      else if (are_pivots(argument) && arguments[i].isTensor())
        stack.emplace_back(at::ones_like(value_of(arguments[i], false).toTensor()));
      else
        stack.push_back(value_of(arguments[i], is_size(argument)));
    }
    return stack;
  }

 private:
  IValue value_of(const IValue& value, bool sizes) {
    if (value.isTensor()) return tensor_of(value.toTensor());
    if (value.isDevice()) return c10::Device(c10::kCPU);
    if (value.isInt() && sizes && small_) return small_->of(value.toInt());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(tensor_of(tensor));
      return list;
    }
    if (value.isIntList() && sizes && small_) {
      c10::List<std::int64_t> list;
      for (const std::int64_t size : value.toIntVector()) list.push_back(small_->of(size));
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
    if (!like.defined() || !trial_.is_replaced(like)) return like;
    if (!small_) return as_it_lies_(like);
    std::vector<std::int64_t> sizes = like.sizes().vec();
    for (std::int64_t& size : sizes) size = small_->of(size);
    return at::full(sizes, fill_, at::TensorOptions().dtype(like.scalar_type()));
  }

  const Trial& trial_;
  int fill_;
  const SmallSizes* small_;
  std::function<at::Tensor(const at::Tensor& like)> as_it_lies_;
};

// Whether a tensor of such a dtype stands among the arguments.
template <class IsSuch>
bool has_tensor(std::span<const IValue> arguments, const IsSuch& is_such) {
  return std::ranges::any_of(arguments, [&](const IValue& value) {
    if (value.isTensor())
      return value.toTensor().defined() && is_such(value.toTensor().scalar_type());
    return value.isList() && has_tensor(std::span<const IValue>(value.toListRef()), is_such);
  });
}

// Indices, lengths, offsets. Kernels trust them, so a call of other integers than zeros may read
// outside.
bool has_integers(std::span<const IValue> arguments) {
  return has_tensor(arguments, [](at::ScalarType dtype) {
    return at::isIntegralType(dtype, /*includeBool=*/false);
  });
}

bool has_floats(std::span<const IValue> arguments) {
  return has_tensor(arguments, [](at::ScalarType dtype) {
    return !at::isIntegralType(dtype, /*includeBool=*/true);
  });
}

// Whether numbers stand beside them that a kernel may trust as well: lengths in a list, the place
// of a class. No tensor may be smaller then.
bool has_places(std::span<const IValue> arguments, const SmallSizes& sizes) {
  return has_integers(arguments) && std::ranges::any_of(arguments, [&](const IValue& value) {
           if (value.isIntList()) return !value.toIntVector().empty();
           return value.isInt() && value.toInt() > kKeptSize && !sizes.has(value.toInt());
         });
}

// The exception of the first try, null where one went well.
std::exception_ptr try_on_cpu(const c10::OperatorHandle& op, std::span<const IValue> arguments,
                              const Trial& trial, const SmallSizes* small) {
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silence);
  std::exception_ptr error;
  // Zeros are indices, but no divisors.
  const int last = has_integers(arguments) && has_floats(arguments) ? 0 : 1;
  for (int fill = 0; fill <= last; ++fill) {
    try {
      Stack stack = Mirror(trial, fill, small).of(op.schema(), arguments);
      op.callBoxed(&stack);
      return nullptr;
    } catch (const std::exception&) {
      if (!error) error = std::current_exception();
    }
  }
  return error;
}

}  // namespace

std::exception_ptr find_refusal(const c10::OperatorHandle& op, std::span<const IValue> arguments,
                                const Trial& trial) {
  const SmallSizes small(arguments);
  if (has_places(arguments, small)) return find_refusal_as_it_lies(op, arguments, trial);
  const std::exception_ptr error = try_on_cpu(op, arguments, trial, &small);
  // Sizes that a call has as products, or in lists of numbers that mean something else.
  return error && small.differ() ? find_refusal_as_it_lies(op, arguments, trial) : error;
}

std::exception_ptr find_refusal_as_it_lies(const c10::OperatorHandle& op,
                                           std::span<const IValue> arguments, const Trial& trial) {
  return try_on_cpu(op, arguments, trial, nullptr);
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

}  // namespace backplane::record
