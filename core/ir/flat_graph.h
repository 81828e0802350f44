// A static graph taken apart into what makes its structure and the numbers in it. Two graphs of one
// structure are one program with other sizes.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "core/ir/graph.h"

namespace backplane::ir {

// A stride that says nothing: of a size-1 dim or of an empty tensor. Equal to every number.
inline constexpr std::int64_t kAnyNumber = std::numeric_limits<std::int64_t>::min();

struct FlatGraph {
  // Operators, dataflow, kinds, dtypes, ranks, list lengths, bools, strings, floats, constants,
  // integers that name an axis or a mode, which nodes PyTorch alone can run, and which values are
  // empty: what holds for some elements need not hold for none.
  std::vector<std::uint64_t> structure;
  // Sizes and strides of all values, integer attributes, and constants of rank 0 that are whole
  // numbers, in the order of visit_numbers().
  std::vector<std::int64_t> numbers;
};

FlatGraph flatten(const Graph& graph);

// A constant of rank 0 that holds a whole number.
bool is_whole_number(const Value& constant, std::int64_t& out_number);

// Calls `type(TensorType&)` for each input and result, `dim(Dim&)` for each integer attribute, and
// `constant(ValueId)` for each whole number among the constants, in a fixed order: inputs, then
// constants, then nodes. The graph may be const.
template <class AnyGraph, class OnType, class OnDim, class OnConstant>
void visit_numbers(AnyGraph& graph, OnType&& type, OnDim&& dim, OnConstant&& constant) {
  for (const ValueId v : graph.inputs) type(graph.values[v].type);
  std::int64_t number = 0;
  for (ValueId v = 0; v < graph.values.size(); ++v)
    if (graph.values[v].kind == ValueKind::kConstant && is_whole_number(graph.values[v], number))
      constant(v);
  for (auto& node : graph.nodes) {
    for (auto& a : node.attributes) {
      if (auto* single = std::get_if<Dim>(&a.value)) dim(*single);
      if (auto* list = std::get_if<std::vector<Dim>>(&a.value))
        for (auto& d : *list) dim(d);
    }
    for (const ValueId v : node.results) type(graph.values[v].type);
  }
}

}  // namespace backplane::ir
