// Lets convolutions pad for themselves: one of an image with the same zeros on both sides of a dim
// takes them into its own padding, forward and backward. The padded image then need not exist.
#pragma once

#include "core/ir/graph.h"

namespace backplane::passes {
Status fold_padding(ir::Graph& graph);
}  // namespace backplane::passes
