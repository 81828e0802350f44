#include "core/partition/partition.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/partition/grouping.h"
#include "core/partition/labelling.h"
#include "core/partition/model.h"

namespace backplane::partition {
namespace {

constexpr int kMaxReturnRounds = 8;

// Moves plugin groups to the host that cost more to launch than they save, and groups of views that
// the host can do as well. True when labels changed.
bool return_to_host(const ir::Graph& graph, const Model& model, const std::vector<Group>& groups,
                    Labels& labels) {
  bool changed = false;
  for (const Group& group : groups) {
    if (group.target == kHost) continue;
    const double delta_ns = relabel_delta_ns(graph, model, labels, group.nodes, kHost);
    const double saved_ns = launch_ns(model, group);
    const bool only_views =
        std::ranges::all_of(group.nodes, [&](ir::NodeId n) { return model.is_view[n]; });
    if (only_views ? delta_ns > saved_ns : delta_ns >= saved_ns) continue;
    for (const ir::NodeId n : group.nodes) labels[n] = kHost;
    changed = true;
  }
  return changed;
}

Cut make_cut(const Model& model, const Labels& labels, std::vector<Group> groups) {
  Cut out;
  out.of_node.resize(labels.size());
  for (Group& group : groups) {
    Partition partition;
    partition.target = group.target;
    partition.predicted_ns = launch_ns(model, group);
    for (const ir::NodeId n : group.nodes) {
      partition.predicted_ns += model.compute_ns(n, group.target);
      out.of_node[n] = static_cast<std::uint32_t>(out.partitions.size());
    }
    partition.nodes = std::move(group.nodes);
    out.predicted_ns += partition.predicted_ns;
    out.partitions.push_back(std::move(partition));
  }
  out.predicted_transfer_ns = model.total_transfer_ns(labels);
  out.predicted_ns += out.predicted_transfer_ns;
  return out;
}

}  // namespace

Result<Cut> cut(const ir::Graph& graph, const std::vector<Target>& targets,
                const Options& options) {
  BP_RETURN_IF_ERROR(check_targets(graph, targets, options));
  std::vector<ClaimRef> left_out;
  for (;;) {
    const Model model = build_model(graph, targets, options, left_out);
    Labels labels = choose_labels(graph, model);
    BP_ASSIGN_OR_RETURN(Grouping grouping, group_nodes(graph, model, labels));
    for (int round = 0; round < kMaxReturnRounds && grouping.in_cycles.empty(); ++round) {
      if (!return_to_host(graph, model, grouping.groups, labels)) break;
      BP_ASSIGN_OR_RETURN(grouping, group_nodes(graph, model, labels));
    }
    if (grouping.in_cycles.empty()) return make_cut(model, labels, std::move(grouping.groups));
    // Atomic claims that wait for each other cannot all be taken: cut again with fewer.
    for (const std::uint32_t i : grouping.in_cycles) {
      left_out.emplace_back(model.atomics[i].target, model.atomics[i].claim);
    }
  }
}

double assignment_cost_ns(const ir::Graph& graph, const std::vector<Target>& targets,
                          const Options& options, const std::vector<TargetId>& target_of_node) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  if (target_of_node.size() != graph.nodes.size()) return kInfinite;
  if (!check_targets(graph, targets, options).ok()) return kInfinite;
  for (const TargetId label : target_of_node) {
    if (label != kHost && label >= targets.size()) return kInfinite;
  }
  return build_model(graph, targets, options, {}).assignment_ns(target_of_node);
}

}  // namespace backplane::partition
