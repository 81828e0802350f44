// Chooses a target for every node by minimum cuts.
#pragma once

#include <span>

#include "core/partition/model.h"

namespace backplane::partition {

// Minimises Model::assignment_ns: optimal for one target, alpha expansions and swaps for several.
// Where it costs nothing, views follow their producer, and views of graph inputs their first user.
Labels choose_labels(const ir::Graph& graph, const Model& model);

// How assignment_ns changes when all of `nodes` (each once) get `label`, atomic claims aside.
// `labels` is as before on return.
double relabel_delta_ns(const ir::Graph& graph, const Model& model, Labels& labels,
                        std::span<const ir::NodeId> nodes, TargetId label);

}  // namespace backplane::partition
