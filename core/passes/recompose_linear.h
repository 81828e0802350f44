// Turns mm and addmm by a transposed matrix into aten.linear, and the views around it, which only
// flatten and restore the leading dims, into a linear of higher rank.
#pragma once

#include "core/ir/graph.h"

namespace backplane::passes {
Status recompose_linear(ir::Graph& graph);
}  // namespace backplane::passes
