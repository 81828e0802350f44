// The part of a backward that leads from the tangents that are given to the gradients that are
// wanted.
#pragma once

#include <algorithm>
#include <compare>
#include <vector>

#include "core/ir/graph.h"

namespace backplane::passes {

// Of a backward, whose last inputs are the tangents and whose outputs are the gradients.
struct Asked {
  std::vector<bool> absent;    // by tangent
  std::vector<bool> unwanted;  // by gradient
  auto operator<=>(const Asked&) const = default;

  bool is_whole() const {
    return std::ranges::find(absent, true) == absent.end() &&
           std::ranges::find(unwanted, true) == unwanted.end();
  }
};

struct PrunedBackward {
  ir::Graph graph;             // without the inputs that are not read and the outputs not given
  std::vector<bool> is_given;  // by output of the whole backward
};

// A gradient is linear in the tangents, so what only absent ones reach is not computed: beside
// something that is not finite it would be NaN, where eager mode computes nothing. Where it meets
// what is given, it is zeros. Nor is what only unwanted gradients need.
Result<PrunedBackward> prune_backward(const ir::Graph& backward, const Asked& asked);

// By input of the whole backward: it is one of the pruned one. A tangent that is given always is, a
// saved value where something reads it.
std::vector<bool> inputs_read(const ir::Graph& backward, const Asked& asked);

}  // namespace backplane::passes
