// Merges chains of shape-only views into one aten.view and chains of permutations into one
// aten.permute.
#pragma once

#include "core/ir/graph.h"

namespace backplane::passes {
Status fold_views(ir::Graph& graph);
}  // namespace backplane::passes
