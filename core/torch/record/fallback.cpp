#include "core/torch/record/fallback.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>

#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/torch/record/dispatch.h"
#include "core/torch/record/operand_fit.h"
#include "core/torch/record/operands.h"
#include "core/torch/record/operator_info.h"
#include "core/torch/record/session.h"
#include "core/torch/record/shape.h"

namespace backplane::record {

namespace {

using c10::IValue;

// One call on its way to the tape.
class Recorder {
 public:
  Recorder(Session& session, const OperatorInfo& info, torch::jit::Stack& stack)
      : session_(session),
        info_(info),
        stack_(stack),
        base_(stack.size() - info.argument_count()) {}

  void run() {
    const BelowRecording below;
    if (is_scratch()) {
      info_.handle.callBoxed(&stack_);
      return;
    }
    if (info_.depends_on_values && !is_plain_index()) return run_on_values();
    check();
    check_operands();
    if (info_.is_identity) return pass_through();
    convert_arguments();
    const ShapeSource source = run_shape(info_, stack_);
    count(source);
    wrap_results();
  }

 private:
  template <class Visit>
  void for_each_tensor(const Visit& visit) {
    for_each_operand(info_, stack_, base_, [&](const at::Tensor& tensor, bool) { visit(tensor); });
  }

  // Functionalize tries each in-place operator on meta tensors of its own first, to raise errors.
  bool is_scratch() {
    bool meta = false, value = false;
    for_each_tensor([&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      if (find_value(tensor))
        value = true;
      else if (tensor.is_meta())
        meta = true;
    });
    return meta && !value;
  }

  // Indexing gives a shape that depends on values with a mask alone.
  bool is_plain_index() {
    if (info_.name != "aten.index.Tensor") return false;
    bool has_mask = false;
    std::size_t position = 0;
    for_each_tensor([&](const at::Tensor& tensor) {
      has_mask =
          has_mask || (position++ > 0 && tensor.defined() &&
                       (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte));
    });
    return !has_mask;
  }

  void check() {
    if (info_.writes) session_.refuse(info_.name + " writes a tensor in place");
    if (info_.is_opaque ||
        (info_.sparse_argument >= 0 &&
         stack_[base_ + static_cast<std::size_t>(info_.sparse_argument)].toBool()))
      session_.refuse(info_.name + " gives a sparse or opaque tensor");
    if (info_.asks_for_memory)
      session_.refuse(info_.name + " asks for the memory of a tensor", Code::kEagerOnly);
    if (info_.generator_argument >= 0 &&
        !stack_[base_ + static_cast<std::size_t>(info_.generator_argument)].isNone())
      session_.refuse(info_.name + " draws from a generator of its own");
    // A graph says nothing of what kernels call inside.
    if (info_.casts_inside && at::autocast::is_autocast_enabled(at::kCPU))
      session_.refuse(info_.name + " computes in the precision of autocast inside");
    // What a checkpoint recomputes in the backward must draw the forward's numbers once more, which
    // a graph cannot say.
    if (info_.is_random && session_.in_backward)
      session_.refuse(info_.name + " draws random numbers in the backward");
  }

  // Gradients that autograd's engine computes have the shapes that its formulas give them. Those
  // that the program asks for itself may have others, of which plugins know nothing.
  void check_operands() {
    if (info_.fit) {
      static const auto& expand = *new c10::OperatorHandle(
          c10::Dispatcher::singleton().findSchemaOrThrow("aten::expand", ""));
      Operands operands(info_, stack_, [](const IValue& tensor, c10::IntArrayRef sizes) {
        torch::jit::Stack call{tensor, sizes, /*implicit=*/false};
        record_call(expand, {}, &call);
        return call.back();
      });
      return info_.fit(operands);
    }
    if (info_.leaves_shapes_to_autograd && !session_.in_backward &&
        !torch::autograd::get_current_node())
      session_.refuse(info_.name + " is called by the program itself");
  }

  // Numbers or shapes that come from values are known where the values are.
  void run_on_values() {
    const auto evaluate = [&](const at::Tensor& tensor) -> at::Tensor {
      if (!tensor.defined()) return tensor;
      std::optional<at::Tensor> value = session_.evaluate(session_.number_of(tensor, info_.name));
      if (!value)
        session_.refuse(info_.name + " needs the values of a tensor that depends on inputs");
      return *value;
    };
    for (std::size_t i = 0; i < info_.argument_count(); ++i) {
      IValue& value = stack_[base_ + i];
      if (value.isTensor()) {
        value = evaluate(value.toTensor());
      } else if (info_.arguments[i] != ArgumentKind::kPlain && !value.isNone()) {
        session_.refuse(info_.name + " needs the values of a list of tensors");
      }
    }
    info_.handle.callBoxed(&stack_);
    for (std::size_t i = base_; i < stack_.size(); ++i)
      if (stack_[i].isTensor() && stack_[i].toTensor().defined())
        stack_[i] = session_.wrap(session_.add_constant(stack_[i].toTensor()));
  }

  // The same value under a new tensor.
  void pass_through() {
    const ValueNumber number = session_.number_of(stack_[base_].toTensor(), info_.name);
    stack_.resize(base_);
    stack_.emplace_back(session_.wrap(number));
  }

  at::Tensor convert(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      call_.operands.push_back(kNoValue);
      return tensor;
    }
    const ValueNumber number = session_.number_of(tensor, info_.name);
    call_.operands.push_back(number);
    const TapeValue& value = session_.tape.values[number];
    constant_ = constant_ && value.is_constant;
    see_device(value);
    return value.meta;
  }

  // As PyTorch does, which raises where this refuses.
  void see_device(const TapeValue& value) {
    const bool is_host_scalar = value.meta.dim() == 0 && value.device.is_cpu();
    const bool first_decides = info_.device_mix != DeviceMix::kNone;
    if (!device_ || (device_is_of_host_scalar_ && !is_host_scalar && !first_decides)) {
      device_ = value.device;
      device_is_of_host_scalar_ = is_host_scalar;
      return;
    }
    if (is_host_scalar || value.device == *device_ || info_.device_mix == DeviceMix::kAny) return;
    if (info_.device_mix == DeviceMix::kIndices && value.device.is_cpu()) return;
    session_.refuse(info_.name + " reads tensors of two devices, " + device_->str() + " and " +
                    value.device.str());
  }

  // To meta tensors on the stack, and to the call as it will be on the tape.
  void convert_arguments() {
    call_.info = &info_;
    call_.arguments.resize(info_.argument_count());
    for (std::size_t i = 0; i < info_.argument_count(); ++i) {
      IValue& value = stack_[base_ + i];
      switch (info_.arguments[i]) {
        case ArgumentKind::kTensor:
          if (value.isTensor())
            value = convert(value.toTensor());
          else
            call_.operands.push_back(kNoValue);
          break;
        case ArgumentKind::kTensorList:
          if (value.isTensorList()) {
            c10::List<at::Tensor> metas;
            for (const at::Tensor& tensor : value.toTensorVector())
              metas.push_back(convert(tensor));
            call_.list_counts.push_back(static_cast<std::uint32_t>(metas.size()));
            value = std::move(metas);
          } else {
            call_.list_counts.push_back(0);
          }
          break;
        case ArgumentKind::kOptionalTensorList: {
          c10::List<std::optional<at::Tensor>> metas;
          if (value.isList())
            for (const IValue& item : value.toListRef())
              metas.push_back(convert(item.isTensor() ? item.toTensor() : at::Tensor()));
          call_.list_counts.push_back(static_cast<std::uint32_t>(metas.size()));
          value = std::move(metas);
          break;
        }
        case ArgumentKind::kPlain:
          call_.arguments[i] = value;
          break;
      }
    }
    move_to_meta();
  }

  // The tape keeps the real device of a factory; shapes are found on the meta device.
  void move_to_meta() {
    if (info_.device_argument < 0) return;
    IValue& device = stack_[base_ + static_cast<std::size_t>(info_.device_argument)];
    if (device.isDevice()) device_ = with_index(device.toDevice());
    if (device.isDevice() || !device_) device = c10::Device(c10::kMeta);
  }

  // "backplane" alone is the current one.
  static c10::Device with_index(c10::Device device) {
    if (device.is_cpu() || device.has_index()) return device;
    return c10::impl::VirtualGuardImpl(device.type()).getDevice();
  }

  void count(ShapeSource source) {
    switch (source) {
      case ShapeSource::kCompiled:
        ++session_.shapes.compiled;
        break;
      case ShapeSource::kPython:
        ++session_.shapes.python;
        session_.python_shapes.insert(&info_);
        break;
      case ShapeSource::kRunOnZeros:
        ++session_.shapes.run_on_zeros;
        break;
    }
  }

  at::Tensor wrap(const at::Tensor& meta) {
    if (!meta.defined()) {
      call_.results.push_back(kNoValue);
      return meta;
    }
    const ValueNumber number =
        session_.add_value(meta, device_.value_or(c10::Device(c10::kCPU)), ValueOrigin::kResult);
    TapeValue& value = session_.tape.values[number];
    value.producer = static_cast<std::uint32_t>(session_.tape.calls.size());
    value.is_constant = constant_ && !info_.is_random;
    call_.results.push_back(number);
    return session_.wrap(number);
  }

  void wrap_results() {
    const std::size_t count = info_.handle.schema().returns().size();
    for (std::size_t i = stack_.size() - count; i < stack_.size(); ++i) {
      IValue& value = stack_[i];
      if (value.isTensor()) {
        value = wrap(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(wrap(tensor));
        value = std::move(list);
      }
    }
    // Numbers that follow from shapes are in no graph.
    if (call_.results.empty() && count > 0) return;
    call_.location = session_.find_location();
    if (session_.in_backward) call_.made_by = torch::autograd::get_current_node().get();
    session_.tape.calls.push_back(std::move(call_));
  }

  Session& session_;
  const OperatorInfo& info_;
  torch::jit::Stack& stack_;
  const std::size_t base_;
  Call call_;
  std::optional<c10::Device> device_;
  bool device_is_of_host_scalar_ = false;
  bool constant_ = true;
};

}  // namespace

Code code_of(const c10::Error& error) {
  return dynamic_cast<const c10::NotImplementedError*>(&error) ? Code::kUnsupported
                                                               : Code::kProgramError;
}

void record_call(const c10::OperatorHandle& handle, c10::DispatchKeySet /*keys*/,
                 torch::jit::Stack* stack) {
  const OperatorInfo& called = operator_info(handle);
  if (is_in_shape()) return shape_call(called, *stack);
  const OperatorInfo& info = called.recorded_as();
  Session* session = Session::current();
  if (!session) throw Refusal(info.name + " reads a tensor whose recording has ended");
  session->reads_offsets = session->reads_offsets || info.reads_offset;
  // Decomposes back into this function: the Meta entry of such an operator is its one kernel.
  if (info.is_composite)
    return info.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
  try {
    Recorder(*session, info, *stack).run();
  } catch (const c10::Error& error) {
    session->note_error(error.what_without_backtrace(), code_of(error));
    throw;
  } catch (const std::exception& error) {
    session->note_error(error.what());
    throw;
  }
}

}  // namespace backplane::record
