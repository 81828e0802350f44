// The text form of a graph: printer and parser. print(parse(text)) == text for printed text.
//
// graph @toy(%a: f32[s0, 10], %w: f32[10, 10] static) -> (f32[s0, 10]) classes(s0: 4 [2, 4096]) {
//   %0 = aten.mm(%a, %w) : f32[s0, 10]    // model.py:12
//   %1, %2 = aten.native_dropout(%0, p=0.5, train=true) : f32[s0, 10], b8[s0, 10]
//   return %1
// }
//
// Strides are written only where they are not row-major: f32[4, 3] strides(1, 4).
#pragma once

#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/ir/graph.h"

namespace backplane::ir {

std::string print(const Graph& graph);
std::string print_type(const Graph& graph, const TensorType& type);
std::string print_node(const Graph& graph, NodeId node);
std::string print_attributes(const Graph& graph, NodeId node);  // "p=0.5, train=true"

// Errors name line and column, what was expected and what was found.
Result<Graph> parse(std::string_view text);

}  // namespace backplane::ir
