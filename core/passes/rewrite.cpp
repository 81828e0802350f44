#include "core/passes/rewrite.h"

#include <algorithm>
#include <utility>

#include "core/ir/view.h"

namespace backplane::passes {
namespace {

bool is_assertion(const ir::OpInfo& op) {
  return op.name.starts_with("aten._assert") || op.name.starts_with("aten._functional_assert");
}

}  // namespace

GraphFacts::GraphFacts(const ir::Graph& graph)
    : is_output(graph.values.size(), false),
      is_shown(graph.values.size(), false),
      is_written(graph.values.size(), false),
      use_count(graph.values.size(), 0) {
  for (ir::ValueId output : graph.outputs) {
    is_output[output] = true;
    ++use_count[output];
    is_shown[output] = true;
  }
  for (std::size_t n = graph.nodes.size(); n-- > 0;) {
    const ir::Node& node = graph.nodes[n];
    for (ir::ValueId operand : node.operands) {
      if (operand != ir::kNone) ++use_count[operand];
    }
    const bool is_view = node.op->op_class == ir::OpClass::kView && !node.operands.empty() &&
                         node.operands[0] != ir::kNone;
    if (is_view && std::any_of(node.results.begin(), node.results.end(),
                               [&](ir::ValueId result) { return is_shown[result]; })) {
      is_shown[node.operands[0]] = true;
    }
    if ((node.op->mutates && !is_assertion(*node.op)) || !node.op->known) {
      for (ir::ValueId operand : node.operands) {
        if (operand != ir::kNone) is_written[ir::view_root(graph, operand)] = true;
      }
    }
  }
}

const ir::Node* find_producer(const ir::Graph& graph, ir::ValueId value,
                              std::initializer_list<std::string_view> names) {
  if (value == ir::kNone || graph.values[value].producer == ir::kNone) return nullptr;
  const ir::Node& node = graph.nodes[graph.values[value].producer];
  const bool matches = std::find(names.begin(), names.end(), node.op->name) != names.end();
  return matches ? &node : nullptr;
}

std::optional<std::int64_t> find_integer(const ir::Node& node, std::string_view name,
                                         std::int64_t fallback) {
  const ir::Attribute* attribute = node.find_attribute(name);
  if (attribute == nullptr) return fallback;
  const ir::Dim* dim = std::get_if<ir::Dim>(&attribute->value);
  if (dim == nullptr || dim->is_class()) return std::nullopt;
  return dim->number();
}

std::optional<std::vector<std::int64_t>> find_integers(const ir::Node& node,
                                                       std::string_view name) {
  const ir::Attribute* attribute = node.find_attribute(name);
  const auto* dims =
      attribute != nullptr ? std::get_if<std::vector<ir::Dim>>(&attribute->value) : nullptr;
  if (dims == nullptr) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (const ir::Dim dim : *dims) {
    if (dim.is_class()) return std::nullopt;
    numbers.push_back(dim.number());
  }
  return numbers;
}

bool is_one(const ir::Node& node, std::string_view name) {
  const ir::Attribute* attribute = node.find_attribute(name);
  if (attribute == nullptr) return true;
  if (const double* number = std::get_if<double>(&attribute->value)) return *number == 1.0;
  const ir::Dim* dim = std::get_if<ir::Dim>(&attribute->value);
  return dim != nullptr && *dim == ir::Dim(1);
}

std::optional<std::vector<std::size_t>> find_permutation(const ir::Graph& graph,
                                                         const ir::Node& node) {
  if (node.operands.empty() || node.operands[0] == ir::kNone) return std::nullopt;
  const auto rank = static_cast<std::int64_t>(graph.values[node.operands[0]].type.rank());
  std::vector<std::size_t> order(static_cast<std::size_t>(rank));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const std::string_view op = node.op->name;
  if (op == "aten.t" || op == "aten.transpose.int") {
    if (rank < 2) return order;
    const auto a = op == "aten.t" ? 0 : find_integer(node, "dim0", INT64_MIN);
    const auto b = op == "aten.t" ? 1 : find_integer(node, "dim1", INT64_MIN);
    if (!a || !b || *a < -rank || *a >= rank || *b < -rank || *b >= rank) return std::nullopt;
    std::swap(order[static_cast<std::size_t>(*a < 0 ? *a + rank : *a)],
              order[static_cast<std::size_t>(*b < 0 ? *b + rank : *b)]);
    return order;
  }
  if (op != "aten.permute") return std::nullopt;
  const auto dims = find_integers(node, "dims");
  if (!dims || dims->size() != order.size()) return std::nullopt;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int64_t from = (*dims)[i];
    if (from < -rank || from >= rank) return std::nullopt;
    order[i] = static_cast<std::size_t>(from < 0 ? from + rank : from);
  }
  return order;
}

ir::ValueId find_transposed(const ir::Graph& graph, ir::ValueId value) {
  const ir::Node* node =
      find_producer(graph, value, {"aten.t", "aten.permute", "aten.transpose.int"});
  if (node == nullptr || graph.values[value].type.rank() != 2) return ir::kNone;
  const auto order = find_permutation(graph, *node);
  if (!order || (*order)[0] != 1) return ir::kNone;
  return node->operands[0];
}

void become(ir::Node& node, std::string_view op, std::vector<ir::ValueId> operands,
            std::vector<ir::Attribute> attributes) {
  node.op = ir::find_op(op);
  node.operands = std::move(operands);
  node.attributes = std::move(attributes);
  node.list_first = node.list_count = 0;
}

}  // namespace backplane::passes
