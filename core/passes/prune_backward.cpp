#include "core/passes/prune_backward.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "core/passes/rewrite.h"

namespace backplane::passes {
namespace {

using ir::kNone;
using ir::ValueId;

// What a value depends on: no tangent at all, only absent ones, some that is given.
enum class Reach : std::uint8_t { kFree, kAbsent, kGiven };

// What of a backward is computed.
class Needs {
 public:
  Needs(const ir::Graph& graph, const Asked& asked)
      : reach_(graph.values.size(), Reach::kFree), is_read_(graph.values.size(), false) {
    const std::size_t first_tangent = graph.inputs.size() - asked.absent.size();
    for (std::size_t i = 0; i < asked.absent.size(); ++i) {
      const ValueId v = graph.inputs[first_tangent + i];
      reach_[v] = asked.absent[i] ? Reach::kAbsent : Reach::kGiven;
      is_read_[v] = !asked.absent[i];
    }
    for (const ir::Node& node : graph.nodes) {
      const Reach reach = reach_of(node);
      for (const ValueId result : node.results)
        if (result != kNone) reach_[result] = reach;
    }
    for (std::size_t i = 0; i < graph.outputs.size(); ++i)
      if (!asked.unwanted[i] && !is_absent(graph.outputs[i])) is_read_[graph.outputs[i]] = true;
    for (std::size_t n = graph.nodes.size(); n-- > 0;) {
      const ir::Node& node = graph.nodes[n];
      if (!is_computed(node)) continue;
      for (const ValueId operand : node.operands)
        if (operand != kNone && !is_absent(operand)) is_read_[operand] = true;
    }
  }

  bool is_absent(ValueId v) const { return reach_[v] == Reach::kAbsent; }
  bool is_read(ValueId v) const { return is_read_[v]; }
  bool is_computed(const ir::Node& node) const {
    if (reach_of(node) == Reach::kAbsent) return false;
    return ir::has_effects(node) ||
           std::ranges::any_of(node.results, [&](ValueId v) { return v != kNone && is_read_[v]; });
  }
  Reach reach_of(const ir::Node& node) const {
    Reach reach = Reach::kFree;
    for (const ValueId operand : node.operands)
      if (operand != kNone) reach = std::max(reach, reach_[operand]);
    return reach;
  }

 private:
  std::vector<Reach> reach_;
  std::vector<bool> is_read_;
};

class Pruning {
 public:
  Pruning(const ir::Graph& from, const Asked& asked)
      : from_(from),
        asked_(asked),
        needs_(from, asked),
        is_operand_(from.values.size()),
        ids_(from.values.size(), kNone) {
    for (const ir::Node& node : from.nodes)
      for (const ValueId operand : node.operands)
        if (operand != kNone) is_operand_[operand] = true;
    out_.graph.name = from.name;
    out_.graph.dim_classes = from.dim_classes;
    for (const ValueId v : from.inputs) {
      if (!needs_.is_read(v)) continue;
      ids_[v] = out_.graph.add_input(from.values[v].name, from.values[v].type);
      keep_facts(v);
    }
    for (ValueId v = 0; v < from.values.size(); ++v) {
      const ir::Value& value = from.values[v];
      if (value.kind != ir::ValueKind::kConstant || !needs_.is_read(v)) continue;
      ids_[v] = out_.graph.add_constant(value.name, value.type, value.constant);
      keep_facts(v);
    }
  }

  Result<PrunedBackward> run() {
    for (const ir::Node& node : from_.nodes) {
      if (!needs_.is_computed(node) || passes_on(node)) continue;
      BP_RETURN_IF_ERROR(copy(node));
    }
    for (std::size_t i = 0; i < from_.outputs.size(); ++i) {
      const ValueId v = from_.outputs[i];
      out_.is_given.push_back(!asked_.unwanted[i] && !needs_.is_absent(v));
      if (out_.is_given.back()) out_.graph.outputs.push_back(ids_[v]);
    }
    return std::move(out_);
  }

 private:
  // A sum with zeros is its other operand.
  bool passes_on(const ir::Node& node) {
    if (node.op->name != "aten.add.Tensor" || node.operands.size() != 2 || !is_one(node, "alpha"))
      return false;
    for (const std::size_t zero : {0U, 1U}) {
      const ValueId other = node.operands[1 - zero];
      if (!needs_.is_absent(node.operands[zero]) || !stands_for(other, node.results[0])) continue;
      ids_[node.results[0]] = ids_[other];
      return true;
    }
    return false;
  }

  // What nobody reads but who gets the gradient may lie otherwise: as it does in eager mode, which
  // adds nothing.
  bool stands_for(ValueId other, ValueId sum) const {
    const ir::TensorType &type = from_.values[other].type, &wanted = from_.values[sum].type;
    return type == wanted ||
           (type.dtype == wanted.dtype && type.dims == wanted.dims && !is_operand_[sum]);
  }

  Status copy(const ir::Node& node) {
    std::vector<ValueId> operands;
    for (const ValueId operand : node.operands) {
      if (operand != kNone && needs_.is_absent(operand) && ids_[operand] == kNone)
        BP_RETURN_IF_ERROR(add_zeros(operand));
      operands.push_back(operand == kNone ? kNone : ids_[operand]);
    }
    std::vector<ir::TensorType> types;
    for (const ValueId result : node.results)
      types.push_back(result == kNone ? ir::TensorType() : from_.values[result].type);
    const ir::NodeId n = out_.graph.add_node_like(
        node, std::move(operands), std::move(types),
        node.results.empty() ? std::string() : from_.values[node.results[0]].name);
    const ir::Node& made = out_.graph.nodes[n];
    for (std::size_t i = 0; i < node.results.size(); ++i) {
      ids_[node.results[i]] = made.results[i];
      keep_facts(node.results[i]);
    }
    return {};
  }

  // One zero, shown as often as there are elements.
  Status add_zeros(ValueId like) {
    const ir::TensorType& type = from_.values[like].type;
    auto bytes = std::make_shared<ir::ConstantData>();
    bytes->bytes.resize(static_cast<std::size_t>(ir::dtype_bytes(type.dtype)));
    ir::TensorType single;
    single.dtype = type.dtype;
    const ValueId zero = out_.graph.add_constant("zero", std::move(single), std::move(bytes));
    ir::TensorType shown = type;
    shown.strides.assign(type.rank(), ir::Dim(0));
    const ir::OpInfo* expand = ir::find_op("aten.expand");
    if (expand == nullptr) return Status(Code::kInternal, "aten.expand is no known operator");
    const ir::NodeId n =
        out_.graph.add_node(expand, {zero}, {{"size", type.dims}}, {std::move(shown)}, "zeros");
    ids_[like] = out_.graph.nodes[n].results[0];
    return {};
  }

  void keep_facts(ValueId v) {
    ir::Value& made = out_.graph.values[ids_[v]];
    made.is_static = from_.values[v].is_static;
    made.is_saved = from_.values[v].is_saved;
    made.is_host_scalar = from_.values[v].is_host_scalar;
  }

  const ir::Graph& from_;
  const Asked& asked_;
  Needs needs_;
  std::vector<bool> is_operand_;
  std::vector<ValueId> ids_;  // by value of the whole backward; kNone where it is not needed
  PrunedBackward out_;
};

}  // namespace

Result<PrunedBackward> prune_backward(const ir::Graph& backward, const Asked& asked) {
  return Pruning(backward, asked).run();
}

std::vector<bool> inputs_read(const ir::Graph& backward, const Asked& asked) {
  const Needs needs(backward, asked);
  std::vector<bool> is_read;
  for (const ValueId v : backward.inputs) is_read.push_back(needs.is_read(v));
  return is_read;
}

}  // namespace backplane::passes
