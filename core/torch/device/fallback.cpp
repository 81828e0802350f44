#include "core/torch/device/fallback.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/native/CPUFallback.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/torch/device/copy.h"
#include "core/torch/device/counters.h"
#include "core/torch/device/generator.h"
#include "core/torch/device/memory.h"
#include "core/torch/device/refusals.h"
#include "core/torch/device/written.h"
#include "core/torch/record/operator_info.h"

namespace backplane::device {

namespace {

using torch::jit::Stack;

std::string name_of(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

template <class Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector())
      if (tensor.defined()) visit(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef())
      if (item.isTensor() && item.toTensor().defined()) visit(item.toTensor());
  }
}

c10::DeviceIndex index_of(const Stack& stack, std::size_t base) {
  c10::DeviceIndex index = -1;
  for (std::size_t i = base; i < stack.size() && index < 0; ++i) {
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) {
      if (is_on_device(tensor)) index = tensor.device().index();
    });
    if (stack[i].isDevice() && stack[i].toDevice().type() == kDeviceType)
      index = stack[i].toDevice().index();
  }
  return index < 0 ? current_device() : index;
}

// Whether the first operand is a number of the CPU's beside tensors of the device, as in 1 - x:
// PyTorch's own fallback takes its place for that of the results.
bool begins_with_number(const c10::OperatorHandle& op, const Stack& stack) {
  if (record::device_mix(op.schema().name()) != record::DeviceMix::kNone) return false;
  const std::size_t base = stack.size() - op.schema().arguments().size();
  bool is_first = true, begins = false, is_mixed = false;
  for (std::size_t i = base; i < stack.size(); ++i)
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) {
      if (std::exchange(is_first, false)) begins = tensor.device().is_cpu();
      is_mixed = is_mixed || is_on_device(tensor);
    });
  return begins && is_mixed;
}

void bring_results(const c10::OperatorHandle& op, Stack& stack, const at::Device& device) {
  const std::size_t count = op.schema().returns().size();
  for (std::size_t i = stack.size() - count; i < stack.size(); ++i)
    if (stack[i].isTensor() && stack[i].toTensor().defined() && stack[i].toTensor().is_cpu())
      stack[i] = stack[i].toTensor().to(device);
}

// The CPU's kernels draw from a CPU generator: that of the device, so that torch.manual_seed and
// the states of the two stay apart.
void replace_generator(const c10::OperatorHandle& op, Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const std::size_t base = stack.size() - arguments.size();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() != "generator") continue;
    c10::IValue& value = stack[base + i];
    if (value.isNone()) {
      value = host_generator(default_generator(index_of(stack, base)));
      continue;
    }
    const at::Generator given = value.toGenerator();
    TORCH_CHECK(given.device().type() == kDeviceType,
                "Expected a 'backplane' device type for generator but found '",
                given.device().type(), "'");
    value = host_generator(given);
  }
}

// The CPU's histc takes no integers, those of accelerators do, and programs count on that. Counts
// and borders are exact in doubles up to 2^53. The type of the results, where it was another.
std::optional<at::ScalarType> widen_counted(const c10::OperatorHandle& op, Stack& stack) {
  if (name_of(op) != "aten::histc") return std::nullopt;
  c10::IValue& counted = stack[stack.size() - op.schema().arguments().size()];
  const at::ScalarType type = counted.toTensor().scalar_type();
  if (!at::isIntegralType(type, /*includeBool=*/false)) return std::nullopt;
  counted = counted.toTensor().to(at::kDouble);
  return type;
}

// Writes every element of its one tensor and reads none: uniform_, normal_, bernoulli_ with a
// number.
bool fills(const c10::OperatorHandle& op) {
  const record::OperatorInfo& info = record::operator_info(op);
  const auto tensors = std::ranges::count_if(info.arguments, [](record::ArgumentKind kind) {
    return kind != record::ArgumentKind::kPlain;
  });
  return info.is_random && info.writes && info.out_count == 0 && tensors == 1;
}

void fill_from_cpu(const c10::OperatorHandle& op, Stack& stack) {
  const std::size_t base = stack.size() - op.schema().arguments().size();
  const at::Tensor target = stack[base].toTensor();
  const std::vector<std::int64_t> strides =
      at::infer_dense_strides(target.sizes(), target.strides());
  const at::Tensor host =
      at::detail::empty_strided_cpu(target.sizes(), strides, target.scalar_type());
  stack[base] = host;
  op.callBoxed(&stack);
  copy_from(host, target, /*non_blocking=*/false);
  stack.back() = target;
}

// Of what is written, and of where numbers are drawn: neither is on the host.
void check_targets(const c10::OperatorHandle& op, const Stack& stack) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  const std::size_t base = stack.size() - arguments.size();
  at::Tensor beside, written;
  bool is_asked_for = false, has_generator = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = stack[base + i];
    is_asked_for = is_asked_for || (value.isDevice() && !value.toDevice().is_cpu());
    has_generator = has_generator || (arguments[i].name() == "generator" && !value.isNone() &&
                                      !value.toGenerator().device().is_cpu());
    const bool is_written = arguments[i].alias_info() && arguments[i].alias_info()->isWrite();
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (!tensor.device().is_cpu())
        beside = tensor;
      else if (is_written)
        written = tensor;
    });
  }
  TORCH_CHECK(!written.defined() || !beside.defined(),
              "Expected all tensors to be on the same device, but found at least two devices, cpu "
              "and ",
              beside.device(), "! (in ", op.schema().name(), ")");
  TORCH_CHECK(!has_generator || beside.defined() || is_asked_for,
              "Expected a 'cpu' device type for generator but found '",
              c10::DeviceTypeName(kDeviceType, /*lower_case=*/true), "'");
}

// A tensor that is indexed from another device: PyTorch's own fallback would take the index to the
// host, and say nothing.
void check_indices(const c10::OperatorHandle& op, const Stack& stack) {
  const std::size_t base = stack.size() - op.schema().arguments().size();
  const at::Device indexed = stack[base].toTensor().device();
  for_each_tensor(stack[base + 1], [&](const at::Tensor& index) {
    TORCH_CHECK(index.device().is_cpu() || index.device() == indexed,
                "indices should be either on cpu or on the same device as the indexed tensor (",
                indexed, ")");
  });
}

// What is put at indices follows the tensor that it is put into, but for a number.
void check_values(const c10::OperatorHandle& op, const Stack& stack) {
  const std::size_t count = op.schema().arguments().size();
  if (count < 3) return;
  const std::size_t base = stack.size() - count;
  const at::Tensor& values = stack[base + 2].toTensor();
  const at::Device device = stack[base].toTensor().device();
  TORCH_CHECK(values.device() == device || (values.dim() == 0 && values.device().is_cpu()),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              device, " and ", values.device(), "! (in ", op.schema().name(), ")");
}

}  // namespace

void check_devices(const c10::OperatorHandle& op, const Stack& stack) {
  const std::string& name = op.schema().name();
  const record::DeviceMix mix = record::device_mix(name);
  if (mix == record::DeviceMix::kIndices) {
    check_indices(op, stack);
    check_values(op, stack);
  }
  if (mix != record::DeviceMix::kAny) check_targets(op, stack);
  if (mix != record::DeviceMix::kNone) return;
  const std::size_t base = stack.size() - op.schema().arguments().size();
  at::Tensor first;
  for (std::size_t i = base; i < stack.size(); ++i)
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) {
      if (tensor.dim() == 0 && tensor.device().is_cpu()) return;
      if (!first.defined()) first = tensor;
      TORCH_CHECK(tensor.device() == first.device(),
                  "Expected all tensors to be on the same device, but found at least two devices, ",
                  first.device(), " and ", tensor.device(), "! (in ", name, ")");
    });
}

void run_on_cpu(const c10::OperatorHandle& op, Stack* stack, std::string_view reason) {
  check_devices(op, *stack);
  check_overlap(op, *stack);
  count_fallback(name_of(op), reason);
  replace_generator(op, *stack);
  const CauseScope cause(runtime::CopyCause::kFallback);
  const at::Device device(kDeviceType,
                          index_of(*stack, stack->size() - op.schema().arguments().size()));
  if (writes_element_twice(op, *stack)) {
    run_as_it_lies(op, *stack);
    return bring_results(op, *stack, device);
  }
  if (fills(op)) return fill_from_cpu(op, *stack);
  const std::optional<at::ScalarType> counted = widen_counted(op, *stack);
  if (!begins_with_number(op, *stack)) {
    at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
    if (counted) stack->back() = stack->back().toTensor().to(*counted);
    return;
  }
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
  bring_results(op, *stack, device);
}

void run_unknown_on_cpu(const c10::OperatorHandle& op, Stack* stack) {
  run_on_cpu(op, stack, "no kernel for the device");
}

}  // namespace backplane::device
