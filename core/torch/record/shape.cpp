#include "core/torch/record/shape.h"

#include <ATen/native/TypeProperties.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fork.h"
#include "core/torch/record/dispatch.h"
#include "core/torch/record/kernel_trial.h"
#include "core/torch/record/session.h"
#include "core/torch/record/shape_rules.h"
#include "core/torch/record/value_tensor.h"

namespace backplane::record {

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

enum class Mode : std::uint8_t { kOutside, kComposite, kStructured };
thread_local Mode t_mode = Mode::kOutside;

class ModeScope {
 public:
  explicit ModeScope(Mode mode) : before_(std::exchange(t_mode, mode)) {}
  ~ModeScope() { t_mode = before_; }
  ModeScope(const ModeScope&) = delete;
  ModeScope& operator=(const ModeScope&) = delete;

 private:
  Mode before_;
};

// Calls the kernel that a device without kernels of its own gets, with kRecordKey on, so that what
// it calls comes to shape_call. Python functions on the Meta key shadow these kernels only there.
void call_for_any_device(const OperatorInfo& info, torch::jit::Stack& stack, Mode mode) {
  const ModeScope scope(mode);
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  keys.excluded_ = keys.excluded_.remove(kRecordKey);
  keys.included_ = keys.included_.add(kRecordKey);
  const c10::impl::ForceDispatchKeyGuard guard(keys);
  info.handle.redispatchBoxed(DispatchKeySet(DispatchKey::PrivateUse3), &stack);
}

void call_meta(const OperatorInfo& info, torch::jit::Stack& stack) {
  const ModeScope scope(Mode::kOutside);
  const BelowRecording below;
  info.handle.redispatchBoxed(DispatchKeySet(DispatchKey::Meta), &stack);
}

std::vector<at::Tensor> tensor_operands(const OperatorInfo& info, const torch::jit::Stack& stack) {
  std::vector<at::Tensor> operands;
  for (const c10::IValue& argument : std::span(stack).last(info.argument_count()))
    if (argument.isTensor() && argument.toTensor().defined())
      operands.push_back(argument.toTensor());
  return operands;
}

// Python's shape functions give the size and the type of elementwise results; their strides are not
// always those of the loop over elements that PyTorch runs.
void call_python_meta(const OperatorInfo& info, torch::jit::Stack& stack) {
  const bool is_elementwise = info.route == ShapeRoute::kMeta && info.op != nullptr &&
                              info.op->op_class == ir::OpClass::kPointwise &&
                              info.gives_new_values && info.handle.schema().returns().size() == 1 &&
                              info.name != "aten.rsub.Tensor";  // takes the second operand first
  std::vector<at::Tensor> operands;
  if (is_elementwise) operands = tensor_operands(info, stack);
  call_meta(info, stack);
  if (operands.empty() || !stack.back().isTensor()) return;
  const at::Tensor& result = stack.back().toTensor();
  at::Tensor laid = elementwise(operands, result.scalar_type());
  if (laid.sizes() == result.sizes()) stack.back() = std::move(laid);
}

bool try_composite(const OperatorInfo& info, torch::jit::Stack& stack) {
  if (info.composite_failed.load(std::memory_order_relaxed)) return false;
  const std::size_t base = stack.size() - info.argument_count();
  const torch::jit::Stack copy(stack.begin() + static_cast<std::ptrdiff_t>(base), stack.end());
  try {
    call_for_any_device(info, stack, Mode::kComposite);
    return true;
  } catch (const std::exception&) {
    // Some composite kernels read memory. An error of the user's own comes again from the Meta key.
    stack.resize(base);
    stack.insert(stack.end(), copy.begin(), copy.end());
    return false;
  }
}

at::Tensor zeros_of(const at::Tensor& meta) {
  if (!meta.defined() || !meta.is_meta()) return meta;
  return at::empty_strided(meta.sizes(), meta.strides(), meta.options().device(at::kCPU)).zero_();
}

void run_on_zeros(const OperatorInfo& info, torch::jit::Stack& stack) {
  const BelowRecording below;
  const std::size_t base = stack.size() - info.argument_count();
  for (std::size_t i = 0; i < info.argument_count(); ++i) {
    c10::IValue& value = stack[base + i];
    if (info.arguments[i] == ArgumentKind::kTensor && value.isTensor()) {
      value = zeros_of(value.toTensor());
    } else if (info.arguments[i] == ArgumentKind::kTensorList && value.isTensorList()) {
      c10::List<at::Tensor> zeros;
      for (const at::Tensor& meta : value.toTensorVector()) zeros.push_back(zeros_of(meta));
      value = std::move(zeros);
    } else if (info.arguments[i] == ArgumentKind::kOptionalTensorList && value.isList()) {
      c10::List<std::optional<at::Tensor>> zeros;
      for (const c10::IValue& item : value.toListRef())
        zeros.push_back(item.isTensor() ? std::optional(zeros_of(item.toTensor())) : std::nullopt);
      value = std::move(zeros);
    }
  }
  info.handle.callBoxed(&stack);
  for (std::size_t i = base; i < stack.size(); ++i) {
    c10::IValue& value = stack[i];
    if (value.isTensor() && value.toTensor().defined()) {
      value = meta_like(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> metas;
      for (const at::Tensor& tensor : value.toTensorVector()) metas.push_back(meta_like(tensor));
      value = std::move(metas);
    }
  }
}

constexpr std::int64_t kMostElements = 1 << 16;

// Whether one of the operands is empty, and whether all are small enough to run zeros of them
// beside the recording.
struct Extent {
  bool has_empty = false, is_small = true;
};

Extent extent_of(std::span<const c10::IValue> arguments) {
  Extent out;
  std::int64_t elements = 0;
  const auto visit = [&](const c10::IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined()) return;
    out.has_empty = out.has_empty || value.toTensor().numel() == 0;
    elements += value.toTensor().numel();
  };
  for (const c10::IValue& value : arguments) {
    visit(value);
    if (value.isList() && !value.isIntList() && !value.isDoubleList())
      for (const c10::IValue& item : value.toListRef()) visit(item);
  }
  out.is_small = elements <= kMostElements;
  return out;
}

// With nothing to compute, kernels refuse what shape functions let through, or give other shapes.
bool is_of_nothing(const OperatorInfo& info, const torch::jit::Stack& stack) {
  const Extent extent = extent_of(std::span(stack).last(info.argument_count()));
  // That one divides integers by zero, and so ends the process.
  return extent.has_empty && extent.is_small && info.name != "aten._pdist_backward";
}

// Functions in Python promote operands of several types of numbers with fractions, where a kernel
// may give what the first of them is.
bool mixes_floats(const OperatorInfo& info, const torch::jit::Stack& stack) {
  const std::span<const c10::IValue> arguments = std::span(stack).last(info.argument_count());
  std::optional<at::ScalarType> first;
  bool is_mixed = false;
  for (const c10::IValue& value : arguments) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::ScalarType dtype = value.toTensor().scalar_type();
    if (!c10::isFloatingType(dtype) && !c10::isComplexType(dtype)) continue;
    is_mixed = is_mixed || (first && *first != dtype);
    if (!first) first = dtype;
  }
  return is_mixed && extent_of(arguments).is_small;
}

// Of bits and whole numbers: no kernel has dtypes of fractions.
bool is_of_integers(const OperatorInfo& info) {
  return info.name.starts_with("aten.bitwise_") || info.name.starts_with("aten.gcd") ||
         info.name.starts_with("aten.lcm") || info.name.starts_with("aten.__");
}

// What the kernel takes decides where dtypes are other than those that every kernel has: shape
// functions let through mixes, and dtypes that a kernel lacks. The dtypes of the operands and the
// kinds of numbers, a byte for each argument; nothing where they are the usual ones, or where there
// is nothing to compute.
std::optional<std::string> unusual_dtypes(const OperatorInfo& info,
                                          const torch::jit::Stack& stack) {
  const std::size_t base = stack.size() - info.argument_count();
  std::string dtypes(info.argument_count(), '\0');
  std::optional<at::ScalarType> first;
  bool is_unusual = is_of_integers(info);
  for (std::size_t i = 0; i < info.argument_count(); ++i) {
    const c10::IValue& value = stack[base + i];
    if (info.is_number[i] && value.isScalar()) {
      constexpr unsigned kNumber = 0x80;
      dtypes[i] = static_cast<char>(kNumber | static_cast<unsigned>(value.toScalar().type()));
      is_unusual = is_unusual || value.isBool();
      continue;
    }
    if (static_cast<int>(i) == info.dtype_argument && value.isInt()) {
      const auto asked = static_cast<at::ScalarType>(value.toInt());
      dtypes[i] = static_cast<char>(static_cast<unsigned>(asked) + 1);
      is_unusual = is_unusual || (asked != at::kFloat && asked != at::kDouble);
      continue;
    }
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor& tensor = value.toTensor();
    if (tensor.numel() == 0) return std::nullopt;
    const at::ScalarType dtype = tensor.scalar_type();
    // One without dimensions may be taken where another is not.
    dtypes[i] = static_cast<char>((static_cast<unsigned>(dtype) + 1) << 1 |
                                  static_cast<unsigned>(tensor.dim() == 0));
    is_unusual =
        is_unusual || (dtype != at::kFloat && dtype != at::kDouble) || (first && *first != dtype);
    if (!first) first = dtype;
  }
  return is_unusual ? std::optional(dtypes) : std::nullopt;
}

// Dtypes that kernels took. Process-wide, as PyTorch's kernels are.
class KnownDtypes {
 public:
  bool has(const OperatorInfo& info, const std::string& dtypes) {
    const std::lock_guard lock(mutex_);
    return known_.contains({&info, dtypes});
  }
  void add(const OperatorInfo& info, std::string dtypes) {
    const std::lock_guard lock(mutex_);
    known_.insert({&info, std::move(dtypes)});
  }

 private:
  std::mutex& mutex_ = fork_mutex();
  std::set<std::pair<const OperatorInfo*, std::string>> known_;
};

// Never destroyed: threads may record while the process ends.
KnownDtypes& known_dtypes() {
  static auto& known = *new KnownDtypes;
  return known;
}

const Trial& trial_on_metas() {
  static const Trial& trial = *new Trial{
      [](const at::Tensor& tensor) { return tensor.is_meta(); },
      [](int fill) {
        return [fill](const at::Tensor& like) {
          return at::empty_strided(like.sizes(), like.strides(), like.options().device(at::kCPU))
              .fill_(fill);
        };
      }};
  return trial;
}

// Throws what the CPU's kernel throws of operands of such dtypes, once asked for each of them, and
// of such shapes, where the operator's shape function is not the kernel's own.
void check_by_kernel(const OperatorInfo& info, const torch::jit::Stack& stack) {
  std::optional<std::string> dtypes = unusual_dtypes(info, stack);
  const bool asks_for_dtypes = dtypes && !known_dtypes().has(info, *dtypes);
  if (!asks_for_dtypes && !info.asks_for_shapes) return;
  const BelowRecording below;
  const std::span<const c10::IValue> arguments = std::span(stack).last(info.argument_count());
  const auto raise = [](const std::exception_ptr& error) {
    if (error) try {
        std::rethrow_exception(error);
      } catch (const c10::LinAlgError&) {          // of the values
      } catch (const c10::NotImplementedError&) {  // PyTorch's own kernel is missing, not ours
        Session::current()->refuse(text_of(error), Code::kProgramError);
      }
  };
  if (info.asks_for_shapes)
    raise(find_refusal_of_shapes(info.handle, arguments, trial_on_metas(),
                                 extent_of(arguments).is_small));
  if (!asks_for_dtypes) return;
  const std::exception_ptr error = find_refusal(info.handle, arguments, trial_on_metas());
  raise(error);
  if (!error) known_dtypes().add(info, std::move(*dtypes));
}

// False where values decide whether the kernel takes them.
bool try_on_zeros(const OperatorInfo& info, torch::jit::Stack& stack) {
  torch::jit::Stack copy(stack.end() - static_cast<std::ptrdiff_t>(info.argument_count()),
                         stack.end());
  try {
    run_on_zeros(info, copy);
  } catch (const c10::LinAlgError&) {
    return false;
  }
  stack.resize(stack.size() - info.argument_count());
  stack.insert(stack.end(), copy.begin(), copy.end());
  return true;
}

bool is_allocation(const OperatorInfo& info) {
  return info.schema_name == "aten::empty_strided" || info.schema_name == "aten::empty";
}

// Writes that leave shapes alone: the result is the first argument.
bool only_writes(const OperatorInfo& info) {
  return info.schema_name == "aten::copy_" || info.schema_name == "aten::fill_" ||
         info.schema_name == "aten::zero_";
}

bool may_leave_nothing(const OperatorInfo& info) {
  return info.gives_new_values && (info.op->op_class == ir::OpClass::kConvolution ||
                                   info.op->op_class == ir::OpClass::kPooling);
}

// Operands of a pointwise operator that its kernel on the CPU converts before it looks how they
// lie: one with elements that others share, or with gaps, lies densely then. Empty where there are
// none.
std::vector<at::Tensor> operands_to_convert(const OperatorInfo& info,
                                            const torch::jit::Stack& stack) {
  const bool is_choice = info.name.starts_with("aten.where") || info.name == "aten.rsub.Tensor" ||
                         info.name.starts_with("aten.masked");
  if (!info.is_pointwise || !info.gives_new_values || is_choice) return {};
  // Nearly all lie densely.
  const auto lies_densely = [](const c10::IValue& argument) {
    return !argument.isTensor() || !argument.toTensor().defined() ||
           argument.toTensor().is_non_overlapping_and_dense();
  };
  if (std::ranges::all_of(std::span(stack).last(info.argument_count()), lies_densely)) return {};
  std::vector<at::Tensor> operands = tensor_operands(info, stack);
  const bool is_converted = std::ranges::any_of(operands, [&](const at::Tensor& operand) {
    const at::ScalarType type = operand.scalar_type();
    return type != operands.front().scalar_type() ||
           c10::isIntegralType(type, /*includeBool=*/true);  // perhaps to floats
  });
  return is_converted ? std::move(operands) : std::vector<at::Tensor>();
}

void lay_out_as_converted(std::vector<at::Tensor> operands, c10::IValue& result) {
  if (operands.empty() || !result.isTensor()) return;
  const at::ScalarType type = result.toTensor().scalar_type();
  at::native::ResultTypeState state;
  for (const at::Tensor& operand : operands)
    state = at::native::update_result_type_state(operand, state);
  at::ScalarType common = at::native::result_type(state);
  if (c10::isIntegralType(common, /*includeBool=*/true) && c10::isFloatingType(type)) common = type;
  if (std::ranges::all_of(operands, [&](const auto& t) { return t.scalar_type() == common; }))
    return;
  for (at::Tensor& operand : operands)
    if (operand.dim() > 0) operand = operand.to(common);
  at::Tensor laid = elementwise(operands, type);
  if (laid.sizes() == result.toTensor().sizes()) result = std::move(laid);
}

ShapeSource find_unconverted_shape(const OperatorInfo& info, torch::jit::Stack& stack) {
  if (info.gives_new_values && is_of_nothing(info, stack) && try_on_zeros(info, stack))
    return ShapeSource::kRunOnZeros;
  if (info.gives_new_values && !info.depends_on_values && info.schema_name.starts_with("aten::"))
    check_by_kernel(info, stack);
  switch (info.route) {
    case ShapeRoute::kRule:
      if (info.rule(stack)) return ShapeSource::kCompiled;
      break;
    case ShapeRoute::kStructured:
      call_for_any_device(info, stack, Mode::kStructured);
      return ShapeSource::kCompiled;
    case ShapeRoute::kComposite:
      if (try_composite(info, stack)) return ShapeSource::kCompiled;
      break;
    case ShapeRoute::kRunOnZeros:
      run_on_zeros(info, stack);
      return ShapeSource::kRunOnZeros;
    case ShapeRoute::kMeta:
      break;
  }
  if (info.meta_is_python && info.gives_new_values && !info.depends_on_values &&
      mixes_floats(info, stack) && try_on_zeros(info, stack))
    return ShapeSource::kRunOnZeros;
  if (info.meta_is_python)
    call_python_meta(info, stack);
  else
    call_meta(info, stack);
  // Only now: what fails in both ways is an error of the user's own.
  if (info.route == ShapeRoute::kComposite)
    info.composite_failed.store(true, std::memory_order_relaxed);
  return info.meta_is_python ? ShapeSource::kPython : ShapeSource::kCompiled;
}

ShapeSource find_shape(const OperatorInfo& info, torch::jit::Stack& stack) {
  std::vector<at::Tensor> operands = operands_to_convert(info, stack);
  const ShapeSource source = find_unconverted_shape(info, stack);
  if (!operands.empty() && source != ShapeSource::kRunOnZeros) {
    const BelowRecording below;
    lay_out_as_converted(std::move(operands), stack.back());
  }
  return source;
}

}  // namespace

bool is_in_shape() { return t_mode != Mode::kOutside; }

ShapeSource run_shape(const OperatorInfo& info, torch::jit::Stack& stack) {
  if (info.check) info.check(std::span(stack).last(info.argument_count()));
  if (!may_leave_nothing(info)) return find_shape(info, stack);
  const auto arguments = std::span(stack).last(info.argument_count());
  torch::jit::Stack copy(arguments.begin(), arguments.end());
  const ShapeSource source = find_shape(info, stack);
  // Where nothing is left of something, kernels refuse what shape functions let through.
  const bool is_left = !stack.back().isTensor() || stack.back().toTensor().numel() != 0;
  if (!is_left && source != ShapeSource::kRunOnZeros && extent_of(copy).is_small)
    run_on_zeros(info, copy);
  return source;
}

void shape_call(const OperatorInfo& info, torch::jit::Stack& stack) {
  const std::size_t base = stack.size() - info.argument_count();
  // A structured kernel has found the shapes when it calls its out= form to compute.
  if (t_mode == Mode::kStructured && info.out_count > 0 &&
      info.out_count == info.handle.schema().returns().size()) {
    stack.erase(stack.begin() + static_cast<std::ptrdiff_t>(base),
                stack.end() - static_cast<std::ptrdiff_t>(info.out_count));
    return;
  }
  if (only_writes(info)) {
    stack.resize(base + 1);
    return;
  }
  if (info.device_argument >= 0)
    stack[base + static_cast<std::size_t>(info.device_argument)] = c10::Device(c10::kMeta);
  if (is_allocation(info) || info.out_count > 0 || info.is_composite) {
    // A composite kernel calls on; the others end here.
    const ModeScope scope(info.is_composite ? t_mode : Mode::kOutside);
    if (info.is_composite) {
      info.handle.redispatchBoxed(DispatchKeySet(DispatchKey::Meta), &stack);
    } else {
      const BelowRecording below;
      info.handle.callBoxed(&stack);
    }
    return;
  }
  const BelowRecording below;
  (void)run_shape(info, stack);
}

}  // namespace backplane::record
