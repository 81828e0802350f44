#include "core/passes/fold_views.h"

#include "core/ir/dim_algebra.h"
#include "core/passes/rewrite.h"

namespace backplane::passes {
namespace {

// Always alias their operand and keep the order of its elements.
const std::initializer_list<std::string_view> kShapeOnly = {
    "aten.view",    "aten._unsafe_view", "aten._reshape_alias", "aten.unsqueeze",
    "aten.squeeze", "aten.squeeze.dim",  "aten.squeeze.dims",   "aten.unflatten.int",
};
const std::initializer_list<std::string_view> kPermutations = {"aten.permute", "aten.t",
                                                               "aten.transpose.int"};

void merge_shapes(ir::Graph& graph, const ir::DimAlgebra& algebra, const GraphFacts& facts,
                  ir::Node& node) {
  const ir::ValueId result = node.results[0];
  const ir::Node* first = find_producer(graph, node.operands[0], kShapeOnly);
  if (first == nullptr) return;
  const ir::ValueId root = first->operands[0];
  const ir::TensorType& type = graph.values[result].type;
  if (graph.values[root].type.dtype != type.dtype) return;
  // The strides of size-1 dims depend on the chain; an output shows them.
  if (facts.is_output[result] &&
      (!algebra.is_row_major(graph.values[root].type, true) || !algebra.is_row_major(type, true))) {
    return;
  }
  become(node, "aten.view", {root}, {{"size", type.dims}});
}

void merge_permutations(ir::Graph& graph, ir::Node& node) {
  const ir::Node* first = find_producer(graph, node.operands[0], kPermutations);
  if (first == nullptr) return;
  const auto inner = find_permutation(graph, *first);
  const auto outer = find_permutation(graph, node);
  if (!inner || !outer) return;
  std::vector<ir::Dim> dims;
  for (std::size_t from : *outer) dims.emplace_back(static_cast<std::int64_t>((*inner)[from]));
  become(node, "aten.permute", {first->operands[0]}, {{"dims", std::move(dims)}});
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  for (std::string_view candidate : names) {
    if (candidate == name) return true;
  }
  return false;
}

}  // namespace

Status fold_views(ir::Graph& graph) {
  const ir::DimAlgebra algebra(graph);
  const GraphFacts facts(graph);
  // In order, so that a chain is merged pair by pair into one node.
  for (ir::Node& node : graph.nodes) {
    if (is_one_of(node.op->name, kShapeOnly)) merge_shapes(graph, algebra, facts, node);
    if (is_one_of(node.op->name, kPermutations)) merge_permutations(graph, node);
  }
  graph.eliminate_dead();
  return {};
}

}  // namespace backplane::passes
