// Drops nodes without effects whose results nobody reads, and constants without a user.
#pragma once

#include "core/ir/graph.h"

namespace backplane::passes {
Status dead_code(ir::Graph& graph);
}  // namespace backplane::passes
