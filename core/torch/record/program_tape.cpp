#include "core/torch/record/program_tape.h"

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

#include <array>
#include <utility>

#include "core/torch/record/layout.h"
#include "core/torch/record/overlap.h"
#include "core/torch/record/session.h"
#include "core/torch/record/value_tensor.h"

namespace backplane::record {

namespace {

constexpr std::array kAutocastDevices{at::kCPU, at::kCUDA, at::kPrivateUse1};

// Functionalize casts a result to the dtype of what is written. Operators refuse some casts, with
// out= most of them all.
void check_dtype_written(Session& session, const OperatorInfo& info, std::size_t call_count) {
  const std::vector<Call>& calls = session.tape.calls;
  for (std::size_t i = call_count; i < calls.size(); ++i) {
    if (calls[i].info->name != "aten._to_copy") continue;
    if (info.out_count > 0 && i + 1 == calls.size())
      session.refuse("the dtype of out= is not that of the result", Code::kEagerOnly);
    const TapeValue& result = session.tape.values[calls[i].operands[0]];
    if (result.origin != ValueOrigin::kResult || result.producer < call_count) continue;
    const at::ScalarType from = result.meta.scalar_type();
    const at::ScalarType to = session.tape.values[calls[i].results[0]].meta.scalar_type();
    if (!at::canCast(from, to))
      session.refuse(info.name + " writes " + c10::toString(from) + " into " + c10::toString(to));
  }
}

}  // namespace

ProgramTape::Switches ProgramTape::Switches::current() {
  Switches now;
  now.grad = at::GradMode::is_enabled();
  for (std::size_t i = 0; i < kAutocastDevices.size(); ++i)
    if (at::autocast::is_autocast_enabled(kAutocastDevices[i])) now.autocast |= 1U << i;
  if (now.autocast != 0)
    for (const at::DeviceType device : kAutocastDevices)
      now.dtypes.push_back(at::autocast::get_autocast_dtype(device));
  return now;
}

void ProgramTape::Switches::set() const {
  at::GradMode::set_enabled(grad);
  for (std::size_t i = 0; i < kAutocastDevices.size(); ++i) {
    at::autocast::set_autocast_enabled(kAutocastDevices[i], (autocast >> i & 1) != 0);
    if (autocast != 0) at::autocast::set_autocast_dtype(kAutocastDevices[i], dtypes[i]);
  }
}

void ProgramTape::refuse(std::string reason) {
  if (refusal_.empty()) refusal_ = std::move(reason);
}

ValueNumber ProgramTape::find(const at::Tensor& tensor) {
  const auto found = known_.find(tensor.unsafeGetTensorImpl());
  if (found != known_.end()) return found->second;
  const ValueTensor* const value = tensor.requires_grad() ? nullptr : find_wrapped_value(tensor);
  if (!value) return kNoValue;
  // Python's factories give the program a shallow copy of what the dispatcher gave.
  if (const auto same = by_value_.find(value->number()); same != by_value_.end()) {
    note(tensor, same->second);
    return same->second;
  }
  const auto with_history = by_value_with_history_.find(value->number());
  if (with_history == by_value_with_history_.end()) return kNoValue;
  Noted data;
  data.call.operands.push_back(with_history->second);
  data.call.results.push_back(value_count_);
  data.requires_grad.push_back(true);
  if (switches_.empty()) switches_.push_back(Switches::current());
  data.switches = static_cast<std::uint32_t>(switches_.size() - 1);
  calls_.push_back(std::move(data));
  return result(tensor);
}

void ProgramTape::note_value(const at::Tensor& tensor, ValueNumber number) {
  if (const ValueTensor* value = find_wrapped_value(tensor))
    (tensor.requires_grad() ? by_value_with_history_ : by_value_).emplace(value->number(), number);
}

void ProgramTape::note(const at::Tensor& tensor, ValueNumber number) {
  known_.emplace(tensor.unsafeGetTensorImpl(), number);
  pinned_.emplace_back(tensor.getIntrusivePtr());
}

ValueNumber ProgramTape::result(const at::Tensor& tensor) {
  if (!tensor.defined()) return kNoValue;
  const auto known = known_.find(tensor.unsafeGetTensorImpl());
  if (known != known_.end()) {
    note_value(tensor, known->second);  // written in place
    return known->second;
  }
  note(tensor, value_count_);
  note_value(tensor, value_count_);
  return value_count_++;
}

ValueNumber ProgramTape::operand(const at::Tensor& tensor, std::string_view reader) {
  if (!tensor.defined()) return kNoValue;
  if (const ValueNumber known = find(tensor); known != kNoValue) return known;
  // As Session::number_of: what the program itself makes from Python's data.
  const bool is_constant =
      !find_wrapped_value(tensor) && (reader == "aten.lift_fresh" || reader == "aten.lift" ||
                                      tensor.unsafeGetTensorImpl()->is_wrapped_number());
  if (!is_constant) {
    refuse(std::string(reader) + " reads a tensor that no operator of PyTorch has given");
    return kNoValue;
  }
  const ValueNumber number = result(tensor);
  constants_.emplace_back(number, tensor);
  return number;
}

void ProgramTape::add_input(const at::Tensor& real, const at::Tensor& given) {
  inputs_.push_back({result(given), real.sizes().vec(), real.strides().vec(), real.options(),
                     real.requires_grad()});
}

void ProgramTape::begin_call(const OperatorInfo& info, const torch::jit::Stack& stack) {
  in_call_ = true;
  if (!refusal_.empty()) return;
  Noted noted;
  const auto add = [&](const at::Tensor& tensor) {
    noted.call.operands.push_back(operand(tensor, info.name));
    noted.requires_grad.push_back(tensor.defined() && tensor.requires_grad());
  };
  noted.call.info = &info;
  noted.call.arguments.resize(info.argument_count());
  const std::size_t base = stack.size() - info.argument_count();
  for (std::size_t i = 0; i < info.argument_count(); ++i) {
    const c10::IValue& value = stack[base + i];
    switch (info.arguments[i]) {
      case ArgumentKind::kPlain:
        noted.call.arguments[i] = value;
        break;
      case ArgumentKind::kTensor:
        add(value.isTensor() ? value.toTensor() : at::Tensor());
        break;
      case ArgumentKind::kTensorList:
      case ArgumentKind::kOptionalTensorList: {
        std::uint32_t count = 0;
        if (value.isList())
          for (const c10::IValue& item : value.toListRef()) {
            add(item.isTensor() ? item.toTensor() : at::Tensor());
            ++count;
          }
        noted.call.list_counts.push_back(count);
        break;
      }
    }
  }
  Switches now = Switches::current();
  if (switches_.empty() || !(switches_.back() == now)) switches_.push_back(std::move(now));
  noted.switches = static_cast<std::uint32_t>(switches_.size() - 1);
  calls_.push_back(std::move(noted));
}

void ProgramTape::end_call(const torch::jit::Stack& stack) {
  in_call_ = false;
  if (!refusal_.empty()) return;
  Call& call = calls_.back().call;
  const std::size_t count = call.info->handle.schema().returns().size();
  for (std::size_t i = stack.size() - count; i < stack.size(); ++i) {
    if (stack[i].isTensor())
      call.results.push_back(result(stack[i].toTensor()));
    else if (stack[i].isTensorList())
      for (const at::Tensor& tensor : stack[i].toTensorVector())
        call.results.push_back(result(tensor));
  }
  if (call.results.empty() && !call.info->writes) calls_.pop_back();
}

void ProgramTape::leave_call() {
  if (std::exchange(in_call_, false) && refusal_.empty()) calls_.pop_back();
}

void ProgramTape::add_output(const at::Tensor& output, bool is_differentiable) {
  const ValueNumber known = output.defined() ? find(output) : kNoValue;
  if (known == kNoValue && is_differentiable)
    refuse("an output is a tensor that no operator of PyTorch has given");
  outputs_.push_back(known);
}

void ProgramTape::finish() {
  known_ = {};
  by_value_ = {};
  by_value_with_history_ = {};
  pinned_ = {};
  if (!refusal_.empty()) calls_.clear();
}

at::Tensor ProgramTape::stand_in(std::size_t input) const {
  const Input& like = inputs_[input];
  at::Tensor made = at::empty_strided(like.sizes, like.strides, like.options).zero_();
  return made.set_requires_grad(like.requires_grad);
}

Result<std::vector<at::Tensor>> ProgramTape::run(std::span<const at::Tensor> inputs) const {
  if (!refusal_.empty()) return Status(Code::kUnsupported, refusal_);
  struct KeptSwitches {
    const Switches before = Switches::current();
    ~KeptSwitches() {
      if (at::autocast::is_autocast_enabled(at::kCPU) || before.autocast != 0)
        at::autocast::clear_cache();
      before.set();
    }
  };
  const KeptSwitches kept;
  std::vector<at::Tensor> values(value_count_);
  for (std::size_t i = 0; i < inputs_.size(); ++i) values[inputs_[i].number] = inputs[i];
  for (const auto& [number, constant] : constants_) values[number] = constant;
  const auto value_of = [&](ValueNumber number) {
    return number == kNoValue ? at::Tensor() : values[number];
  };
  std::uint32_t switches = 0xffffffffU;
  for (const Noted& noted : calls_) {
    if (switches != noted.switches) switches_[switches = noted.switches].set();
    const Call& call = noted.call;
    for (std::size_t i = 0; i < call.operands.size(); ++i)
      if (const at::Tensor tensor = value_of(call.operands[i]);
          tensor.defined() && tensor.requires_grad() != noted.requires_grad[i])
        return Status(Code::kUnsupported,
                      (call.info ? call.info->name : ".data") +
                          " reads a tensor with a history that no operator of "
                          "PyTorch has given (a function with a backward of its own)");
    if (!call.info) {
      values[call.results.front()] = value_of(call.operands.front()).variable_data();
      continue;
    }
    torch::jit::Stack stack = make_stack(call, value_of);
    call.info->handle.callBoxed(stack);
    const std::vector<at::Tensor> results = take_results(stack);
    for (std::size_t i = 0; i < results.size() && i < call.results.size(); ++i)
      if (call.results[i] != kNoValue) values[call.results[i]] = results[i];
  }
  std::vector<at::Tensor> outputs;
  outputs.reserve(outputs_.size());
  for (const ValueNumber output : outputs_) outputs.push_back(value_of(output));
  return outputs;
}

void note_call(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
               torch::jit::Stack* stack) {
  const c10::DispatchKeySet next =
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kDecomposeKey);
  Session* const session = Session::current();
  if (!session) return handle.redispatchBoxed(next, stack);
  const OperatorInfo& info = operator_info(handle);
  if (std::string overlap = find_overlap(info, *stack); !overlap.empty())
    session->refuse(std::move(overlap), Code::kEagerOnly);
  if (std::string turned = find_turned_beside_views(info, *stack); !turned.empty())
    session->refuse(std::move(turned), Code::kEagerOnly);
  if (std::string moved = find_moved(*session, info, *stack); !moved.empty())
    session->refuse(std::move(moved), Code::kEagerOnly);
  const SizesOfOuts outs(info, *stack);
  const Layouts layouts(info, *stack);
  const std::size_t call_count = session->tape.calls.size();
  const auto call = [&] {
    handle.redispatchBoxed(next, stack);
    layouts.note_moves(*session);
    if (std::string resized = outs.find_resized(); !resized.empty())
      session->refuse(std::move(resized), Code::kEagerOnly);
    if (info.refuses_casts) check_dtype_written(*session, info, call_count);
  };
  ProgramTape* const tape = session->in_backward ? nullptr : session->program.get();
  if (!tape || tape->is_in_call()) return call();
  struct InCall {
    ProgramTape& tape;
    ~InCall() { tape.leave_call(); }
  };
  const InCall in_call{*tape};
  tape->begin_call(info, *stack);
  call();
  tape->end_call(*stack);
}

}  // namespace backplane::record
