// Weights that a plugin keeps in a layout of its own: which there are, and what their readers want.
#pragma once

#include <backplane/sdk/device.hpp>

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace backplane::sdk {

// The layout in which a node reads best what it has as `operand`, 0: as it is. Where `turned`, it
// reads the transpose of a weight, and the layout is to be one of the weight.
using WeightLayout =
    std::function<std::uint64_t(const NodeView& node, std::size_t operand, bool turned)>;

// Where a product of two matrices has its operands: result[rows, columns] = left[rows, depth] ×
// weight + bias[columns].
struct ProductOperands {
  std::size_t left, weight;
  std::optional<std::size_t> bias;
  bool transposed;  // the weight is [columns, depth]
};
// Of aten.linear, aten.mm, and aten.addmm where that adds a bias per column and nothing is scaled.
inline std::optional<ProductOperands> find_product(const NodeView& node) {
  std::optional<ProductOperands> found;
  if (node.op() == "aten.linear") {
    found = {0, 1, std::nullopt, true};
    if (node.has_operand(2)) found->bias = 2;
  } else if (node.op() == "aten.mm") {
    found = {0, 1, std::nullopt, false};
  } else if (node.op() == "aten.addmm") {
    const auto is_one = [&](std::string_view name) {
      return !node.is_dim_class(name) && node.real_or(name, 1) == 1;
    };
    const ValueView bias = node.operand(0), result = node.result();
    if (is_one("alpha") && is_one("beta") && bias.rank() == 1 && result.rank() == 2 &&
        bias.dims()[0] == result.dims()[1])
      found = {1, 2, 0, false};
  }
  if (found && node.operand(found->weight).rank() != 2) found.reset();
  return found;
}

namespace detail {

// What all readers of the value agree upon; 0 where they do not.
inline std::uint64_t layout_of_readers(const GraphView& graph, std::uint32_t value, bool turned,
                                       const WeightLayout& wanted) {
  for (const std::uint32_t output : graph.outputs())
    if (output == value) return 0;
  std::uint64_t layout = 0;
  for (std::size_t n = 0; n < graph.size(); ++n) {
    const NodeView node = graph[n];
    for (std::size_t i = 0; i < node.operand_count(); ++i) {
      if (node.operand_index(i) != value) continue;
      const std::uint64_t here = !turned && node.turns_matrix()
                                     ? layout_of_readers(graph, node.result_index(), true, wanted)
                                     : wanted(node, i, turned);
      if (here == 0 || (layout != 0 && layout != here)) return 0;
      layout = here;
    }
  }
  return layout;
}

}  // namespace detail

// The layouts of a graph's inputs, for the contract: static ones of known sizes as their readers
// want them, where the host leaves the choice; all others as the host says.
inline std::vector<bp_layout> choose_weight_layouts(const Subgraph& graph,
                                                    const CompileOptions& options,
                                                    const WeightLayout& wanted) {
  std::vector<bp_layout> layouts(graph.inputs().size(), {BP_LAYOUT_STRIDED, 0, 0});
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    if (options.input(i).layout.kind == BP_LAYOUT_OPAQUE) layouts[i] = options.input(i).layout;
    const ValueView value = graph.value(graph.inputs()[i]);
    if (!options.wants_any_input(i) || !value.has(BP_VALUE_STATIC)) continue;
    bool is_known = value.rank() >= 2;
    for (const bp_dim d : value.dims()) is_known = is_known && d > 0;
    const std::uint64_t layout =
        is_known ? detail::layout_of_readers(graph, value.index(), false, wanted) : 0;
    if (layout != 0) layouts[i] = {BP_LAYOUT_OPAQUE, 0, layout};
  }
  return layouts;
}

}  // namespace backplane::sdk
