#include "core/torch/device/nested.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/detach_native.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/torch/device/copy.h"
#include "core/torch/device/counters.h"
#include "core/torch/device/fallback.h"
#include "core/torch/device/memory.h"

namespace backplane::device {

namespace {

using c10::IValue;
using torch::jit::Stack;

at::Tensor values_of(const at::Tensor& nested) {
  return at::native::get_nested_tensor_impl(nested)->get_unsafe_storage_as_tensor();
}
// The same pieces over other memory. Sizes, strides and starts are on the CPU always.
at::Tensor with_values(const at::Tensor& nested, const at::Tensor& values) {
  const at::native::NestedTensorImpl* like = at::native::get_nested_tensor_impl(nested);
  return at::detail::make_tensor<at::native::NestedTensorImpl>(
      values, like->get_nested_sizes(), like->get_nested_strides(), like->get_storage_offsets());
}

at::Tensor to_host(const at::Tensor& tensor) {
  if (!is_on_device(tensor)) return tensor;
  return tensor.is_nested() ? with_values(tensor, download(values_of(tensor))) : download(tensor);
}

at::Tensor to_device(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || is_on_device(tensor)) return tensor;
  const auto upload = [&](const at::Tensor& host) {
    const at::Tensor there =
        make_empty(device_at(device.index()), host.sizes(), host.strides(), host.scalar_type());
    copy_from(host, there, /*non_blocking=*/false);
    return there;
  };
  if (tensor.is_nested()) return with_values(tensor, upload(values_of(tensor)));
  return upload(tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous());
}

void copy_back(const at::Tensor& host, const at::Tensor& target) {
  if (target.is_nested())
    copy_from(values_of(host), values_of(target), /*non_blocking=*/false);
  else
    copy_from(host, target, /*non_blocking=*/false);
}

// Arguments on the host, and what is to be written back.
struct HostCall {
  std::vector<std::pair<at::Tensor, at::Tensor>> written;  // on the host, on the device
  std::optional<c10::Device> target;                       // of results

  IValue value_of(const IValue& value, bool is_written) {
    if (value.isTensor() && value.toTensor().defined())
      return tensor_of(value.toTensor(), is_written);
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector())
        list.push_back(tensor_of(tensor, is_written));
      return list;
    }
    return value;
  }
  at::Tensor tensor_of(const at::Tensor& tensor, bool is_written) {
    if (!is_on_device(tensor)) return tensor;
    if (!target) target = tensor.device();
    at::Tensor host = to_host(tensor);
    if (is_written) written.emplace_back(host, tensor);
    return host;
  }
};

void run_nested_on_cpu(const c10::OperatorHandle& op, Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const auto is_view = [](const c10::Argument& result) {
    return result.alias_info() && !result.alias_info()->isWrite();
  };
  TORCH_CHECK_NOT_IMPLEMENTED(std::ranges::none_of(schema.returns(), is_view), schema.name(),
                              " is a view, which nested tensors on the backplane device do not "
                              "have; move the tensor to the "
                              "CPU first");
  check_devices(op, *stack);
  count_fallback(schema.name(), "nested tensors run on the CPU");
  const CauseScope cause(runtime::CopyCause::kFallback);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const std::size_t base = stack->size() - schema.arguments().size();
  HostCall call;
  for (std::size_t i = base; i < stack->size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i - base];
    IValue& value = (*stack)[i];
    if (value.isDevice()) {
      call.target = value.toDevice();
      value = c10::Device(c10::kCPU);
    } else {
      value = call.value_of(value, argument.alias_info() && argument.alias_info()->isWrite());
    }
  }
  op.callBoxed(stack);
  for (const auto& [host, target] : call.written) copy_back(host, target);
  if (!call.target || call.target->type() != kDeviceType) return;
  for (std::size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    IValue& value = (*stack)[i];
    if (!value.isTensor()) continue;
    const at::Tensor result = value.toTensor();
    const auto own = std::ranges::find_if(
        call.written, [&](const auto& one) { return one.first.is_same(result); });
    value = own != call.written.end() ? own->second : to_device(result, *call.target);
  }
}

}  // namespace

void register_nested() {
  static auto& fallback = *new torch::Library(
      torch::Library::IMPL, "_", c10::DispatchKey::NestedTensorPrivateUse1, __FILE__, __LINE__);
  fallback.fallback(torch::CppFunction::makeFromBoxedFunction<&run_nested_on_cpu>());
  static auto& kernels = *new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::NestedTensorPrivateUse1, __FILE__, __LINE__);
  kernels.impl("alias", TORCH_FN(at::native::alias_nested));
  kernels.impl("detach", TORCH_FN(at::native::detach));
}

}  // namespace backplane::device
