// Lets users of an op that returns its operand unchanged read the operand: alias, detach, views to
// the same type, and copies that nobody can tell from the original, padding with nothing among
// them.
#pragma once

#include "core/ir/graph.h"

namespace backplane::passes {
Status remove_noop(ir::Graph& graph);
}  // namespace backplane::passes
