// Computes equal subexpressions once. Never merges random draws, writes or two outputs.
#pragma once

#include "core/ir/graph.h"

namespace backplane::passes {
Status cse(ir::Graph& graph);
}  // namespace backplane::passes
