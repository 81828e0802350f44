#include "grouping.hpp"

#include <backplane/kernels/panels.hpp>
#include <backplane/sdk/groups.hpp>
#include <backplane/sdk/points.hpp>

#include <algorithm>
#include <set>
#include <utility>

#include "point_group.hpp"
#include "registry.hpp"

namespace backplane::kernels {
namespace {

using sdk::GraphView;
using sdk::NodeView;

constexpr std::size_t kNone = sdk::NodeGroups::kNone;
constexpr std::size_t kGroupNodes = 48;
constexpr std::size_t kGroupTensors = 24;  // arguments of a kernel are limited

// The operand that may be a packed weight.
std::size_t packed_operand(const NodeView& node) {
  const std::string_view op = node.op();
  if (op == "aten.embedding") return 0;
  if (op == "aten.linear" || op == "aten.mm") return 1;
  return op == "aten.addmm" ? 2 : kNone;
}

class Grouper {
 public:
  Grouper(const GraphView& graph, std::int64_t panel_columns)
      : graph_(graph), panel_columns_(panel_columns), groups_(graph) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const NodeView node = graph[groups_.nodes(g).front()];
      Group::Kind kind = Group::kSingle;
      sdk::PointSpace space;
      if (takes_epilogue(node)) kind = Group::kProduct;
      if (is_point_op(node)) {
        kind = Group::kPoints;
        space = space_of(node);
      }
      kinds_.push_back(kind);
      spaces_.push_back(std::move(space));
    }
  }

  Grouping run(const std::function<bool(std::size_t)>& may_pack) {
    add_epilogues();
    join_points();
    join_parts();
    for (std::size_t g = 0; g < groups_.size(); ++g)
      if (kinds_[g] == Group::kPoints) groups_.sort_nodes(g);
    Grouping out;
    pack(may_pack, out);
    for (const std::size_t g : groups_.order()) {
      out.steps.push_back(step_of(g));
      out.groups.push_back({kinds_[g], groups_.nodes(g)});
    }
    return out;
  }

 private:
  std::size_t tensor_count(std::size_t a, std::size_t b) const {
    std::set<std::uint32_t> values;
    for (const std::size_t g : {a, b})
      for (const std::uint32_t n : groups_.nodes(g)) {
        const NodeView node = graph_[n];
        for (std::size_t i = 0; i < node.operand_count(); ++i)
          if (node.has_operand(i)) values.insert(node.operand_index(i));
      }
    return values.size();
  }
  // A list by channel lines up with another dim than it would as an operand of its own.
  bool reads_in_two_ways(std::size_t a, std::size_t b) const {
    std::set<std::uint32_t> by_channel, plain;
    for (const std::size_t g : {a, b})
      for (const std::uint32_t n : groups_.nodes(g)) {
        const NodeView node = graph_[n];
        for (std::size_t i = 0; i < node.operand_count(); ++i)
          if (node.has_operand(i))
            (is_channel_operand(node, i) ? by_channel : plain).insert(node.operand_index(i));
      }
    return std::ranges::any_of(by_channel, [&](std::uint32_t v) { return plain.contains(v); });
  }
  // Results but the first that nobody reads do not count.
  bool has_one_result(const NodeView& node) const {
    for (std::size_t r = 1; r < node.result_count(); ++r) {
      const std::uint32_t v = node.result_index(r);
      if (v != BP_NONE && (!groups_.users(v).empty() || groups_.is_output(v))) return false;
    }
    return true;
  }
  // Groups of points whose spaces fit together.
  bool may_share_kernel(std::size_t a, std::size_t b) {
    return groups_.nodes(a).size() + groups_.nodes(b).size() <= kGroupNodes &&
           tensor_count(a, b) <= kGroupTensors && !reads_in_two_ways(a, b) &&
           groups_.may_join(a, b);
  }
  bool is_points(std::size_t node) const {
    const std::size_t g = groups_.group_of(node);
    return g != kNone && kinds_[g] == Group::kPoints;
  }

  bool feeds_rows(std::uint32_t value) const {
    const auto& users = groups_.users(value);
    return std::any_of(users.begin(), users.end(), [&](std::size_t n) {
      return is_points(n) && spaces_[groups_.group_of(n)].has_rows;
    });
  }
  // What follows a product point by point is computed while its tile is in registers.
  void add_epilogues() {
    for (std::size_t n = 0; n < graph_.size(); ++n) {
      const std::size_t g = groups_.group_of(n);
      if (g == kNone || kinds_[g] != Group::kProduct || groups_.nodes(g).front() != n) continue;
      std::uint32_t value = graph_[n].result_index();
      while (groups_.nodes(g).size() < 8) {
        const std::size_t u = groups_.only_user(value);
        if (u == kNone || !is_points(u)) break;
        const std::size_t own = groups_.group_of(u);
        if (groups_.nodes(own).size() != 1 || spaces_[own].has_rows) break;
        const NodeView node = graph_[u];
        if (!has_one_result(node) ||
            !std::ranges::equal(node.result().dims(), graph_.value(value).dims()))
          break;
        // A residual before a norm is cheaper in the norm, which reads the sum anyway.
        if (node.operand_count() > 1 && feeds_rows(node.result_index())) break;
        if (reads_in_two_ways(g, own) || !groups_.may_join(g, own)) break;
        groups_.join(g, own);
        value = node.result_index();
      }
    }
  }

  void join_points() {
    for (std::size_t n = 0; n < graph_.size(); ++n) {
      if (!is_points(n)) continue;
      const NodeView node = graph_[n];
      for (std::size_t i = 0; i < node.operand_count(); ++i) {
        if (!node.has_operand(i)) continue;
        const std::uint32_t value = node.operand_index(i);
        const std::size_t p = groups_.producer(value);
        if (p == kNone || !is_points(p)) continue;
        const std::size_t a = groups_.group_of(p), b = groups_.group_of(n);
        if (a == b) continue;
        auto joined = sdk::PointSpace::join(spaces_[a], spaces_[b]);
        // A reduced value without its dims would line up with the wrong ones.
        if (!joined || !joined->fits(graph_.value(value).dims())) continue;
        if (!may_share_kernel(a, b)) continue;
        groups_.join(a, b);
        spaces_[a] = std::move(*joined);
      }
    }
  }

  // Points that are parts of a joined tensor are stored in their places in it, by one kernel where
  // groups may join.
  void join_parts() {
    for (std::size_t n = 0; n < graph_.size(); ++n) {
      const NodeView node = graph_[n];
      if (!joins_points(node)) continue;
      for (std::size_t i = 0; i < node.list_count(); ++i) {
        const std::size_t p = groups_.producer(node.operand_index(node.list_first() + i));
        if (p == kNone || !is_points(p)) continue;
        const std::size_t a = groups_.group_of(p), b = groups_.group_of(n);
        const auto dims = node.operand(node.list_first() + i).dims();
        if (a != b && !spaces_[a].has_rows && std::ranges::equal(dims, spaces_[a].wide) &&
            may_share_kernel(a, b))
          groups_.join(a, b);
      }
    }
  }

  // Static matrices that products and embeddings alone read are packed once.
  void pack(const std::function<bool(std::size_t)>& may_pack, Grouping& out) {
    const auto inputs = graph_.inputs();
    out.layouts.assign(inputs.size(), {BP_LAYOUT_STRIDED, 0, 0});
    packed_.assign(graph_.size(), BP_NONE);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const sdk::ValueView v = graph_.value(inputs[i]);
      if (!v.has(BP_VALUE_STATIC) || !(v.dtype() == sdk::kFloat32) || v.rank() != 2 || !may_pack(i))
        continue;
      if (std::ranges::any_of(v.dims(), [](bp_dim d) { return d < 1; })) continue;
      if (std::ranges::count(inputs, inputs[i]) != 1) continue;
      std::vector<sdk::NodeGroups::FactorUse> uses;
      if (!groups_.find_factor_uses(inputs[i], packed_operand, uses)) continue;
      std::optional<bool> transposed;
      bool alike = true;
      for (const auto& use : uses) {
        if (graph_[use.node].op() == "aten.embedding") continue;
        alike = alike && use.transposed == transposed.value_or(use.transposed);
        transposed = use.transposed;
      }
      if (!transposed || !alike) continue;
      const std::int64_t columns = v.dims()[*transposed ? 0 : 1];
      for (const auto& use : uses) packed_[use.node] = inputs[i];
      out.layouts[i] = {BP_LAYOUT_OPAQUE, 0,
                        PanelLayout::choose(columns, *transposed, panel_columns_).id()};
    }
  }

  // A single node's operands and results as it lists them; a product's, then what else its epilogue
  // reads, and the last node's result; of points, what they read and what others read of them.
  sdk::Step step_of(std::size_t group) const {
    sdk::Step step;
    step.nodes = groups_.nodes(group);
    const NodeView first = graph_[step.nodes[0]];
    if (kinds_[group] != Group::kPoints) sdk::NodeGroups::list_operands(first, step);
    std::uint32_t replaced = BP_NONE;
    if (packed_[step.nodes[0]] != BP_NONE) {
      std::uint32_t& own = step.operands[packed_operand(first)];
      replaced = std::exchange(own, packed_[step.nodes[0]]);
    }
    if (kinds_[group] != Group::kPoints && step.nodes.size() == 1) {
      sdk::NodeGroups::list_results(first, step);
      return step;
    }
    groups_.add_operands(group, step, replaced);
    groups_.add_results(group, step, [&](std::uint32_t v) {
      return storage_of(graph_.value(v).dtype()).has_value();
    });
    return step;
  }

  const GraphView& graph_;
  std::int64_t panel_columns_;
  sdk::NodeGroups groups_;
  std::vector<Group::Kind> kinds_;  // of each group
  std::vector<sdk::PointSpace> spaces_;
  std::vector<std::uint32_t> packed_;  // of each node: the weight it reads in panels
};

}  // namespace

Grouping group_nodes(const GraphView& graph, const std::function<bool(std::size_t)>& may_pack,
                     std::int64_t panel_columns) {
  return Grouper(graph, panel_columns).run(may_pack);
}

}  // namespace backplane::kernels
