#include "core/passes/remove_noop.h"

#include <algorithm>

#include "core/ir/view.h"
#include "core/passes/rewrite.h"

namespace backplane::passes {
namespace {

constexpr std::string_view kViews[] = {
    "aten.alias",       "aten.detach",       "aten.lift_fresh",
    "aten.view",        "aten._unsafe_view", "aten._reshape_alias",
    "aten.expand",      "aten.permute",      "aten.transpose.int",
    "aten.t",           "aten.slice.Tensor", "aten.squeeze",
    "aten.squeeze.dim", "aten.squeeze.dims",
};
// New memory with the same content where the type is the same.
constexpr std::string_view kCopies[] = {
    "aten.clone",     "aten._to_copy",   "aten.lift_fresh_copy", "aten.contiguous",  "aten.reshape",
    "aten.view_copy", "aten.alias_copy", "aten.detach_copy",     "aten.expand_copy",
};

template <std::size_t kCount>
bool contains(const std::string_view (&names)[kCount], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool is_empty_padding(const ir::Node& node) {
  if (node.op->name != "aten.constant_pad_nd") return false;
  const auto pad = find_integers(node, "pad");
  return pad && std::all_of(pad->begin(), pad->end(), [](std::int64_t n) { return n == 0; });
}

bool is_border(const ir::Graph& graph, const GraphFacts& facts, ir::ValueId value) {
  return facts.is_output[value] || graph.values[value].kind != ir::ValueKind::kResult;
}

// _to_copy may move to another device, which types do not show.
bool names_device(const ir::Node& node) {
  const ir::Attribute* device = node.find_attribute("device");
  return device != nullptr && !std::holds_alternative<std::monostate>(device->value);
}

}  // namespace

Status remove_noop(ir::Graph& graph) {
  GraphFacts facts(graph);
  // Where each value's users read instead; chains are resolved as nodes come in order.
  std::vector<ir::ValueId> reads(graph.values.size());
  for (ir::ValueId v = 0; v < reads.size(); ++v) reads[v] = v;

  for (ir::Node& node : graph.nodes) {
    for (ir::ValueId& operand : node.operands) {
      if (operand != ir::kNone) operand = reads[operand];
    }
    if (node.operands.empty() || node.operands[0] == ir::kNone || node.results.size() != 1) {
      continue;
    }
    const ir::ValueId from = node.operands[0];
    const ir::ValueId to = node.results[0];
    const bool is_copy = contains(kCopies, node.op->name) || is_empty_padding(node);
    if (!is_copy && !contains(kViews, node.op->name)) continue;
    if (!(graph.values[from].type == graph.values[to].type) || names_device(node)) continue;
    // An output stays a tensor of its own.
    if (facts.is_output[to] && is_border(graph, facts, from)) continue;
    if (is_copy && (facts.is_shown[to] || facts.is_written[ir::view_root(graph, from)] ||
                    facts.is_written[to])) {
      continue;
    }
    reads[to] = from;
    facts.is_output[from] = facts.is_output[from] || facts.is_output[to];
    facts.is_shown[from] = facts.is_shown[from] || facts.is_shown[to];
    graph.values[from].is_saved = graph.values[from].is_saved || graph.values[to].is_saved;
  }
  for (ir::ValueId& output : graph.outputs) output = reads[output];
  graph.eliminate_dead();
  return {};
}

}  // namespace backplane::passes
