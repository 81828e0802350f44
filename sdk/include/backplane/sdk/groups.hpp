// Joining nodes that one kernel computes: who reads what, which groups may join, the order that the
// groups run in, and the values that pass between them. What a group is good for is the plugin's
// own knowledge: it keeps that beside, by the group's number.
#pragma once

#include <backplane/sdk/program.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <set>
#include <utility>
#include <vector>

namespace backplane::sdk {

// At first every node is a group of its own, numbered in graph order; views are in none.
class NodeGroups {
 public:
  static constexpr std::size_t kNone = SIZE_MAX;

  // Keeps a reference to `graph`.
  explicit NodeGroups(const GraphView& graph)
      : graph_(graph),
        users_(graph.value_count()),
        producer_(graph.value_count(), kNone),
        output_(graph.value_count(), false),
        group_(graph.size(), kNone),
        seen_(graph.size(), 0),
        straddling_(graph.size(), 0) {
    for (std::size_t n = 0; n < graph.size(); ++n) {
      const NodeView node = graph[n];
      for (std::size_t i = 0; i < node.operand_count(); ++i)
        if (node.has_operand(i)) users_[node.operand_index(i)].push_back(n);
      for (std::size_t i = 0; i < node.result_count(); ++i)
        if (node.result_index(i) != BP_NONE) producer_[node.result_index(i)] = n;
      if (node.is_view()) continue;
      group_[n] = nodes_.size();
      nodes_.push_back({static_cast<std::uint32_t>(n)});
    }
    for (const std::uint32_t v : graph.outputs()) output_[v] = true;
  }

  std::size_t size() const { return nodes_.size(); }
  std::size_t group_of(std::size_t node) const { return group_[node]; }  // kNone: a view
  // In the order they joined; none where the group has joined another.
  const std::vector<std::uint32_t>& nodes(std::size_t group) const { return nodes_[group]; }
  const std::vector<std::size_t>& users(std::uint32_t value) const { return users_[value]; }
  std::size_t producer(std::uint32_t value) const { return producer_[value]; }  // kNone: an input
  bool is_output(std::uint32_t value) const { return output_[value]; }
  // The only reader of a value that nobody else needs; kNone where there are others.
  std::size_t only_user(std::uint32_t value) const {
    return users_[value].size() == 1 && !output_[value] ? users_[value][0] : kNone;
  }
  bool is_read_outside(std::uint32_t value, std::size_t group) const {
    return output_[value] || std::any_of(users_[value].begin(), users_[value].end(),
                                         [&](std::size_t u) { return group_[u] != group; });
  }

  // Where a product reads a matrix as its right factor: as it is, or its transpose.
  struct FactorUse {
    std::size_t node;
    bool transposed;
  };
  // All uses of `value`, also through transposing views; false where it has another. `right` says
  // which operand of a node is the right factor (kNone: none); linear's is a transpose.
  template <class F>
  bool find_factor_uses(std::uint32_t value, F&& right, std::vector<FactorUse>& out,
                        bool transposed = false) const {
    if (output_[value]) return false;
    for (const std::size_t n : users_[value]) {
      const NodeView node = graph_[n];
      if (node.turns_matrix()) {
        if (!find_factor_uses(node.result_index(), right, out, !transposed)) return false;
        continue;
      }
      const std::size_t own = right(node);
      if (own == kNone) return false;
      for (std::size_t i = 0; i < node.operand_count(); ++i)
        if ((node.operand_index(i) == value) != (i == own)) return false;
      out.push_back({n, (node.op() == "aten.linear") != transposed});
    }
    return true;
  }

  // Whether two groups may become one: no way out of them and back in.
  bool may_join(std::size_t a, std::size_t b) {
    ++stamp_;
    // Readers come later in the graph, and a group leads back to its first node: from behind a
    // place that no group lies over nothing leads back.
    std::size_t end = std::max(last_node(a), last_node(b));
    while (straddling_[end] > 0) ++end;
    std::vector<std::size_t> stack;
    for (const std::size_t g : {a, b})
      for (const std::uint32_t n : nodes_[g])
        for_each_user(n, [&](std::size_t u) {
          if (u <= end && group_[u] != a && group_[u] != b) push(u, stack);
        });
    while (!stack.empty()) {
      const std::size_t n = stack.back();
      stack.pop_back();
      bool comes_back = false;
      for_each_user(n, [&](std::size_t u) {
        comes_back = comes_back || group_[u] == a || group_[u] == b;
        if (u <= end) push(u, stack);
      });
      if (comes_back) return false;
      // A group runs as a whole: one way in leads to every way out.
      if (group_[n] != kNone)
        for (const std::uint32_t m : nodes_[group_[n]]) push(m, stack);
    }
    return true;
  }
  // b's nodes go to a.
  void join(std::size_t a, std::size_t b) {
    count_straddled(a, -1);
    count_straddled(b, -1);
    for (const std::uint32_t n : nodes_[b]) group_[n] = a;
    nodes_[a].insert(nodes_[a].end(), nodes_[b].begin(), nodes_[b].end());
    nodes_[b].clear();
    count_straddled(a, 1);
  }
  void sort_nodes(std::size_t group) { std::sort(nodes_[group].begin(), nodes_[group].end()); }

  // The groups that have nodes, in an order that respects every dependency, also through views;
  // the smallest first node comes first.
  std::vector<std::size_t> order() const {
    // Views are units of their own after the groups.
    const std::size_t count = nodes_.size();
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
    std::vector<std::size_t> out;
    while (!ready.empty()) {
      const std::size_t u = ready.top().second;
      ready.pop();
      if (u < count) out.push_back(u);
      for (const std::size_t v : next[u])
        if (--waiting[v] == 0) ready.push({first[v], v});
    }
    return out;
  }

  // A node's own operands and results, as it lists them.
  static void list_operands(const NodeView& node, Step& step) {
    for (std::size_t i = 0; i < node.operand_count(); ++i)
      step.operands.push_back(node.operand_index(i));
  }
  static void list_results(const NodeView& node, Step& step) {
    for (std::size_t i = 0; i < node.result_count(); ++i)
      step.results.push_back(node.result_index(i));
  }
  // Appends what the group reads from outside, once each; not `except`.
  void add_operands(std::size_t group, Step& step, std::uint32_t except = BP_NONE) const {
    for (const std::uint32_t n : nodes_[group]) {
      const NodeView node = graph_[n];
      for (std::size_t i = 0; i < node.operand_count(); ++i) {
        const std::uint32_t v = node.operand_index(i);
        if (v != BP_NONE && v != except &&
            !(producer_[v] != kNone && group_[producer_[v]] == group))
          add_once(v, step.operands);
      }
    }
  }
  // Appends what is read of the group outside, where `keep(value)`.
  template <class F>
  void add_results(std::size_t group, Step& step, F&& keep) const {
    for (const std::uint32_t n : nodes_[group]) {
      const NodeView node = graph_[n];
      for (std::size_t i = 0; i < node.result_count(); ++i) {
        const std::uint32_t v = node.result_index(i);
        if (v != BP_NONE && keep(v) && is_read_outside(v, group)) add_once(v, step.results);
      }
    }
  }
  void add_results(std::size_t group, Step& step) const {
    add_results(group, step, [](std::uint32_t) { return true; });
  }

 private:
  template <class F>
  void for_each_user(std::size_t n, F&& visit) const {
    const NodeView node = graph_[n];
    for (std::size_t r = 0; r < node.result_count(); ++r)
      if (node.result_index(r) != BP_NONE)
        for (const std::size_t u : users_[node.result_index(r)]) visit(u);
  }
  void push(std::size_t node, std::vector<std::size_t>& stack) {
    if (seen_[node] == stamp_) return;
    seen_[node] = stamp_;
    stack.push_back(node);
  }
  std::size_t last_node(std::size_t group) const {
    return *std::max_element(nodes_[group].begin(), nodes_[group].end());
  }
  void count_straddled(std::size_t group, int change) {
    const auto [first, last] = std::minmax_element(nodes_[group].begin(), nodes_[group].end());
    for (std::size_t n = *first; n < *last; ++n) straddling_[n] += change;
  }
  static void add_once(std::uint32_t value, std::vector<std::uint32_t>& to) {
    if (std::find(to.begin(), to.end(), value) == to.end()) to.push_back(value);
  }

  const GraphView& graph_;
  std::vector<std::vector<std::size_t>> users_;  // of each value, by node
  std::vector<std::size_t> producer_;
  std::vector<bool> output_;
  std::vector<std::size_t> group_;  // of each node
  std::vector<std::vector<std::uint32_t>> nodes_;
  std::vector<std::uint64_t> seen_;  // of each node: the search that reached it last
  std::uint64_t stamp_ = 0;
  std::vector<int> straddling_;  // of each node: groups with nodes up to it and behind it
};

}  // namespace backplane::sdk
