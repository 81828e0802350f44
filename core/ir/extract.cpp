#include "core/ir/extract.h"

#include "core/ir/dim_expression.h"
#include "core/ir/verifier.h"
#include "core/ir/view.h"

namespace backplane::ir {
namespace {

class Extractor {
 public:
  Extractor(const Graph& graph, std::span<const std::int64_t> class_values, bool keeps_classes)
      : graph_(graph), class_values_(class_values), keeps_classes_(keeps_classes) {
    out_.name = graph.name;
    if (!keeps_classes) return;
    out_.dim_classes = graph.dim_classes;
    for (std::size_t i = 0; i < out_.dim_classes.size(); ++i)
      out_.dim_classes[i].hint = class_values[i];
  }

  Result<Graph> run(std::span<const NodeId> nodes, std::span<const ValueId> inputs,
                    std::span<const ValueId> outputs) {
    made_.assign(graph_.values.size(), kNone);
    for (const ValueId v : inputs) {
      const Value& value = graph_.values[v];
      made_[v] = out_.add_input(value.name, type(value.type));
      Value& input = out_.values[made_[v]];
      input.is_static = value.is_static;
      input.is_host_scalar = value.is_host_scalar;
    }
    for (const NodeId n : nodes) BP_RETURN_IF_ERROR(add(graph_.nodes[n]));
    for (const ValueId v : outputs) {
      if (made_[v] == kNone) return missing(v);
      out_.outputs.push_back(made_[v]);
    }
    BP_RETURN_IF_ERROR(verify(out_));
    // Whether inputs tell the value of each class.
    if (const auto program = DimProgram::build(out_, {}); !program.ok()) return program.status();
    return std::move(out_);
  }

 private:
  Status missing(ValueId v) const {
    return {Code::kInvalidArgument, "%" + graph_.values[v].name + " is made by another part"};
  }

  Status add(const Node& node) {
    std::vector<ValueId> operands;
    for (const ValueId v : node.operands) {
      if (v != kNone && made_[v] == kNone) {
        const Value& value = graph_.values[v];
        if (value.kind != ValueKind::kConstant) return missing(v);
        made_[v] = out_.add_constant(value.name, type(value.type), value.constant);
      }
      operands.push_back(v == kNone ? kNone : made_[v]);
    }
    std::vector<TensorType> types;
    for (const ValueId v : node.results) types.push_back(type(graph_.values[v].type));
    const NodeId id = out_.add_node_like(node, std::move(operands), std::move(types));
    Node& made = out_.nodes[id];
    for (std::size_t i = 0; i < node.results.size(); ++i) {
      made_[node.results[i]] = made.results[i];
      out_.values[made.results[i]].name = graph_.values[node.results[i]].name;
    }
    for (Attribute& a : made.attributes) {
      if (auto* dim = std::get_if<Dim>(&a.value)) *dim = number(*dim);
      if (auto* dims = std::get_if<std::vector<Dim>>(&a.value))
        for (Dim& dim : *dims) dim = number(dim);
    }
    return {};
  }

  Dim number(Dim dim) const { return keeps_classes_ ? dim : Dim(resolve(dim, class_values_)); }
  TensorType type(TensorType type) const {
    for (auto* dims : {&type.dims, &type.strides})
      for (Dim& dim : *dims) dim = number(dim);
    return type;
  }

  const Graph& graph_;
  std::span<const std::int64_t> class_values_;
  bool keeps_classes_;
  Graph out_;
  std::vector<ValueId> made_;  // by value of the whole graph
};

}  // namespace

Result<Graph> extract(const Graph& graph, std::span<const NodeId> nodes,
                      std::span<const ValueId> inputs, std::span<const ValueId> outputs,
                      std::span<const std::int64_t> class_values) {
  if (!graph.dim_classes.empty()) {
    auto general = Extractor(graph, class_values, true).run(nodes, inputs, outputs);
    if (general.ok()) return general;
  }
  return Extractor(graph, class_values, false).run(nodes, inputs, outputs);
}

}  // namespace backplane::ir
