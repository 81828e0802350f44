#include "grouping.h"

#include <algorithm>
#include <queue>
#include <set>

#include "kernels/point_group.h"
#include "kernels/registry.h"

namespace backplane::opencl {
namespace {

using sdk::GraphView;
using sdk::NodeView;

constexpr std::size_t kNone = SIZE_MAX;
constexpr std::size_t kGroupNodes = 48;
constexpr std::size_t kGroupTensors = 24;  // arguments of a kernel are limited

using Dims = std::vector<bp_dim>;
Dims dims_of(const sdk::ValueView& v) { return {v.dims().begin(), v.dims().end()}; }

class Grouper {
 public:
  explicit Grouper(const GraphView& graph)
      : graph_(graph),
        users_(graph.value_count()),
        producer_(graph.value_count(), kNone),
        output_(graph.value_count(), false),
        group_(graph.size(), kNone) {
    for (std::size_t n = 0; n < graph.size(); ++n) {
      const NodeView node = graph[n];
      for (std::size_t i = 0; i < node.operand_count(); ++i)
        if (node.has_operand(i)) users_[node.operand_index(i)].push_back(n);
      for (std::size_t i = 0; i < node.result_count(); ++i)
        if (node.result_index(i) != BP_NONE) producer_[node.result_index(i)] = n;
    }
    for (const std::uint32_t v : graph.outputs()) output_[v] = true;
  }

  Grouping run() {
    for (std::size_t n = 0; n < graph_.size(); ++n) {
      const NodeView node = graph_[n];
      if (sdk::is_view_op(node.op())) continue;
      group_[n] = groups_.size();
      Group g;
      g.nodes = {static_cast<std::uint32_t>(n)};
      Space space;
      if (takes_epilogue(node)) g.kind = Group::kProduct;
      if (is_point_op(node)) {
        g.kind = Group::kPoints;
        space = space_of(node);
      }
      groups_.push_back(std::move(g));
      spaces_.push_back(std::move(space));
    }
    add_epilogues();
    join_points();
    Grouping out;
    order(out);
    return out;
  }

 private:
  static Dims narrow(const Space& s) {
    Dims out = s.wide;
    for (const std::size_t d : s.rows) out[d] = 1;
    return out;
  }
  static bool fits(const Dims& dims, const Space& s) {
    return dims == s.wide || (s.has_rows && dims == narrow(s));
  }

  // Whether two groups may become one: no way out of them and back in.
  bool acyclic(std::size_t a, std::size_t b) {
    std::vector<bool> seen(graph_.size(), false);
    std::vector<std::size_t> stack;
    bool fine = true;
    const auto inside = [&](std::size_t n) { return group_[n] == a || group_[n] == b; };
    const auto visit = [&](std::size_t n, bool from_inside) {
      const NodeView node = graph_[n];
      for (std::size_t r = 0; r < node.result_count(); ++r) {
        if (node.result_index(r) == BP_NONE) continue;
        for (const std::size_t u : users_[node.result_index(r)]) {
          if (inside(u)) {
            fine = fine && from_inside;
          } else if (!seen[u]) {
            seen[u] = true;
            stack.push_back(u);
          }
        }
      }
    };
    for (const std::size_t g : {a, b})
      for (const std::uint32_t n : groups_[g].nodes) visit(n, true);
    while (fine && !stack.empty()) {
      const std::size_t n = stack.back();
      stack.pop_back();
      visit(n, false);
      if (group_[n] == kNone) continue;
      for (const std::uint32_t m : groups_[group_[n]].nodes)
        if (!seen[m]) {
          seen[m] = true;
          stack.push_back(m);
        }
    }
    return fine;
  }
  void merge(std::size_t a, std::size_t b) {
    for (const std::uint32_t n : groups_[b].nodes) {
      group_[n] = a;
      groups_[a].nodes.push_back(n);
    }
    groups_[b].nodes.clear();
  }
  std::size_t tensor_count(std::size_t a, std::size_t b) const {
    std::set<std::uint32_t> values;
    for (const std::size_t g : {a, b})
      for (const std::uint32_t n : groups_[g].nodes) {
        const NodeView node = graph_[n];
        for (std::size_t i = 0; i < node.operand_count(); ++i)
          if (node.has_operand(i)) values.insert(node.operand_index(i));
      }
    return values.size();
  }

  bool feeds_rows(std::uint32_t value) const {
    return std::any_of(users_[value].begin(), users_[value].end(), [&](std::size_t n) {
      return group_[n] != kNone && groups_[group_[n]].kind == Group::kPoints &&
             spaces_[group_[n]].has_rows;
    });
  }
  // What follows a product point by point is computed while its tile is in registers.
  void add_epilogues() {
    for (std::size_t n = 0; n < graph_.size(); ++n) {
      const std::size_t g = group_[n];
      if (g == kNone || groups_[g].kind != Group::kProduct || groups_[g].nodes.front() != n)
        continue;
      std::uint32_t value = graph_[n].result_index();
      while (groups_[g].nodes.size() < 8 && users_[value].size() == 1 && !output_[value]) {
        const std::size_t u = users_[value][0];
        if (group_[u] == kNone || groups_[group_[u]].kind != Group::kPoints ||
            groups_[group_[u]].nodes.size() != 1 || spaces_[group_[u]].has_rows)
          break;
        const NodeView node = graph_[u];
        const Dims dims = dims_of(graph_.value(value));
        if (dims_of(node.result()) != dims || node.result_count() != 1) break;
        // A residual before a norm is cheaper in the norm, which reads the sum anyway.
        if (node.operand_count() > 1 && feeds_rows(node.result_index())) break;
        if (!acyclic(g, group_[u])) break;
        merge(g, group_[u]);
        value = node.result_index();
      }
    }
  }

  static bool compatible(const Space& a, const Space& b, Space& out) {
    if (a.has_rows == b.has_rows) {
      if (a.wide != b.wide || a.rows != b.rows) return false;
      out = a;
      return true;
    }
    const Space& with = a.has_rows ? a : b;
    if (!fits((a.has_rows ? b : a).wide, with)) return false;
    out = with;
    return true;
  }
  void join_points() {
    for (std::size_t n = 0; n < graph_.size(); ++n) {
      if (group_[n] == kNone || groups_[group_[n]].kind != Group::kPoints) continue;
      const NodeView node = graph_[n];
      for (std::size_t i = 0; i < node.operand_count(); ++i) {
        if (!node.has_operand(i)) continue;
        const std::uint32_t value = node.operand_index(i);
        const std::size_t p = producer_[value];
        if (p == kNone || group_[p] == kNone) continue;
        const std::size_t a = group_[p], b = group_[n];
        if (a == b || groups_[a].kind != Group::kPoints) continue;
        if (groups_[a].nodes.size() + groups_[b].nodes.size() > kGroupNodes) continue;
        Space joined;
        if (!compatible(spaces_[a], spaces_[b], joined)) continue;
        // A reduced value without its dims would line up with the wrong ones.
        if (!fits(dims_of(graph_.value(value)), joined)) continue;
        if (tensor_count(a, b) > kGroupTensors || !acyclic(a, b)) continue;
        merge(a, b);
        spaces_[a] = std::move(joined);
      }
    }
    for (Group& g : groups_)
      if (g.kind == Group::kPoints) std::sort(g.nodes.begin(), g.nodes.end());
  }

  // Kahn's algorithm over groups and views, smallest first node first.
  void order(Grouping& out) {
    const std::size_t count = groups_.size();
    const auto unit = [&](std::size_t n) { return group_[n] == kNone ? count + n : group_[n]; };
    std::vector<std::set<std::size_t>> next(count + graph_.size());
    std::vector<std::size_t> waiting(next.size(), 0), first(next.size(), kNone);
    for (std::size_t n = 0; n < graph_.size(); ++n) {
      const NodeView node = graph_[n];
      first[unit(n)] = std::min(first[unit(n)], n);
      for (std::size_t i = 0; i < node.operand_count(); ++i) {
        if (!node.has_operand(i)) continue;
        const std::size_t p = producer_[node.operand_index(i)];
        if (p == kNone || unit(p) == unit(n)) continue;
        if (next[unit(p)].insert(unit(n)).second) ++waiting[unit(n)];
      }
    }
    using Entry = std::pair<std::size_t, std::size_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
    for (std::size_t u = 0; u < next.size(); ++u)
      if (first[u] != kNone && waiting[u] == 0) ready.push({first[u], u});
    while (!ready.empty()) {
      const std::size_t u = ready.top().second;
      ready.pop();
      if (u < count) {
        out.steps.push_back(step_of(groups_[u], u));
        out.groups.push_back(std::move(groups_[u]));
      }
      for (const std::size_t v : next[u])
        if (--waiting[v] == 0) ready.push({first[v], v});
    }
  }

  // A single node's operands and results as it lists them; a product's, then what else its epilogue
  // reads, and the last node's result; of points, what they read and what others read of them.
  sdk::Step step_of(const Group& group, std::size_t id) const {
    sdk::Step step;
    step.nodes = group.nodes;
    const NodeView first = graph_[group.nodes[0]];
    const auto add = [](std::vector<std::uint32_t>& to, std::uint32_t v) {
      if (std::find(to.begin(), to.end(), v) == to.end()) to.push_back(v);
    };
    if (group.kind != Group::kPoints) {
      for (std::size_t i = 0; i < first.operand_count(); ++i)
        step.operands.push_back(first.operand_index(i));
    }
    if (group.kind == Group::kSingle ||
        (group.kind == Group::kProduct && group.nodes.size() == 1)) {
      for (std::size_t i = 0; i < first.result_count(); ++i)
        step.results.push_back(first.result_index(i));
      return step;
    }
    for (const std::uint32_t n : group.nodes) {
      const NodeView node = graph_[n];
      for (std::size_t i = 0; i < node.operand_count(); ++i) {
        const std::uint32_t v = node.operand_index(i);
        if (v != BP_NONE && (producer_[v] == kNone || group_[producer_[v]] != id))
          add(step.operands, v);
      }
      for (std::size_t i = 0; i < node.result_count(); ++i) {
        const std::uint32_t v = node.result_index(i);
        if (v == BP_NONE || !storage_of(graph_.value(v).dtype())) continue;
        if (output_[v] || std::any_of(users_[v].begin(), users_[v].end(),
                                      [&](std::size_t u) { return group_[u] != id; }))
          add(step.results, v);
      }
    }
    return step;
  }

  const GraphView& graph_;
  std::vector<std::vector<std::size_t>> users_;
  std::vector<std::size_t> producer_;
  std::vector<bool> output_;
  std::vector<std::size_t> group_;  // per node; kNone for views
  std::vector<Group> groups_;
  std::vector<Space> spaces_;
};

}  // namespace

Grouping group_nodes(const GraphView& graph) { return Grouper(graph).run(); }

}  // namespace backplane::opencl
