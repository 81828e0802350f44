// The part of a backward that the tangents reach that are given.
#pragma once

#include <vector>

#include "core/ir/graph.h"

namespace backplane::passes {

struct PrunedBackward {
  ir::Graph graph;               // without the inputs that are not read and the outputs unreached
  std::vector<bool> is_reached;  // by output of the whole backward
};

// A gradient is linear in the tangents, so what only absent ones reach is not computed: beside
// something that is not finite it would be NaN, where eager mode computes nothing. Where it meets
// what is given, it is zeros. `absent`: by tangent, which are the last inputs.
Result<PrunedBackward> prune_tangents(const ir::Graph& backward, const std::vector<bool>& absent);

// By input of the whole backward.
struct InputUses {
  // It is one of the pruned one. A tangent that is given always is, a saved value where something
  // reads it.
  std::vector<bool> is_read;
  // Something reads it that no given tangent reaches, and that an absent one may want.
  std::vector<bool> is_left;
};
InputUses input_uses(const ir::Graph& backward, const std::vector<bool>& absent);

}  // namespace backplane::passes
