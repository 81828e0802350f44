#include "core/passes/dead_code.h"

namespace backplane::passes {

Status dead_code(ir::Graph& graph) {
  graph.eliminate_dead();
  return {};
}

}  // namespace backplane::passes
