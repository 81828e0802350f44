#include "core/passes/recompose_linear.h"

#include <algorithm>

#include "core/ir/dim_algebra.h"
#include "core/passes/rewrite.h"

namespace backplane::passes {
namespace {

using ir::kNone;
using ir::ValueId;

// A matrix that is itself a transpose stays with mm: gradients multiply by t(t(w)).
bool is_weight(const ir::Graph& graph, ValueId value) {
  return value != kNone && find_transposed(graph, value) == kNone;
}

// The [N] behind an addend that is [N] or [N] broadcast to [M, N]; kNone where it is neither.
ValueId find_bias(const ir::Graph& graph, ValueId value, ir::Dim columns) {
  const ir::Node* expand = find_producer(graph, value, {"aten.expand"});
  if (expand != nullptr) value = expand->operands[0];
  const ir::TensorType& type = graph.values[value].type;
  return type.rank() == 1 && type.dims[0] == columns ? value : kNone;
}

void match_flat(ir::Graph& graph, const ir::DimAlgebra& algebra, ir::Node& node) {
  const bool has_bias = node.op->name == "aten.addmm";
  if (!has_bias && node.op->name != "aten.mm") return;
  const ir::TensorType& type = graph.values[node.results[0]].type;
  if (type.rank() != 2 || !algebra.is_row_major(type, /*exact=*/false)) return;
  const ValueId input = node.operands[has_bias ? 1 : 0];
  const ValueId weight = find_transposed(graph, node.operands[has_bias ? 2 : 1]);
  if (!is_weight(graph, weight)) return;
  ValueId bias = kNone;
  if (has_bias) {
    if (!is_one(node, "beta") || !is_one(node, "alpha")) return;
    bias = find_bias(graph, node.operands[0], type.dims[1]);
    if (bias == kNone) return;
  }
  become(node, "aten.linear", {input, weight, bias});
}

// view([.., K] -> [M, K]) -> linear -> view([M, N] -> [.., N]).
void match_deep(ir::Graph& graph, const ir::DimAlgebra& algebra, const GraphFacts& facts,
                ir::Node& node) {
  const auto is_reshape = {std::string_view("aten.view"), std::string_view("aten._unsafe_view"),
                           std::string_view("aten.reshape")};
  if (std::find(is_reshape.begin(), is_reshape.end(), node.op->name) == is_reshape.end()) return;
  const ValueId flat_result = node.operands[0];
  const ir::Node* linear = find_producer(graph, flat_result, {"aten.linear"});
  if (linear == nullptr || facts.use_count[flat_result] != 1) return;
  const ir::Node* flatten = find_producer(graph, linear->operands[0], is_reshape);
  if (flatten == nullptr) return;
  const ValueId input = flatten->operands[0];
  const std::vector<ir::Dim>& deep = graph.values[input].type.dims;
  const std::vector<ir::Dim>& flat = graph.values[linear->operands[0]].type.dims;
  const ir::TensorType& type = graph.values[node.results[0]].type;
  if (deep.empty() || flat.size() != 2 || type.rank() != deep.size()) return;
  if (!algebra.equal(deep.back(), flat[1]) ||
      !algebra.equal(type.dims.back(), graph.values[flat_result].type.dims[1]) ||
      !std::equal(deep.begin(), deep.end() - 1, type.dims.begin(),
                  [&](ir::Dim a, ir::Dim b) { return algebra.equal(a, b); }) ||
      !algebra.is_row_major(type, /*exact=*/true)) {
    return;
  }
  const std::string location = linear->location;
  become(node, "aten.linear", {input, linear->operands[1], linear->operands[2]});
  if (!location.empty()) node.location = location;
}

}  // namespace

Status recompose_linear(ir::Graph& graph) {
  const ir::DimAlgebra algebra(graph);
  for (ir::Node& node : graph.nodes) match_flat(graph, algebra, node);
  const GraphFacts facts(graph);
  for (ir::Node& node : graph.nodes) match_deep(graph, algebra, facts, node);
  graph.eliminate_dead();
  return {};
}

}  // namespace backplane::passes
