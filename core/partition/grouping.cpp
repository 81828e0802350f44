#include "core/partition/grouping.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <tuple>

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/strong_components.hpp>

namespace backplane::partition {
namespace {

// More targets than this take turns in rotations of one priority instead of every permutation.
constexpr std::size_t kMaxPermuted = 4;

// The graph with every taken atomic claim contracted to one unit.
class Units {
 public:
  Units(const ir::Graph& graph, const Model& model, const Labels& labels) {
    const std::size_t count = labels.size();
    unit_of_.assign(count, ir::kNone);
    std::vector<std::uint32_t> unit_of_atomic(model.atomics.size(), ir::kNone);
    for (ir::NodeId n = 0; n < count; ++n) {
      const TargetId label = labels[n];
      const std::uint32_t atomic = label == kHost ? ir::kNone : model.atomic_of[label][n];
      if (atomic != ir::kNone && unit_of_atomic[atomic] != ir::kNone) {
        unit_of_[n] = unit_of_atomic[atomic];
        nodes_[unit_of_[n]].push_back(n);
        continue;
      }
      unit_of_[n] = static_cast<std::uint32_t>(nodes_.size());
      nodes_.push_back({n});
      label_.push_back(label);
      atomic_.push_back(atomic);
      if (atomic != ir::kNone) unit_of_atomic[atomic] = unit_of_[n];
    }
    first_user_.assign(size() + 1, 0);
    pending_.assign(size(), 0);
    for_each_edge(graph, [&](std::uint32_t from, std::uint32_t to) {
      ++first_user_[from + 1];
      ++pending_[to];
    });
    std::partial_sum(first_user_.begin(), first_user_.end(), first_user_.begin());
    users_.resize(first_user_.back());
    std::vector<std::uint32_t> next = first_user_;
    for_each_edge(graph, [&](std::uint32_t from, std::uint32_t to) { users_[next[from]++] = to; });
  }

  std::size_t size() const { return nodes_.size(); }
  const std::vector<ir::NodeId>& nodes(std::uint32_t unit) const { return nodes_[unit]; }
  TargetId label(std::uint32_t unit) const { return label_[unit]; }
  std::uint32_t atomic(std::uint32_t unit) const { return atomic_[unit]; }
  std::span<const std::uint32_t> users(std::uint32_t unit) const {
    return std::span(users_).subspan(first_user_[unit], first_user_[unit + 1] - first_user_[unit]);
  }
  // Per unit how many edges come in.
  const std::vector<std::uint32_t>& pending() const { return pending_; }

 private:
  // Operands, and the chain of nodes with effects: draws from a generator keep the graph's order.
  template <class Visit>
  void for_each_edge(const ir::Graph& graph, Visit visit) const {
    std::uint32_t last_effect = ir::kNone;
    for (ir::NodeId n = 0; n < unit_of_.size(); ++n) {
      if (ir::has_effects(graph.nodes[n])) {
        if (last_effect != ir::kNone && last_effect != unit_of_[n]) visit(last_effect, unit_of_[n]);
        last_effect = unit_of_[n];
      }
      for (const ir::ValueId v : graph.nodes[n].operands) {
        if (v == ir::kNone || graph.values[v].producer == ir::kNone) continue;
        const std::uint32_t from = unit_of_[graph.values[v].producer];
        if (from != unit_of_[n]) visit(from, unit_of_[n]);
      }
    }
  }

  std::vector<std::uint32_t> unit_of_;
  std::vector<std::vector<ir::NodeId>> nodes_;
  std::vector<TargetId> label_;
  std::vector<std::uint32_t> atomic_;
  std::vector<std::uint32_t> first_user_, users_, pending_;
};

struct Run {
  TargetId target = kHost;
  std::vector<std::uint32_t> units;
};
struct Schedule {
  std::vector<Run> runs;
  std::vector<bool> done;  // per unit; all, unless atomic claims wait for each other
  bool complete = false;
};

Schedule make_schedule(const Units& units, const std::vector<TargetId>& priority) {
  Schedule schedule;
  schedule.done.assign(units.size(), false);
  std::vector<std::uint32_t> pending = units.pending();
  std::vector<std::vector<std::uint32_t>> ready(priority.size());
  std::vector<std::uint32_t> ready_atomics;
  const auto add_ready = [&](std::uint32_t unit) {
    if (units.atomic(unit) != ir::kNone) {
      ready_atomics.push_back(unit);
      return;
    }
    const auto at = std::ranges::find(priority, units.label(unit));
    ready[static_cast<std::size_t>(at - priority.begin())].push_back(unit);
  };
  const auto execute = [&](std::uint32_t unit) {
    schedule.done[unit] = true;
    schedule.runs.back().units.push_back(unit);
    for (const std::uint32_t user : units.users(unit)) {
      if (--pending[user] == 0) add_ready(user);
    }
  };
  for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
    if (pending[unit] == 0) add_ready(unit);
  }
  for (;;) {
    if (!ready_atomics.empty()) {
      const auto first = std::ranges::min_element(ready_atomics);
      const std::uint32_t unit = *first;
      ready_atomics.erase(first);
      schedule.runs.push_back({units.label(unit), {}});
      execute(unit);
      continue;
    }
    const auto queue =
        std::ranges::find_if(ready, [](const auto& waiting) { return !waiting.empty(); });
    if (queue == ready.end()) break;
    schedule.runs.push_back({priority[static_cast<std::size_t>(queue - ready.begin())], {}});
    while (!queue->empty()) {
      const std::uint32_t unit = queue->back();
      queue->pop_back();
      execute(unit);
    }
  }
  schedule.complete = std::ranges::find(schedule.done, false) == schedule.done.end();
  return schedule;
}

std::vector<std::vector<TargetId>> priorities(const Units& units) {
  std::vector<TargetId> used;
  for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
    if (units.atomic(unit) == ir::kNone) used.push_back(units.label(unit));
  }
  std::ranges::sort(used);
  used.erase(std::unique(used.begin(), used.end()), used.end());
  std::vector<std::vector<TargetId>> result;
  if (used.size() <= kMaxPermuted) {
    do {
      result.push_back(used);
    } while (std::ranges::next_permutation(used).found);
    return result;
  }
  for (std::size_t i = 0; i < used.size(); ++i) {
    result.push_back(used);
    std::rotate(used.begin(), used.begin() + 1, used.end());
  }
  return result;
}

std::vector<Group> groups_of(const Schedule& schedule, const Units& units) {
  std::vector<Group> groups;
  for (const Run& run : schedule.runs) {
    Group group{run.target, {}};
    for (const std::uint32_t unit : run.units) {
      group.nodes.insert(group.nodes.end(), units.nodes(unit).begin(), units.nodes(unit).end());
    }
    std::ranges::sort(group.nodes);
    groups.push_back(std::move(group));
  }
  return groups;
}

// A view whose operand another target (or the caller) holds was placed as soon as it could be; it
// moves to the first group that uses it. Later is always possible, as no user is earlier.
void sink_views(const ir::Graph& graph, const Model& model, const Labels& labels,
                std::vector<Group>& groups) {
  std::vector<std::uint32_t> group_of(labels.size(), 0);
  for (std::uint32_t g = 0; g < groups.size(); ++g) {
    for (const ir::NodeId n : groups[g].nodes) group_of[n] = g;
  }
  // Views that hang, directly or by other views, on a computation of their own group stay.
  std::vector<bool> stays(labels.size(), false);
  for (ir::NodeId n = 0; n < labels.size(); ++n) {
    stays[n] =
        !model.is_view[n] || (labels[n] != kHost && model.atomic_of[labels[n]][n] != ir::kNone);
    for (const ir::ValueId v : graph.nodes[n].operands) {
      if (stays[n]) break;
      if (v == ir::kNone || graph.values[v].producer == ir::kNone) continue;
      const ir::NodeId producer = graph.values[v].producer;
      stays[n] = stays[producer] && group_of[producer] == group_of[n];
    }
  }
  const std::vector<std::vector<ir::NodeId>> users = graph.users();
  bool moved = false;
  for (ir::NodeId n = static_cast<ir::NodeId>(labels.size()); n-- > 0;) {
    if (stays[n]) continue;
    std::uint32_t first = ir::kNone;
    for (const ir::ValueId v : graph.nodes[n].results) {
      for (const ir::NodeId user : users[v]) first = std::min(first, group_of[user]);
    }
    if (first == ir::kNone || first == group_of[n] || groups[first].target != labels[n]) continue;
    const ir::NodeId member = groups[first].nodes.front();
    if (labels[n] != kHost && model.atomic_of[labels[n]][member] != ir::kNone) continue;
    group_of[n] = first;
    moved = true;
  }
  if (!moved) return;
  for (Group& group : groups) group.nodes.clear();
  for (ir::NodeId n = 0; n < labels.size(); ++n) groups[group_of[n]].nodes.push_back(n);
  std::erase_if(groups, [](const Group& group) { return group.nodes.empty(); });
}

// One atomic claim of every cycle: the smallest, then the first.
std::vector<std::uint32_t> atomics_in_cycles(const Units& units, const Schedule& schedule) {
  using Digraph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS>;
  Digraph waiting(units.size());
  for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
    if (schedule.done[unit]) continue;
    for (const std::uint32_t user : units.users(unit)) boost::add_edge(unit, user, waiting);
  }
  std::vector<std::uint32_t> component(units.size());
  const std::uint32_t count = static_cast<std::uint32_t>(boost::strong_components(
      waiting, boost::make_iterator_property_map(component.begin(),
                                                 boost::get(boost::vertex_index, waiting))));
  std::vector<std::uint32_t> size(count, 0), choice(count, ir::kNone);
  for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
    const std::uint32_t c = component[unit];
    ++size[c];
    if (units.atomic(unit) == ir::kNone) continue;
    const bool smaller =
        choice[c] == ir::kNone || units.nodes(unit).size() < units.nodes(choice[c]).size();
    if (smaller) choice[c] = unit;
  }
  std::vector<std::uint32_t> result;
  for (std::uint32_t c = 0; c < count; ++c) {
    if (size[c] > 1 && choice[c] != ir::kNone) result.push_back(units.atomic(choice[c]));
  }
  return result;
}

}  // namespace

double launch_ns(const Model& model, const Group& group) {
  double most = 0;
  if (group.target == kHost) return most;
  for (const ir::NodeId n : group.nodes) most = std::max(most, model.launch_ns[group.target][n]);
  return most;
}

Result<Grouping> group_nodes(const ir::Graph& graph, const Model& model, const Labels& labels) {
  const Units units(graph, model, labels);
  Grouping best;
  std::tuple<double, std::size_t, std::size_t> best_rank;
  for (const std::vector<TargetId>& priority : priorities(units)) {
    const Schedule schedule = make_schedule(units, priority);
    if (!schedule.complete) {
      best.groups.clear();
      best.in_cycles = atomics_in_cycles(units, schedule);
      if (best.in_cycles.empty()) {
        return Status(Code::kInternal,
                      "The nodes of graph '" + graph.name + "' depend on each other in a cycle.");
      }
      return best;
    }
    std::vector<Group> groups = groups_of(schedule, units);
    sink_views(graph, model, labels, groups);
    double launches_ns = 0;
    std::size_t launches = 0;
    for (const Group& group : groups) {
      launches_ns += launch_ns(model, group);
      launches += group.target != kHost ? 1 : 0;
    }
    const std::tuple rank{launches_ns, launches, groups.size()};
    if (!best.groups.empty() && rank >= best_rank) continue;
    best.groups = std::move(groups);
    best_rank = rank;
  }
  return best;
}

}  // namespace backplane::partition
