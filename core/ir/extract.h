// A part of a graph as a graph of its own.
#pragma once

#include <span>

#include "core/base/status.h"
#include "core/ir/graph.h"

namespace backplane::ir {

// `nodes` in order; `inputs` are what they read from elsewhere, constants come along. Dim classes
// stay where inputs tell their values, with those of `class_values` as hints; else sizes are
// numbers. Invalid arguments where the parts do not belong together.
Result<Graph> extract(const Graph& graph, std::span<const NodeId> nodes,
                      std::span<const ValueId> inputs, std::span<const ValueId> outputs,
                      std::span<const std::int64_t> class_values);

}  // namespace backplane::ir
