// Groups nodes of one target into convex partitions with an order that can be executed.
#pragma once

#include <cstdint>
#include <vector>

#include "core/partition/model.h"

namespace backplane::partition {

struct Group {
  TargetId target = kHost;
  std::vector<ir::NodeId> nodes;  // ascending
};
struct Grouping {
  std::vector<Group> groups;  // in an order that can be executed
  // Otherwise: atomic claims (indices into Model::atomics), one of each cycle, that must give way.
  std::vector<std::uint32_t> in_cycles;
};

// A group is a maximal run of one target in a topological order, so it is convex. The orders tried
// stay on a target as long as anything is ready there, in each priority among the targets, and the
// one with the cheapest launches is taken: for the host and one target no order has fewer runs. A
// taken atomic claim is a group by itself. Linear in nodes and edges.
Result<Grouping> group_nodes(const ir::Graph& graph, const Model& model, const Labels& labels);

// What launching a group costs: nothing on the host.
double launch_ns(const Model& model, const Group& group);

}  // namespace backplane::partition
