#include "core/torch/compiler/function_plan.h"

#include <ATen/ATen.h>

#include <utility>

#include "core/ir/view.h"
#include "core/torch/bridge/dtype.h"
#include "core/torch/device/memory.h"

namespace backplane::compiler {

bool Layout::has_strides(const at::Tensor& tensor) const {
  for (std::size_t i = 0; i < strides.size(); ++i)
    if (dims[i] > 1 && tensor.stride(static_cast<std::int64_t>(i)) != strides[i]) return false;
  return true;
}

Layout layout_of(const ir::TensorType& type, std::span<const std::int64_t> classes) {
  return {ir::resolve(type.dims, classes), ir::resolve(type.strides, classes),
          bridge::to_scalar_type(type.dtype)};
}

at::Tensor make_tensor(const Layout& layout, device::TorchDevice* device) {
  return device::make_empty(device != nullptr ? device->torch_device() : c10::Device(c10::kCPU),
                            layout.dims, layout.strides, layout.dtype);
}

at::Tensor View::of(const at::Tensor& root_tensor) const {
  if (is_root) return root_tensor;
  const auto item_bytes = static_cast<std::int64_t>(c10::elementSize(layout.dtype));
  const std::int64_t bytes =
      root_tensor.storage_offset() * static_cast<std::int64_t>(root_tensor.element_size()) +
      offset_bytes;
  // A hidden device has no operators in the dispatcher.
  if (device::is_resident(root_tensor))
    return device::over_memory(root_tensor, layout.dims, layout.strides, bytes / item_bytes,
                               layout.dtype);
  if (root_tensor.scalar_type() == layout.dtype)
    return root_tensor.as_strided(layout.dims, layout.strides, bytes / item_bytes);
  // Another element type over the same memory.
  at::Tensor out = at::empty({0}, root_tensor.options().dtype(layout.dtype));
  out.set_(root_tensor.storage(), bytes / item_bytes, layout.dims, layout.strides);
  return out;
}

View view_of(const ir::Graph& graph, ir::ValueId value, std::span<const std::int64_t> classes) {
  View view;
  view.root = ir::view_root(graph, value);
  view.is_root = view.root == value;
  if (view.is_root) return view;
  view.layout = layout_of(graph.values[value].type, classes);
  view.offset_bytes = ir::view_offset_bytes(graph, value, classes);
  return view;
}

Result<std::shared_ptr<const FunctionPlan>> FunctionPlan::make(
    const runtime::CompiledGraph& compiled, std::span<const std::span<const std::int64_t>> inputs,
    std::span<const std::int64_t> sizes) {
  const ir::Graph& graph = compiled.graph();
  std::vector<std::int64_t> classes(graph.dim_classes.size());
  BP_RETURN_IF_ERROR(compiled.dim_program().evaluate(inputs, sizes, classes));
  auto made = std::make_shared<FunctionPlan>();
  made->sizes.assign(sizes.begin(), sizes.end());
  BP_ASSIGN_OR_RETURN(made->graph, compiled.plan(classes));
  for (const ir::ValueId input : graph.inputs)
    made->inputs.push_back(layout_of(graph.values[input].type, classes));
  for (const runtime::CompiledGraph::Export& one : compiled.exports())
    made->exports.push_back(layout_of(graph.values[one.root].type, classes));
  for (const ir::ValueId output : graph.outputs)
    made->outputs.push_back(view_of(graph, output, classes));
  return std::shared_ptr<const FunctionPlan>(std::move(made));
}

}  // namespace backplane::compiler
