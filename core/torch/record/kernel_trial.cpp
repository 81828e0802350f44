#include "core/torch/record/kernel_trial.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/stack.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/fork.h"
#include "core/torch/record/operands.h"

namespace backplane::record {

namespace {

using c10::IValue;
using torch::jit::Stack;

// Sizes up to here stay: kernels' windows, dims of coordinates, groups.
constexpr std::int64_t kKeptSize = 16;

// Says nothing: the call that counts warns by itself.
class Silence final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    is_resized_ = is_resized_ || warning.msg().find("was resized") != std::string::npos;
  }
  bool is_resized() const { return is_resized_; }  // and the kernel warned of that

 private:
  bool is_resized_ = false;
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

// Strides of other sizes in the order of these: with gaps where these have gaps, and 0 where these
// show an element again.
std::vector<std::int64_t> strides_for(at::IntArrayRef sizes, at::IntArrayRef of_sizes,
                                      at::IntArrayRef of_strides) {
  if (sizes == of_sizes) return of_strides.vec();
  std::vector<std::size_t> order;
  for (std::size_t d = sizes.size(); d-- > 0;) order.push_back(d);
  std::ranges::stable_sort(order, {}, [&](std::size_t d) { return of_strides[d]; });
  std::vector<std::int64_t> strides(sizes.size(), 0);
  std::int64_t next = 1, of_next = 1;
  for (const std::size_t d : order) {
    if (of_strides[d] == 0 && of_sizes[d] != 1) continue;
    if (of_sizes[d] > 1 && of_strides[d] > of_next) next *= 2;
    strides[d] = next;
    next *= std::max<std::int64_t>(sizes[d], 1);
    if (of_sizes[d] > 1) of_next = of_strides[d] * of_sizes[d];
  }
  return strides;
}

at::Tensor filled(at::IntArrayRef sizes, at::IntArrayRef strides, int fill, at::ScalarType dtype) {
  std::int64_t count = 1;
  for (std::size_t d = 0; d < sizes.size(); ++d)
    count = sizes[d] == 0 || count == 0 ? 0 : count + (sizes[d] - 1) * strides[d];
  return at::full({count}, fill, at::TensorOptions().dtype(dtype)).as_strided(sizes, strides);
}

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
    if (value.isDevice()) return c10::Device(c10::kCPU);
    if (value.isInt() && sizes && small_) return small_->of(value.toInt());
    if (value.isIntList() && sizes && small_) {
      c10::List<std::int64_t> list;
      for (const std::int64_t size : value.toIntVector()) list.push_back(small_->of(size));
      return list;
    }
    return with_tensors(value, [this](const at::Tensor& tensor) { return tensor_of(tensor); });
  }

  at::Tensor tensor_of(const at::Tensor& like) {
    if (!like.defined() || !trial_.is_replaced(like)) return like;
    if (!small_) return as_it_lies_(like);
    std::vector<std::int64_t> sizes = like.sizes().vec();
    for (std::int64_t& size : sizes) size = small_->of(size);
    if (trial_.keeps_order)
      return filled(sizes, strides_for(sizes, like.sizes(), like.strides()), fill_,
                    like.scalar_type());
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

// Kernels that are asked for shapes run on no more elements.
constexpr std::int64_t kMostSmallElements = 1 << 18;
// Calls that are remembered, before all are forgotten.
constexpr std::size_t kMostKnownCalls = 8192;

// What decides whether a kernel takes a call, without the values of tensors.
class CallKey {
 public:
  // `small`: null where sizes stay.
  CallKey(const c10::OperatorHandle& op, std::span<const IValue> arguments, const SmallSizes* small)
      : small_(small) {
    const c10::FunctionSchema& schema = op.schema();
    add(&schema);
    add(small == nullptr);
    for (std::size_t i = 0; i < arguments.size(); ++i)
      add_value(arguments[i], is_size(schema.arguments()[i]));
  }

  const std::string& text() const { return text_; }
  std::int64_t elements() const { return elements_; }
  // A number beyond small sizes that is no size of a tensor: a kernel may make that much of it.
  bool has_large_numbers() const { return has_large_numbers_; }

 private:
  template <class T>
  void add(const T& plain) {
    text_.append(reinterpret_cast<const char*>(&plain), sizeof plain);
  }

  void add_value(const IValue& value, bool sizes) {
    text_.push_back(value.isTensor() ? 't' : value.isList() ? 'l' : value.isInt() ? 'i' : 'v');
    if (value.isTensor()) {
      add_tensor(value.toTensor());
    } else if (value.isInt()) {
      const std::int64_t number = value.toInt();
      has_large_numbers_ =
          has_large_numbers_ || (sizes && std::abs(number) > kKeptSize && !small_of_has(number));
      add(sizes ? small_of(number) : number);
    } else if (value.isDouble()) {
      add(value.toDouble());
    } else if (value.isBool()) {
      add(value.toBool());
    } else if (value.isString()) {
      add(value.toStringRef().size());
      text_ += value.toStringRef();
    } else if (value.isList()) {
      const c10::ArrayRef<IValue> items = value.toListRef();
      add(items.size());
      for (const IValue& item : items) add_value(item, sizes);
    } else {
      text_ += value.tagKind();
    }
  }

  void add_tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    add(tensor.scalar_type());
    add(tensor.dim());
    std::int64_t count = 1;
    for (const std::int64_t size : tensor.sizes()) {
      add(small_of(size));
      count *= std::max<std::int64_t>(small_of(size), 1);
    }
    elements_ += count;
  }

  bool small_of_has(std::int64_t size) const { return small_ && small_->has(size); }
  std::int64_t small_of(std::int64_t size) const { return small_ ? small_->of(size) : size; }

  const SmallSizes* small_;
  std::string text_;
  std::int64_t elements_ = 0;
  bool has_large_numbers_ = false;
};

// Whether kernels took calls. Process-wide, as PyTorch's kernels are.
class KnownCalls {
 public:
  std::optional<bool> find(const CallKey& key) {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(key.text());
    return found == known_.end() ? std::nullopt : std::optional(found->second);
  }
  void add(const CallKey& key, bool taken) {
    const std::lock_guard lock(mutex_);
    if (known_.size() >= kMostKnownCalls) known_.clear();
    known_[key.text()] = taken;
  }

 private:
  std::mutex& mutex_ = fork_mutex();
  std::unordered_map<std::string, bool> known_;
};

// Never destroyed: threads may record while the process ends.
KnownCalls& known_calls() {
  static auto& known = *new KnownCalls;
  return known;
}

// The exception of the first try, null where one went well. `done`: what is left on the stack then,
// and whether the kernel warned of an output that it resized.
template <class Done>
std::exception_ptr try_on_cpu(const c10::OperatorHandle& op, std::span<const IValue> arguments,
                              const Trial& trial, const SmallSizes* small, const Done& done) {
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silence);
  std::exception_ptr error;
  // Zeros are indices, but no divisors.
  const int last = has_integers(arguments) && has_floats(arguments) ? 0 : 1;
  for (int fill = 0; fill <= last; ++fill) {
    try {
      Stack stack = Mirror(trial, fill, small).of(op.schema(), arguments);
      op.callBoxed(&stack);
      done(stack, silence.is_resized());
      return nullptr;
    } catch (const std::exception&) {
      if (!error) error = std::current_exception();
    }
  }
  return error;
}

std::exception_ptr try_on_cpu(const c10::OperatorHandle& op, std::span<const IValue> arguments,
                              const Trial& trial, const SmallSizes* small) {
  return try_on_cpu(op, arguments, trial, small, [](const Stack&, bool) {});
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

std::exception_ptr find_refusal_of_shapes(const c10::OperatorHandle& op,
                                          std::span<const IValue> arguments, const Trial& trial,
                                          bool is_small) {
  const SmallSizes small(arguments);
  const CallKey alike(op, arguments, &small);
  if (!has_places(arguments, small) && !alike.has_large_numbers() &&
      alike.elements() <= kMostSmallElements) {
    std::optional<bool> taken = known_calls().find(alike);
    if (!taken) {
      const std::exception_ptr error = try_on_cpu(op, arguments, trial, &small);
      if (error && !small.differ()) return error;
      known_calls().add(alike, *(taken = !error));
    }
    if (*taken) return nullptr;
  }
  if (!is_small) return nullptr;
  const CallKey itself(op, arguments, nullptr);
  if (known_calls().find(itself)) return nullptr;
  std::exception_ptr error = try_on_cpu(op, arguments, trial, nullptr);
  if (!error) known_calls().add(itself, true);
  return error;
}

std::optional<Resizing> find_resizing(const c10::OperatorHandle& op,
                                      std::span<const IValue> arguments, const Trial& trial,
                                      std::span<const at::IntArrayRef> sizes) {
  std::optional<Resizing> found;
  const auto look = [&](const Stack& stack, bool warns) {
    Resizing resizing{{}, warns};
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const at::Tensor& made = stack[stack.size() - sizes.size() + i].toTensor();
      if (made.dim() != static_cast<std::int64_t>(sizes[i].size())) return;
      resizing.strides.push_back(strides_for(sizes[i], made.sizes(), made.strides()));
    }
    found = std::move(resizing);
  };
  const SmallSizes small(arguments);
  if (!has_places(arguments, small)) {
    if (!try_on_cpu(op, arguments, trial, &small, look) || !small.differ()) return found;
  }
  try_on_cpu(op, arguments, trial, nullptr, look);
  return found;
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
