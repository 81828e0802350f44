#include "core/torch/device/fallback.h"

#include <ATen/native/CPUFallback.h>

#include <algorithm>
#include <array>
#include <string>

#include "core/torch/device/counters.h"
#include "core/torch/device/generator.h"
#include "core/torch/device/memory.h"

namespace backplane::device {

namespace {

using torch::jit::Stack;

std::string name_of(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

// CPU indices may select from a tensor of any device.
bool takes_host_indices(std::string_view name) {
  constexpr std::array kNames{"aten::index",
                              "aten::index_put",
                              "aten::index_put_",
                              "aten::_index_put_impl",
                              "aten::_index_put_impl_",
                              "aten::_unsafe_index",
                              "aten::_unsafe_index_put"};
  return std::ranges::any_of(kNames, [&](const char* one) { return name == one; });
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

// The CPU's kernels draw from a CPU generator: that of the device, so that torch.manual_seed and
// the states of the two stay apart.
void replace_generator(const c10::OperatorHandle& op, Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const std::size_t base = stack.size() - arguments.size();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() != "generator") continue;
    c10::IValue& value = stack[base + i];
    value = host_generator(value.isNone() ? default_generator(index_of(stack, base))
                                          : value.toGenerator());
  }
}

}  // namespace

void check_devices(const c10::OperatorHandle& op, const Stack& stack) {
  const std::string& name = op.schema().name();
  // Steps of optimizers are kept on the CPU beside parameters of any device.
  if (takes_host_indices(name) || name.starts_with("aten::_fused_") ||
      name.starts_with("aten::_foreach_"))
    return;
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
  count_fallback(name_of(op), reason);
  replace_generator(op, *stack);
  const CauseScope cause(runtime::CopyCause::kFallback);
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}

void run_unknown_on_cpu(const c10::OperatorHandle& op, Stack* stack) {
  run_on_cpu(op, stack, "no kernel for the device");
}

}  // namespace backplane::device
