#include "core/torch/record/replay.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include <utility>

#include "core/ir/text.h"
#include "core/torch/bridge/aten_node.h"
#include "core/torch/bridge/dtype.h"

namespace backplane::record {

namespace {

bool has_shape(const at::Tensor& tensor, const ir::TensorType& type) {
  if (tensor.scalar_type() != bridge::to_scalar_type(type.dtype) ||
      tensor.dim() != static_cast<std::int64_t>(type.rank()))
    return false;
  for (std::size_t d = 0; d < type.rank(); ++d)
    if (tensor.size(static_cast<std::int64_t>(d)) != type.dims[d].number()) return false;
  return true;
}

bool has_strides(const at::Tensor& tensor, const ir::TensorType& type) {
  if (tensor.numel() == 0) return true;
  for (std::size_t d = 0; d < type.rank(); ++d) {
    const auto dim = static_cast<std::int64_t>(d);
    if (tensor.size(dim) > 1 && tensor.stride(dim) != type.strides[d].number()) return false;
  }
  return true;
}

at::Tensor laid_out(const at::Tensor& tensor, const ir::TensorType& type) {
  std::vector<std::int64_t> strides;
  for (const ir::Dim stride : type.strides) strides.push_back(stride.number());
  return at::empty_strided(tensor.sizes(), strides, tensor.options()).copy_(tensor);
}

// The same memory with offset zero: attributes of the IR count from a tensor's own start.
at::Tensor rebased(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.storage_offset() == 0) return tensor;
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), [tensor](void*) {}, tensor.options());
}

}  // namespace

Result<Replayed> replay(const ir::Graph& graph, std::span<const at::Tensor> constants,
                        std::span<const at::Tensor> inputs) {
  if (inputs.size() != graph.inputs.size())
    return Status(Code::kInvalidArgument, "The graph has " + std::to_string(graph.inputs.size()) +
                                              " inputs, " + std::to_string(inputs.size()) +
                                              " were given.");
  const at::AutoDispatchBelowADInplaceOrView below;
  std::vector<at::Tensor> values(constants.begin(), constants.end());
  values.resize(graph.values.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const ir::TensorType& type = graph.values[graph.inputs[i]].type;
    if (!has_shape(inputs[i], type))
      return Status(Code::kInvalidArgument, "Input " + std::to_string(i) +
                                                " has another dtype or shape than the graph was "
                                                "recorded for.");
    values[graph.inputs[i]] = has_strides(inputs[i], type) ? inputs[i] : laid_out(inputs[i], type);
  }
  std::vector<std::size_t> last_use(graph.values.size(), 0);
  for (ir::NodeId n = 0; n < graph.nodes.size(); ++n)
    for (const ir::ValueId operand : graph.nodes[n].operands)
      if (operand != ir::kNone) last_use[operand] = n;
  for (const ir::ValueId output : graph.outputs) last_use[output] = graph.nodes.size();

  Replayed out;
  for (ir::NodeId n = 0; n < graph.nodes.size(); ++n) {
    const ir::Node& node = graph.nodes[n];
    BP_ASSIGN_OR_RETURN(const bridge::AtenNode runner, bridge::AtenNode::prepare(node));
    const bool counts_offset = node.op->name.starts_with("aten.as_strided");
    std::vector<at::Tensor> operands;
    operands.reserve(node.operands.size());
    for (const ir::ValueId operand : node.operands) {
      const at::Tensor tensor = operand == ir::kNone ? at::Tensor() : values[operand];
      operands.push_back(counts_offset ? rebased(tensor) : tensor);
    }
    std::vector<at::Tensor> results = runner.run(operands, {});
    bool same_shape = true, same_strides = true;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const ir::TensorType& type = graph.values[node.results[i]].type;
      at::Tensor& result = values[node.results[i]] = std::move(results[i]);
      if (!result.defined()) continue;
      const bool has_same_shape = has_shape(result, type);
      same_shape = same_shape && has_same_shape;
      if (!has_same_shape || has_strides(result, type)) continue;
      same_strides = false;
      result = laid_out(result, type);
    }
    if (!same_shape) out.differences.push_back(ir::print_node(graph, n));
    if (!same_strides) out.restrided.push_back(ir::print_node(graph, n));
    for (const ir::ValueId operand : node.operands)
      if (operand != ir::kNone && last_use[operand] == n &&
          graph.values[operand].kind == ir::ValueKind::kResult)
        values[operand] = at::Tensor();
  }
  for (const ir::ValueId output : graph.outputs) out.outputs.push_back(values[output]);
  return out;
}

}  // namespace backplane::record
