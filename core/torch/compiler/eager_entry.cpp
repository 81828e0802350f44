#include "core/torch/compiler/eager_entry.h"

#include <ATen/ops/empty_strided.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace backplane::compiler {

Result<std::shared_ptr<EagerEntry>> EagerEntry::compile(record::Recorded recorded) {
  std::shared_ptr<EagerEntry> entry(new EagerEntry(std::move(recorded)));
  const ir::Graph& graph = entry->recorded_.graph;
  ir::Graph classes;
  classes.dim_classes = graph.dim_classes;
  std::vector<std::string> free;
  for (const ir::DimClass& c : graph.dim_classes)
    if (c.expression.empty()) free.push_back(c.name);
  BP_ASSIGN_OR_RETURN(entry->dims_, ir::DimProgram::build(classes, free));
  std::vector<ir::NodeId> last(graph.values.size(), ir::kNone);
  for (ir::NodeId n = 0; n < graph.nodes.size(); ++n) {
    const ir::Node& node = graph.nodes[n];
    BP_ASSIGN_OR_RETURN(bridge::AtenNode prepared, bridge::AtenNode::prepare(node));
    entry->nodes_.push_back(std::move(prepared));
    for (const ir::ValueId operand : node.operands)
      if (operand != ir::kNone && graph.values[operand].kind == ir::ValueKind::kResult)
        last[operand] = n;
  }
  for (const ir::ValueId output : graph.outputs) last[output] = ir::kNone;
  entry->last_read_.resize(graph.nodes.size());
  for (ir::ValueId v = 0; v < last.size(); ++v)
    if (last[v] != ir::kNone) entry->last_read_[last[v]].push_back(v);
  entry->signature = signature_of(entry->recorded_, graph);
  entry->signature.outputs_have_history = true;
  return entry;
}

Result<std::vector<at::Tensor>> EagerEntry::forward(std::vector<at::Tensor> inputs,
                                                    const autograd::SizeRecord& sizes) {
  const ir::Graph& graph = recorded_.graph;
  std::vector<std::int64_t> classes(graph.dim_classes.size());
  BP_RETURN_IF_ERROR(dims_.evaluate({}, sizes.class_values, classes));
  const auto number = [&](const ir::Dim& dim) {
    return dim.is_class() ? classes[dim.class_index()] : dim.number();
  };
  std::vector<at::Tensor> values = recorded_.constants;
  values.resize(graph.values.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) values[graph.inputs[i]] = std::move(inputs[i]);
  std::vector<at::Tensor> operands;
  for (ir::NodeId n = 0; n < graph.nodes.size(); ++n) {
    const ir::Node& node = graph.nodes[n];
    operands.clear();
    for (const ir::ValueId operand : node.operands)
      operands.push_back(operand == ir::kNone ? at::Tensor() : values[operand]);
    std::vector<at::Tensor> results = nodes_[n].run(operands, classes, bridge::Autograd::kRecords);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (node.results[i] == ir::kNone || !results[i].defined()) continue;
      // As recorded, where a kernel chose other strides: later nodes rely on them.
      const ir::TensorType& type = graph.values[node.results[i]].type;
      std::vector<std::int64_t> strides;
      bool is_same = true;
      for (std::size_t d = 0; d < type.strides.size(); ++d) {
        strides.push_back(number(type.strides[d]));
        const auto dim = static_cast<std::int64_t>(d);
        is_same = is_same && (results[i].size(dim) < 2 || results[i].stride(dim) == strides[d]);
      }
      if (!is_same && results[i].numel() != 0)
        results[i] =
            at::empty_strided(results[i].sizes(), strides, results[i].options()).copy_(results[i]);
      values[node.results[i]] = std::move(results[i]);
    }
    for (const ir::ValueId v : last_read_[n]) values[v] = at::Tensor();
  }
  std::vector<at::Tensor> outputs;
  for (const ir::ValueId output : graph.outputs) outputs.push_back(values[output]);
  return outputs;
}

Result<std::vector<at::Tensor>> EagerEntry::backward(std::vector<at::Tensor>,
                                                     const autograd::SizeRecord&) {
  return Status(Code::kInternal, "a program that autograd has recorded has no backward of its own");
}

std::vector<c10::IValue> EagerEntry::run_eagerly(std::span<const at::Tensor>) {
  throw std::logic_error("a program that autograd has recorded is differentiated by it");
}

}  // namespace backplane::compiler
