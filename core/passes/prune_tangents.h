// The part of a backward that the tangents reach that are given.
#pragma once

#include <vector>

#include "core/ir/graph.h"

namespace backplane::passes {

struct PrunedBackward {
  ir::Graph graph;               // without the inputs that are absent and the outputs unreached
  std::vector<bool> is_reached;  // by output of the whole backward
};

// A gradient is linear in the tangents, so what only absent ones reach is not computed: beside
// something that is not finite it would be NaN, where eager mode computes nothing. Where it meets
// what is given, it is zeros. `absent`: by input; `first_tangent`: the inputs before are saved
// values, which all stay.
Result<PrunedBackward> prune_tangents(const ir::Graph& backward, const std::vector<bool>& absent,
                                      std::size_t first_tangent);

}  // namespace backplane::passes
