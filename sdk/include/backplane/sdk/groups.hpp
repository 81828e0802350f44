// Joining nodes that one kernel computes: who reads what, which groups may join, the order that the
// groups run in, and the values that pass between them. What a group is good for is the plugin's
// own knowledge: it keeps that beside, by the group's number.
#pragma once

#include <backplane/sdk/program.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace backplane::sdk {

// The points that pointwise and row operators of one group are computed at.
struct PointSpace {
  std::vector<bp_dim> wide;
  std::vector<std::size_t> rows;  // the dims of `wide` that a row is made of
  bool has_rows = false;

  // Whether a value of these dims has a place in it: whole, or one element a row.
  bool fits(std::span<const bp_dim> dims) const {
    const auto same = [&](const std::vector<bp_dim>& own) {
      return std::equal(dims.begin(), dims.end(), own.begin(), own.end());
    };
    if (same(wide)) return true;
    if (!has_rows) return false;
    std::vector<bp_dim> narrow = wide;
    for (const std::size_t d : rows) narrow[d] = 1;
    return same(narrow);
  }
  // The space of both groups together.
  static std::optional<PointSpace> join(const PointSpace& a, const PointSpace& b) {
    if (a.has_rows == b.has_rows) {
      if (a.wide != b.wide || a.rows != b.rows) return std::nullopt;
      return a;
    }
    const PointSpace &with = a.has_rows ? a : b, &without = a.has_rows ? b : a;
    if (!with.fits(without.wide)) return std::nullopt;
    return with;
  }
};

inline bool is_float(bp_dtype type) {
  return type.code == BP_DTYPE_FLOAT || type.code == BP_DTYPE_BFLOAT;
}
inline bool is_half(bp_dtype type) { return is_float(type) && type.bits == 16; }

// Why no kernel of points can run a pointwise or row operator, whose tensors have kernels' types.
inline std::optional<Refusal> refuse_points(const NodeView& node, bool floats_only) {
  const auto no = [](bp_refusal reason, std::string_view text) {
    return Refusal{0, reason, std::string(text)};
  };
  if (node.result().dtype().bits == 0) return no(BP_REFUSED_ATTRIBUTE, "no result");
  if (node.operand_count() == 0 || !node.has_operand(0))
    return no(BP_REFUSED_ATTRIBUTE, "no tensor operand");
  if (floats_only && !is_float(node.result().dtype()))
    return no(BP_REFUSED_DTYPE, "floating point results only");
  for (std::size_t i = 0; i < node.attribute_count(); ++i) {
    const bp_attribute& a = node.raw_attribute(i);
    const std::string_view name = view(a.name);
    if (a.kind != BP_ATTRIBUTE_STRING) continue;
    const std::string_view text = node.text_or(name, "");
    if (name == "rounding_mode" && text != "floor" && text != "trunc")
      return no(BP_REFUSED_ATTRIBUTE, "an unknown rounding mode");
    for (const std::string_view number :
         {"other", "value", "self", "exponent", "min", "max", "alpha"})
      if (name == number) return no(BP_REFUSED_DTYPE, "no complex numbers");  // which are text
  }
  const std::string_view op = node.op();
  if (op.starts_with("aten.bitwise") || op.starts_with("aten.gcd") ||
      op.find("shift__.") != std::string_view::npos)
    for (std::size_t i = 0; i < node.operand_count(); ++i)
      if (node.has_operand(i) && is_float(node.operand(i).dtype()))
        return no(BP_REFUSED_DTYPE, "bit operations on integers only");
  return std::nullopt;
}

// Whether a small error of a node's operands may become a large one of its results: they are whole
// numbers or truth values, or the operator jumps.
inline bool jumps(const NodeView& node) {
  // Operators with steps, without their overloads.
  static constexpr std::string_view kJump[] = {
      "angle",
      "bernoulli",
      "ceil",
      "elu_backward",
      "fix",
      "floor",
      "floor_divide",
      "fmod",
      "frac",
      "hardshrink",
      "hardshrink_backward",
      "hardsigmoid_backward",
      "hardswish_backward",
      "hardtanh_backward",
      "heaviside",
      "huber_loss_backward",
      "leaky_relu_backward",
      "nan_to_num",
      "nextafter",
      "remainder",
      "round",
      "sgn",
      "sign",
      "smooth_l1_loss_backward",
      "softplus_backward",
      "softshrink_backward",
      "threshold",
      "threshold_backward",
      "trunc",
      // With poles, beside which no digit says where the value is.
      "digamma",
      "lgamma",
      "polygamma",
      "tan",
  };
  for (std::size_t r = 0; r < node.result_count(); ++r)
    if (node.result_index(r) != BP_NONE && !is_float(node.result(r).dtype())) return true;
  std::string_view name = node.op();
  if (!name.starts_with("aten.")) return false;
  name.remove_prefix(5);
  name = name.substr(0, name.find('.'));
  if (name == "div") return node.attribute("rounding_mode") != nullptr;
  if (name == "pow") return node.attribute("exponent") == nullptr;  // of negative numbers
  return std::find(std::begin(kJump), std::end(kJump), name) != std::end(kJump);
}

// Values of 16-bit floats that a step makes and reads itself have float32's digits in registers,
// which makes chains of them better than PyTorch's. These have to be read with their own type's
// digits all the same: all that leads to a node that jumps, so that a whole number is the one that
// it would be without fusion; what becomes another type, so that an overflow shows; and what the
// step stores, so that its results agree with each other.
inline std::set<std::uint32_t> rounded_values(const GraphView& graph, const Step& step) {
  std::set<std::uint32_t> lead, rounded(step.results.begin(), step.results.end());
  for (std::size_t n = step.nodes.size(); n-- > 0;) {
    const NodeView node = graph[step.nodes[n]];
    bool leads = jumps(node);
    for (std::size_t r = 0; r < node.result_count(); ++r)
      leads = leads || lead.contains(node.result_index(r));
    for (std::size_t i = 0; i < node.operand_count(); ++i) {
      if (!node.has_operand(i)) continue;
      if (leads) lead.insert(node.operand_index(i));
      for (std::size_t r = 0; r < node.result_count(); ++r)
        if (node.result_index(r) != BP_NONE && !(node.result(r).dtype() == node.operand(i).dtype()))
          rounded.insert(node.operand_index(i));
    }
  }
  rounded.merge(lead);
  rounded.erase(BP_NONE);
  for (const std::uint32_t v : step.operands) rounded.erase(v);
  std::erase_if(rounded, [&](std::uint32_t v) { return !is_half(graph.value(v).dtype()); });
  return rounded;
}

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
        seen_(graph.size(), 0) {
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
    std::vector<std::size_t> stack;
    for (const std::size_t g : {a, b})
      for (const std::uint32_t n : nodes_[g])
        for_each_user(n, [&](std::size_t u) {
          if (group_[u] != a && group_[u] != b) push(u, stack);
        });
    while (!stack.empty()) {
      const std::size_t n = stack.back();
      stack.pop_back();
      bool comes_back = false;
      for_each_user(n, [&](std::size_t u) {
        comes_back = comes_back || group_[u] == a || group_[u] == b;
        push(u, stack);
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
    for (const std::uint32_t n : nodes_[b]) group_[n] = a;
    nodes_[a].insert(nodes_[a].end(), nodes_[b].begin(), nodes_[b].end());
    nodes_[b].clear();
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
};

}  // namespace backplane::sdk
