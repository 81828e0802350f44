#pragma once

#include "core/base/status.h"
#include "core/ir/graph.h"

namespace backplane::ir {

// Checks every rule a Graph must keep: order, ids, operand counts against the op table, dim class
// indices, ranks of strides, result types where the op has a shape rule, unique names, no cycles.
// The error names the node as the printer writes it.
Status verify(const Graph& graph);

}  // namespace backplane::ir
