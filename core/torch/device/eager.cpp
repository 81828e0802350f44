#include "core/torch/device/eager.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <c10/core/ScalarTypeToTypeMeta.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/torch/bridge/errors.h"
#include "core/torch/bridge/number.h"
#include "core/torch/device/copy.h"
#include "core/torch/device/counters.h"
#include "core/torch/device/fallback.h"
#include "core/torch/device/memory.h"
#include "core/torch/device/operation.h"
#include "core/torch/device/refusals.h"
#include "core/torch/device/rewrite.h"
#include "core/torch/device/written.h"
#include "core/torch/record/fallback.h"
#include "core/torch/record/lower.h"
#include "core/torch/record/session.h"

namespace backplane::device {

namespace {

using c10::IValue;
using record::ArgumentKind;
using record::OperatorInfo;
using torch::jit::Stack;

enum class Form : std::uint8_t { kFunctional, kInPlace, kOut };

// ---- The functional operator behind add_ and add.out

bool same_argument(const c10::Argument& a, const c10::Argument& b) {
  return a.name() == b.name() && *a.real_type() == *b.real_type();
}

// dtype, layout, device and pinning of what a factory makes.
bool is_option(const c10::Argument& argument) {
  return argument.name() == "dtype" || argument.name() == "layout" || argument.name() == "device" ||
         argument.name() == "pin_memory";
}

// A factory may take options at the end, which its out= form reads from the tensor given.
std::optional<c10::OperatorHandle> find_functional(const c10::OperatorHandle& op, Form form) {
  const c10::FunctionSchema& schema = op.schema();
  std::string name = schema.name();
  if (form == Form::kInPlace) {
    if (!name.ends_with('_')) return std::nullopt;
    name.pop_back();
  }
  std::vector<const c10::Argument*> wanted;
  for (const c10::Argument& argument : schema.arguments())
    if (!argument.is_out()) wanted.push_back(&argument);
  static const auto& by_name = *[] {
    auto* all = new std::multimap<std::string, std::string>;
    for (const c10::OperatorName& one : c10::Dispatcher::singleton().getAllOpNames())
      all->emplace(one.name, one.overload_name);
    return all;
  }();
  const auto [first, last] = by_name.equal_range(name);
  for (auto it = first; it != last; ++it) {
    const auto found = c10::Dispatcher::singleton().findSchema({name, it->second});
    if (!found) continue;
    const c10::FunctionSchema& candidate = found->schema();
    const auto& arguments = candidate.arguments();
    const bool writes = std::ranges::any_of(arguments, [](const c10::Argument& a) {
      return a.alias_info() && a.alias_info()->isWrite();
    });
    if (writes || arguments.size() < wanted.size() ||
        candidate.returns().size() != schema.returns().size())
      continue;
    bool same = std::all_of(arguments.begin() + static_cast<std::ptrdiff_t>(wanted.size()),
                            arguments.end(), is_option);
    for (std::size_t i = 0; i < wanted.size(); ++i)
      same = same && same_argument(*wanted[i], arguments[i]);
    if (same) return found;
  }
  return std::nullopt;
}

// ---- Arguments

bool is_short(std::optional<at::ScalarType> type) {
  return type && at::isReducedFloatingType(*type);
}

// How a number from the host takes part: in the type of the tensors beside it unless its own kind
// is higher; with float32 beside shorter floats, as PyTorch computes.
at::ScalarType number_type(at::ScalarType number, std::optional<at::ScalarType> beside,
                           bool beside_has_dims) {
  const auto kind = [](at::ScalarType type) {
    return at::isComplexType(type) ? 3 : at::isFloatingType(type) ? 2 : type == at::kBool ? 0 : 1;
  };
  if (!beside || kind(number) > kind(*beside)) {
    if (at::isComplexType(number))
      return beside == at::kDouble ? at::kComplexDouble : at::kComplexFloat;
    return at::isFloatingType(number) ? c10::typeMetaToScalarType(c10::get_default_dtype())
                                      : number;
  }
  return is_short(beside) && beside_has_dims ? at::kFloat : *beside;
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor.is_quantized() && tensor.unsafeGetTensorImpl()->has_storage();
}

void add_plain(KeyWriter& key, const IValue& value, bool& known) {
  if (value.isNone()) {
    key.add('n');
  } else if (value.isBool()) {
    key.add(value.toBool() ? 't' : 'f');
  } else if (value.isInt()) {
    key.add('i');
    key.add(value.toInt());
  } else if (value.isDouble()) {
    key.add('d');
    key.add(value.toDouble());
  } else if (value.isComplexDouble()) {
    key.add('c');
    key.add(value.toComplexDouble());
  } else if (value.isString()) {
    key.add('s');
    key.add_text(value.toStringRef());
  } else if (value.isDevice()) {
    key.add('v');
  } else if (value.isGenerator() || value.isStorage() || value.isSymInt() || value.isSymFloat()) {
    known = false;
  } else if (value.isList()) {
    const auto items = value.toListRef();
    key.add('[');
    key.add(items.size());
    for (const IValue& item : items) add_plain(key, item, known);
  } else {
    known = false;
  }
}

// One call of a functional operator: its arguments as they bind to a graph.
class Call {
 public:
  // `device` is null where an argument tells.
  Call(const OperatorInfo& info, const Rewrite* rewrite, std::vector<IValue> arguments,
       TorchDevice* device)
      : info_(info), rewrite_(rewrite), arguments_(std::move(arguments)), device_(device) {}

  // Null and a reason where the device does not run it. `out_key`: of calls that are alike, where
  // wanted; the thread's own text is another call's once this one is compiled or run.
  std::shared_ptr<const Operation> find(std::string& reason, std::string* out_key) {
    thread_local std::string key_text;
    KeyWriter key(key_text);
    if (!prepare(key, reason)) return nullptr;
    if (out_key != nullptr) *out_key = key_text;
    const OperationResult found = find_operation(key_text, [&] { return compile(); });
    if (found.ok()) return *found;
    reason = found.status().message();
    return nullptr;
  }
  const std::vector<Argument>& bound() const { return bound_; }

 private:
  bool prepare(KeyWriter& key, std::string& reason) {
    find_beside();
    key.add(&info_);
    if (device_ != nullptr) key.add(device_->index());
    lifts_number_ = rewrite_ != nullptr && lifts();
    key.add(lifts_number_);
    bool known = true;
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      const IValue& value = arguments_[i];
      if (info_.arguments[i] == ArgumentKind::kPlain) {
        if (lifts_number_ && static_cast<int>(i) == rewrite_->number_argument)
          // PyTorch's kernels take it in the dtype of the elements.
          known = bind_number(key, i, value.toScalar()) && beside_ &&
                  (number_types_.back() == *beside_ || is_short(beside_)) &&
                  bridge::holds(value.toScalar(), *beside_) && known;
        else
          add_plain(key, value, known);
      } else if (value.isTensor()) {
        known = bind(key, i, value.toTensor()) && known;
      } else if (value.isTensorList()) {
        const auto tensors = value.toTensorVector();
        key.add(tensors.size());
        for (const at::Tensor& tensor : tensors) known = bind(key, i, tensor) && known;
      } else if (value.isList()) {
        const auto items = value.toListRef();
        key.add(items.size());
        for (const IValue& item : items)
          known = bind(key, i, item.isTensor() ? item.toTensor() : at::Tensor()) && known;
      } else {
        key.add('-');
      }
    }
    if (!known) reason = "an argument that graphs do not carry";
    if (known && device_ == nullptr) reason = "no tensor on the device";
    return known && device_ != nullptr;
  }

  // 1 is in the graph: it is the default, and says that there is nothing to multiply. Tensors of
  // several types multiply in the one that they meet in, which a product by itself does not know.
  bool lifts() const {
    const IValue& value = arguments_[static_cast<std::size_t>(rewrite_->number_argument)];
    if (value.isInt() ? value.toInt() == 1 : !value.isDouble() || value.toDouble() == 1.0)
      return false;
    bool is_alike = true;
    for_each_tensor([&](const at::Tensor& tensor) {
      is_alike = is_alike && (tensor.scalar_type() == beside_ ||
                              tensor.unsafeGetTensorImpl()->is_wrapped_number());
    });
    return is_alike;
  }

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    for (const IValue& value : arguments_) {
      if (value.isTensor()) {
        visit(value.toTensor());
      } else if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
      }
    }
  }

  void find_beside() {
    for_each_tensor([&](const at::Tensor& tensor) {
      if (!is_on_device(tensor)) return;
      if (device_ == nullptr) device_ = &owner_of(tensor);
      if (beside_ && (beside_has_dims_ || tensor.dim() == 0)) return;
      beside_ = tensor.scalar_type();
      beside_has_dims_ = tensor.dim() != 0;
    });
  }

  bool bind(KeyWriter& key, std::size_t position, const at::Tensor& tensor) {
    if (!tensor.defined()) {
      key.add('u');
      return true;
    }
    if (!is_plain(tensor)) return false;
    if (is_on_device(tensor)) {
      key.add('T');
      key.add_tensor(tensor);
      bound_.push_back({tensor, {}});
      number_types_.emplace_back();
      return true;
    }
    if (!tensor.device().is_cpu() || tensor.dim() != 0) return false;
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
      return bind_number(key, position, tensor.item());
    key.add('N');
    key.add(tensor.scalar_type());
    bound_.push_back({{}, tensor.item()});
    number_types_.push_back(tensor.scalar_type());
    return true;
  }

  // False where its dtype cannot hold it: each of PyTorch's kernels has an answer of its own.
  bool bind_number(KeyWriter& key, std::size_t position, const c10::Scalar& number) {
    const at::ScalarType type = number_type(number.type(), beside_, beside_has_dims_);
    key.add('N');
    key.add(type);
    key.add(number.isBoolean());  // kernels refuse some
    bound_.push_back({{}, is_short(beside_) ? rounded(position, number) : number});
    number_types_.push_back(type);
    return bridge::holds(number, is_short(beside_) && at::isFloatingType(type) ? *beside_ : type);
  }

  c10::Scalar rounded(std::size_t position, const c10::Scalar& number) const {
    const c10::Argument& argument = info_.handle.schema().arguments()[position];
    return bridge::rounded_number(info_.name, argument.name(), number, beside_);
  }

  // ---- The graph

  // A value of the recording for the next bound argument.
  at::Tensor next_input(record::Session& session) {
    const std::size_t at = inputs_.size();
    const Argument& argument = bound_[at];
    // What graphs are made from is on the CPU: shapes alone matter.
    const auto add = [&](at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type) {
      inputs_.push_back(session.add_value(at::detail::empty_strided_meta(sizes, strides, type),
                                          c10::Device(c10::kCPU), record::ValueOrigin::kInput));
      return session.wrap(inputs_.back());
    };
    const at::Tensor& tensor = argument.tensor;
    if (!tensor.defined()) return add({}, {}, *number_types_[at]);
    const std::int64_t before = bind_distance(tensor);
    if (before == 0) return add(tensor.sizes(), tensor.strides(), tensor.scalar_type());
    const auto item = static_cast<std::int64_t>(tensor.element_size());
    const std::int64_t count =
        before + static_cast<std::int64_t>(extent_of(tensor).size_bytes) / item;
    return add({count}, {1}, tensor.scalar_type())
        .as_strided(tensor.sizes(), tensor.strides(), before);
  }

  IValue recorded(record::Session& session, std::size_t position) {
    const IValue& value = arguments_[position];
    if (info_.arguments[position] == ArgumentKind::kPlain) {
      if (lifts_number_ && static_cast<int>(position) == rewrite_->number_argument)
        return next_input(session);
      if (static_cast<int>(position) == info_.device_argument && value.isDevice())
        return c10::Device(c10::kCPU);
      return value;
    }
    if (value.isTensor()) return value.toTensor().defined() ? next_input(session) : at::Tensor();
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (std::size_t n = value.toTensorVector().size(); n > 0; --n)
        list.push_back(next_input(session));
      return list;
    }
    if (value.isList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const IValue& item : value.toListRef())
        list.push_back(item.isTensor() && item.toTensor().defined()
                           ? std::optional<at::Tensor>(next_input(session))
                           : std::nullopt);
      return list;
    }
    return value;
  }

  OperationResult compile() {
    if (const std::string refusal = find_refusal(info_.handle, arguments_); !refusal.empty())
      return Status(Code::kUnsupported, refusal);
    inputs_.clear();
    auto session = std::make_shared<record::Session>();
    Stack stack;
    try {
      const record::SessionScope scope(session);
      for (std::size_t i = 0; i < arguments_.size(); ++i) stack.push_back(recorded(*session, i));
      if (lifts_number_) {
        at::Tensor result = rewrite_->run(stack);
        stack = {std::move(result)};
      } else {
        record::record_call(info_.handle, c10::DispatchKeySet(record::kRecordKey), &stack);
      }
    } catch (const c10::Error& error) {
      return Status(Code::kUnsupported, error.what_without_backtrace());
    } catch (const std::exception& error) {
      return Status(Code::kUnsupported, error.what());
    }
    record::LowerOptions options;
    options.name = "eager";
    options.inputs = inputs_;
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      options.input_names.push_back("in" + std::to_string(i));
    std::vector<std::size_t> absent;
    const std::vector<at::Tensor> results = record::take_results(stack);
    for (std::size_t i = 0; i < results.size(); ++i) {
      const at::Tensor& result = results[i];
      if (!result.defined()) {
        absent.push_back(i);
        continue;
      }
      const record::ValueTensor* value = record::find_value(result);
      if (value == nullptr) return Status(Code::kUnsupported, "a result that is a constant");
      options.outputs.push_back(value->number());
    }
    BP_ASSIGN_OR_RETURN(record::Lowered lowered, record::lower(session->tape, options));
    ir::Graph& graph = lowered.graph;
    for (std::size_t i = 0; i < bound_.size(); ++i)
      if (!bound_[i].tensor.defined()) graph.values[graph.inputs[i]].is_host_scalar = true;
    return Operation::compile(*device_, std::move(graph), std::move(absent));
  }

  const OperatorInfo& info_;
  const Rewrite* rewrite_;
  std::vector<IValue> arguments_;
  TorchDevice* device_;
  std::optional<at::ScalarType> beside_;  // of the tensors on the device, those with dims first
  bool beside_has_dims_ = false;
  bool lifts_number_ = false;
  std::vector<Argument> bound_;
  std::vector<std::optional<at::ScalarType>> number_types_;  // parallel; empty for tensors
  std::vector<record::ValueNumber> inputs_;
};

// ---- The kernel of one operator

constexpr const char* kRandom = "it draws random numbers";
constexpr const char* kDependsOnValues = "its result's size depends on values";

class EagerKernel final : public c10::OperatorKernel {
 public:
  explicit EagerKernel(Form form) : form_(form) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
    std::call_once(*once_, [&] { learn(op); });
    if (functional_ == nullptr) return run_on_cpu(op, stack, reason_);
    check_devices(op, *stack);
    std::string reason;
    if (form_ != Form::kFunctional) {
      check_overlap(op, *stack);
      if (writes_element_twice(op, *stack))
        return run_on_cpu(op, stack, "it writes an element that its target shows twice");
    }
    if (!run(op, *stack, reason)) run_on_cpu(op, stack, reason);
  }

 private:
  void learn(const c10::OperatorHandle& op) {
    const auto& arguments = op.schema().arguments();
    const auto writes = std::ranges::count_if(arguments, [](const c10::Argument& argument) {
      return argument.alias_info() && argument.alias_info()->isWrite();
    });
    if (form_ == Form::kInPlace && (writes != 1 || !arguments[0].alias_info())) {
      reason_ = "it writes several arguments";
      return;
    }
    const auto handle = form_ == Form::kFunctional ? std::optional(op) : find_functional(op, form_);
    if (!handle) {
      reason_ = "it writes its arguments, and has no other form";
      return;
    }
    const OperatorInfo& info = record::operator_info(*handle);
    for (const c10::Argument& result : handle->schema().returns()) {
      const auto kind = result.real_type()->kind();
      if (kind != c10::TypeKind::TensorType) reason_ = "its result is no tensor";
    }
    // Attention draws where it drops out, which the device's choice of attention leaves to others;
    // an index gives a size that depends on values where it is a mask.
    is_attention_ = info.name.starts_with("aten._scaled_dot_product");
    is_index_ = info.name == "aten.index.Tensor";
    constexpr std::array kDivisions{"aten.div.Tensor_mode", "aten.floor_divide",
                                    "aten.remainder.Tensor", "aten.remainder.Scalar_Tensor",
                                    "aten.fmod.Tensor"};
    is_division_ =
        std::ranges::any_of(kDivisions, [&](const char* name) { return info.name == name; });
    constexpr std::array kRows{"aten.arange", "aten.linspace", "aten.logspace"};
    makes_row_ =
        std::ranges::any_of(kRows, [&](const char* name) { return info.name.starts_with(name); });
    if (info.is_random && !is_attention_) reason_ = kRandom;
    if (info.depends_on_values && !is_index_) reason_ = kDependsOnValues;
    if (info.writes) reason_ = "it writes its arguments";
    if (!info.op->known) reason_ = "not in the op table";
    if (!reason_.empty()) return;
    rewrite_ = find_rewrite(info.name);
    functional_ = &info;
  }

  bool run(const c10::OperatorHandle& op, Stack& stack, std::string& reason) const {
    const std::size_t count = op.schema().arguments().size();
    const std::size_t base = stack.size() - count;
    std::vector<IValue> arguments;
    arguments.reserve(count);
    for (std::size_t i = 0; i < count; ++i)
      if (!op.schema().arguments()[i].is_out()) arguments.push_back(stack[base + i]);
    if (is_attention_ && drops_out(arguments)) return refuse(reason, kRandom);
    if (is_index_ && has_mask(arguments[1])) return refuse(reason, kDependsOnValues);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    TorchDevice* device = nullptr;
    if (form_ == Form::kOut) {
      const at::Tensor& out = stack.back().toTensor();
      if (!is_on_device(out)) return false;
      device = &owner_of(out);
      for (std::size_t i = arguments.size(); i < functional_->argument_count(); ++i) {
        const bool is_dtype = functional_->handle.schema().arguments()[i].name() == "dtype";
        arguments.push_back(is_dtype ? IValue(out.scalar_type()) : IValue());
      }
    }
    Call call(*functional_, rewrite_, std::move(arguments), device);
    std::string key;
    const std::shared_ptr<const Operation> operation =
        call.find(reason, form_ == Form::kOut ? &key : nullptr);
    if (operation == nullptr) return false;
    if (divides_by_zero(*operation, call)) return refuse(reason, "a divisor is zero");
    std::vector<at::Tensor> targets;
    if (form_ == Form::kInPlace) {
      targets.push_back(stack[base].toTensor());
      if (!can_hold(targets[0], *operation, reason)) return false;
    } else if (form_ == Form::kOut) {
      for (std::size_t i = 0; i < count; ++i)
        if (op.schema().arguments()[i].is_out()) targets.push_back(stack[base + i].toTensor());
      for (std::size_t i = 0; i < targets.size() && i < operation->output_count(); ++i)
        if (targets[i].scalar_type() != operation->output(i).dtype)
          return refuse(reason, "out= is of another type than the result");
    }
    if (targets.size() == 1 && operation->fits(call.bound(), targets[0])) {
      if (refuses(operation->try_run_into(call.bound(), targets[0]), reason)) return false;
      count_plugin_op();
      stack.resize(base);
      stack.emplace_back(std::move(targets[0]));
      return true;
    }
    Result<std::vector<at::Tensor>> ran = operation->try_run(call.bound());
    if (refuses(ran.status(), reason)) return false;
    std::vector<at::Tensor> results = std::move(*ran);
    count_plugin_op();
    if (form_ == Form::kFunctional) {
      stack.resize(base);
      for (at::Tensor& result : results) stack.emplace_back(std::move(result));
    } else if (form_ == Form::kInPlace) {
      stack.resize(base);
      put(targets[0], std::move(results[0]));
      stack.emplace_back(std::move(targets[0]));
    } else {
      // A row of numbers goes into any shape of as many elements.
      if (makes_row_ && targets[0].numel() == results[0].numel())
        results[0] = results[0].view(targets[0].sizes());
      resize_outputs(op, stack, key, targets, results);
      stack.resize(base);
      for (std::size_t i = 0; i < targets.size(); ++i) {
        put(targets[i], std::move(results[i]));
        stack.emplace_back(std::move(targets[i]));
      }
    }
    return true;
  }

  // Some kernels give a target of other sizes the strides of the result and some make it
  // contiguous, and not all of them warn: the CPU's is asked once for calls that are alike.
  static void resize_outputs(const c10::OperatorHandle& op, const Stack& stack,
                             const std::string& call_key, const std::vector<at::Tensor>& targets,
                             const std::vector<at::Tensor>& results) {
    const auto is_resized = [&](std::size_t i) { return targets[i].sizes() != results[i].sizes(); };
    bool resizes = false;
    for (std::size_t i = 0; i < targets.size(); ++i) resizes = resizes || is_resized(i);
    if (!resizes) return;
    std::string key;
    KeyWriter writer(key);
    writer.add(&op.schema());
    writer.add_text(call_key);
    for (std::size_t i = 0; i < targets.size(); ++i)
      writer.add(!is_resized(i) ? '=' : targets[i].numel() == 0 ? 'e' : 'r');
    constexpr std::size_t kMostKnown = 4096;
    thread_local std::unordered_map<std::string, record::Resizing> known;
    auto found = known.find(key);
    if (found == known.end()) {
      const std::size_t count = op.schema().arguments().size();
      std::vector<at::IntArrayRef> sizes;
      for (std::size_t i = 0; i < targets.size(); ++i) sizes.push_back(results[i].sizes());
      std::optional<record::Resizing> asked =
          find_resizing(op, std::span<const IValue>(stack).last(count), sizes);
      if (!asked) {
        asked.emplace().warns = true;
        for (const at::Tensor& result : results) asked->strides.push_back(result.strides().vec());
      }
      if (known.size() >= kMostKnown) known.clear();
      found = known.emplace(std::move(key), std::move(*asked)).first;
    }
    for (std::size_t i = 0; i < targets.size(); ++i) {
      if (!is_resized(i)) continue;
      if (found->second.warns) at::native::resize_output_check(targets[i], results[i].sizes());
      resize_to_lie(targets[i], results[i].sizes(), found->second.strides[i]);
    }
  }

  static bool refuse(std::string& out_reason, const char* reason) {
    out_reason = reason;
    return false;
  }
  // PyTorch has its own error for data that a plugin refuses, and kernels for what it cannot do
  // after all; other failures are raised.
  static bool refuses(const Status& status, std::string& out_reason) {
    if (status.ok()) return false;
    if (!bridge::refuses_data(status) && status.code() != Code::kUnsupported) check(status);
    out_reason = status.message();
    return true;
  }
  // The CPU raises where a divisor of integers is zero; devices give any number. So it is read.
  bool divides_by_zero(const Operation& operation, const Call& call) const {
    if (!is_division_ || !at::isIntegralType(operation.output(0).dtype, /*includeBool=*/true))
      return false;
    const Argument& divisor = call.bound().back();
    if (!divisor.tensor.defined()) return divisor.number.toDouble() == 0;
    return divisor.tensor.numel() != 0 && !download(divisor.tensor).all().item<bool>();
  }
  bool drops_out(const std::vector<IValue>& arguments) const {
    const auto& schema = functional_->handle.schema();
    for (std::size_t i = 0; i < arguments.size(); ++i)
      if (schema.arguments()[i].name() == "dropout_p") return arguments[i].toDouble() != 0;
    return false;
  }
  static bool has_mask(const IValue& indices) {
    return std::ranges::any_of(indices.toListRef(), [](const IValue& index) {
      if (!index.isTensor() || !index.toTensor().defined()) return false;
      const at::ScalarType type = index.toTensor().scalar_type();
      return type == at::kBool || type == at::kByte;
    });
  }

  // PyTorch's errors about results that do not fit come from the CPU's kernel.
  static bool can_hold(const at::Tensor& self, const Operation& operation, std::string& reason) {
    const auto& output = operation.output(0);
    if (output.sizes == self.sizes().vec() && output.dtype == self.scalar_type()) return true;
    reason = "the result has another shape or type than the tensor it is written to";
    return false;
  }

  Form form_;
  std::shared_ptr<std::once_flag> once_ = std::make_shared<std::once_flag>();
  // Written once, at the first call.
  const OperatorInfo* functional_ = nullptr;
  const Rewrite* rewrite_ = nullptr;
  bool is_attention_ = false, is_index_ = false, is_division_ = false, makes_row_ = false;
  std::string reason_;  // why functional_ is null
};

// ---- Registration

bool returns_view(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.returns(), [](const c10::Argument& result) {
    return result.alias_info() && !result.alias_info()->isWrite();
  });
}

Form form_of(const c10::FunctionSchema& schema) {
  bool writes = false;
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.is_out()) return Form::kOut;
    writes = writes || (argument.alias_info() && argument.alias_info()->isWrite());
  }
  return writes ? Form::kInPlace : Form::kFunctional;
}

}  // namespace

void register_eager_kernels(torch::Library& library) {
  // Composite for all devices, but made of operators that no device but CUDA has, or of those that
  // are made of these.
  constexpr std::array kAlways{
      "aten::convolution", "aten::convolution_backward",
      "aten::_native_batch_norm_legit_functional", "aten::_native_batch_norm_legit_no_training",
      // These go to kernels of the CPU and CUDA without being dispatched.
      "aten::_batch_norm_no_update", "aten::conj_physical_", "aten::fft_fftfreq.out",
      "aten::fft_rfftfreq.out", "aten::range.out_", "aten::mode.values", "aten::kaiser_window",
      "aten::kaiser_window.periodic", "aten::kaiser_window.beta", "aten::kaiser_window.out",
      "aten::kaiser_window.periodic_out", "aten::kaiser_window.beta_out",
      // And these to the addresses of their tensors.
      "aten::_sobol_engine_draw", "aten::_sobol_engine_ff_", "aten::_sobol_engine_scramble_",
      "aten::_sobol_engine_initialize_state_", "aten::_rowwise_prune",
      "aten::_saturate_weight_to_fp16", "aten::choose_qparams_optimized"};
  constexpr std::string_view kOfAddresses = "aten::fbgemm_";  // as all of these do
  constexpr std::array kNever{"aten::copy_", "aten::_local_scalar_dense"};
  const auto is_in = [](const auto& list, const std::string& name) {
    return std::ranges::any_of(list, [&](const char* one) { return name == one; });
  };
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::") || is_in(kNever, name.name)) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    const std::string full_name =
        name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
    if (!is_in(kAlways, full_name) && !full_name.starts_with(kOfAddresses) &&
        (!op->hasKernelForDispatchKey(c10::DispatchKey::CPU) || returns_view(op->schema())))
      continue;
    library.impl(full_name.c_str() + std::string_view("aten::").size(),
                 torch::CppFunction::makeFromBoxedFunctor(
                     std::make_unique<EagerKernel>(form_of(op->schema()))));
  }
}

}  // namespace backplane::device
