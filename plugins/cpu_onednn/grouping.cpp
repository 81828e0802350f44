#include "grouping.h"

#include <algorithm>
#include <queue>
#include <set>

#include "kernels/convolution.h"
#include "kernels/emitter.h"
#include "kernels/kernel_registry.h"
#include "kernels/matmul.h"

namespace backplane::onednn {
namespace {

using sdk::GraphView;
using sdk::NodeView;

constexpr std::size_t kNone = SIZE_MAX;
constexpr std::size_t kProgramNodes = 64;      // keeps the registers of a group in the cache
constexpr std::int64_t kLongestRow = 1 << 16;  // elements that a fused reduction holds per register
constexpr std::int64_t kShortestRow = 8;

using Dims = std::vector<bp_dim>;
Dims dims_of(const sdk::ValueView& v) { return {v.dims().begin(), v.dims().end()}; }

std::int64_t hint(const GraphView& graph, bp_dim d) {
  return d >= 0 ? d : bp_graph_dim_class(&graph.raw(), static_cast<std::size_t>(-1 - d))->hint;
}

class Grouper {
 public:
  Grouper(const GraphView& graph, const std::vector<bool>& channels_last)
      : graph_(graph), channels_last_(channels_last), group_(graph.size(), kNone) {
    users_.resize(graph.value_count());
    producer_.assign(graph.value_count(), kNone);
    output_.assign(graph.value_count(), false);
    for (std::size_t n = 0; n < graph.size(); ++n) {
      const NodeView node = graph[n];
      for (std::size_t i = 0; i < node.operand_count(); ++i)
        if (node.has_operand(i)) users_[node.operand_index(i)].push_back(n);
      for (std::size_t i = 0; i < node.result_count(); ++i)
        if (node.result_index(i) != BP_NONE) producer_[node.result_index(i)] = n;
    }
    for (const std::uint32_t v : graph.outputs()) output_[v] = true;
  }

  Grouping run(const std::function<bool(std::size_t)>& may_pack) {
    for (std::size_t n = 0; n < graph_.size(); ++n) {
      if (sdk::is_view_op(graph_[n].op())) continue;
      group_[n] = groups_.size();
      Group g;
      g.nodes = {static_cast<std::uint32_t>(n)};
      Space shape;
      if (is_matmul_op(graph_[n].op())) g.kind = Group::kMatmul;
      if (is_convolution_op(graph_[n].op())) g.kind = Group::kConvolution;
      if (is_program(n)) {
        g.kind = Group::kProgram;
        shape = shape_of(n);
      }
      groups_.push_back(std::move(g));
      shapes_.push_back(std::move(shape));
    }
    fuse_post_ops();
    fuse_programs();
    Grouping out;
    pack(may_pack, out);
    order(out);
    return out;
  }

 private:
  // Iteration space of a program group.
  struct Space {
    Dims wide;
    std::vector<std::size_t> rows;
    bool has_rows = false;
  };

  bool is_program(std::size_t n) const {
    const NodeView node = graph_[n];
    const ProgramOp* op = find_program_op(node.op());
    if (op == nullptr) return false;
    if (op->kind != ProgramOp::kRow) return true;
    return find_kernel(node.op()) == nullptr || suits_rows(node);
  }
  // Whether a reduction is better done row by row than by the general kernel.
  bool suits_rows(const NodeView& node) const {
    const auto rows = row_dims(node);
    const std::size_t rank = node.operand(0).rank();
    if (rows.empty() || rows.back() + 1 != rank) return false;
    for (std::size_t i = 1; i < rows.size(); ++i)
      if (rows[i] != rows[i - 1] + 1) return false;
    std::int64_t length = 1;
    for (const std::size_t d : rows) length *= hint(graph_, node.operand(0).dims()[d]);
    if (length < kShortestRow || length > kLongestRow) return false;
    const auto strides = node.operand(0).strides();
    return strides.empty() || strides.back() == 1;
  }
  Space shape_of(std::size_t n) const {
    const NodeView node = graph_[n];
    Space s;
    if (find_program_op(node.op())->kind == ProgramOp::kRow) {
      s.wide = dims_of(node.operand(0));
      s.rows = row_dims(node);
      s.has_rows = true;
    } else {
      s.wide = dims_of(node.result());
    }
    return s;
  }
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
    ++stamp_;
    seen_.resize(graph_.size(), 0);
    std::vector<std::size_t> stack;
    const auto inside = [&](std::size_t n) { return group_[n] == a || group_[n] == b; };
    const auto push_users = [&](std::size_t n, bool from_inside) {
      const NodeView node = graph_[n];
      for (std::size_t r = 0; r < node.result_count(); ++r) {
        if (node.result_index(r) == BP_NONE) continue;
        for (const std::size_t u : users_[node.result_index(r)]) {
          if (inside(u)) {
            if (!from_inside) return false;
            continue;
          }
          if (seen_[u] == stamp_) continue;
          seen_[u] = stamp_;
          stack.push_back(u);
        }
      }
      return true;
    };
    for (const std::size_t g : {a, b})
      for (const std::uint32_t n : groups_[g].nodes) push_users(n, true);
    while (!stack.empty()) {
      const std::size_t n = stack.back();
      stack.pop_back();
      if (!push_users(n, false)) return false;
      if (group_[n] == kNone) continue;
      for (const std::uint32_t m : groups_[group_[n]].nodes) {
        if (seen_[m] == stamp_) continue;
        seen_[m] = stamp_;
        stack.push_back(m);
      }
    }
    return true;
  }
  // b's nodes go to a.
  void merge(std::size_t a, std::size_t b) {
    for (const std::uint32_t n : groups_[b].nodes) {
      group_[n] = a;
      groups_[a].nodes.push_back(n);
    }
    groups_[b].nodes.clear();
  }

  // ---- Products with what follows them
  // -----------------------------------------------------------

  bool feeds_row_operator(std::uint32_t value) const {
    return std::any_of(users_[value].begin(), users_[value].end(), [&](std::size_t n) {
      const ProgramOp* op = find_program_op(graph_[n].op());
      return op && op->kind == ProgramOp::kRow && is_program(n);
    });
  }
  // Whether a node's tensors all lie in memory in the same order, as post-ops need.
  bool one_layout(const NodeView& node) const {
    for (std::size_t i = 0; i < node.operand_count(); ++i)
      if (node.has_operand(i) && node.operand(i).rank() == node.result().rank() &&
          channels_last_[node.operand_index(i)] != channels_last_[node.result_index()])
        return false;
    return true;
  }
  // The only reader of a value that stays inside; kNone where there are others.
  std::size_t only_user(std::uint32_t value) const {
    if (users_[value].size() != 1 || output_[value]) return kNone;
    const std::size_t u = users_[value][0];
    return group_[u] == kNone || groups_[group_[u]].nodes.size() != 1 ? kNone : u;
  }
  bool read(const NodeView& node, std::size_t result) const {
    const std::uint32_t v = node.result_index(result);
    return v != BP_NONE && (!users_[v].empty() || output_[v]);
  }
  // Zeros around the input are the convolution's own padding.
  void fuse_padding(std::size_t n) {
    const NodeView node = graph_[n];
    const std::uint32_t input = node.operand_index(0);
    const std::size_t p = producer_[input];
    if (p == kNone || group_[p] == kNone || users_[input].size() != 1 || output_[input] ||
        !is_input_padding(graph_[p], node) || !acyclic(group_[n], group_[p]))
      return;
    merge(group_[n], group_[p]);
  }
  void fuse_post_ops() {
    for (std::size_t n = 0; n < graph_.size(); ++n) {
      const std::size_t g = group_[n];
      if (g == kNone || groups_[g].nodes.front() != n) continue;
      const bool convolution = groups_[g].kind == Group::kConvolution;
      if (!convolution && groups_[g].kind != Group::kMatmul) continue;
      std::uint32_t value = graph_[n].result_index();
      if (convolution) fuse_padding(n);
      if (convolution) {
        const std::size_t u = only_user(value);
        if (u != kNone && is_foldable_norm(graph_[u], value) && !read(graph_[u], 1) &&
            !read(graph_[u], 2) &&
            channels_last_[value] == channels_last_[graph_[u].result_index()] &&
            acyclic(g, group_[u])) {
          merge(g, group_[u]);
          value = graph_[u].result_index();
        }
      }
      while (groups_[g].nodes.size() < 6) {
        const std::size_t u = only_user(value);
        if (u == kNone || !is_post_op(graph_[u], value) || !one_layout(graph_[u])) break;
        // A residual before a norm is cheaper in the norm, which reads the sum anyway.
        if (graph_[u].operand_count() > 1 && feeds_row_operator(graph_[u].result_index())) break;
        if (!acyclic(g, group_[u])) break;
        merge(g, group_[u]);
        value = graph_[u].result_index();
      }
    }
  }

  // ---- Programs
  // ----------------------------------------------------------------------------------

  bool compatible(const Space& a, const Space& b, Space& out) const {
    if (a.has_rows && b.has_rows) {
      if (a.wide != b.wide || a.rows != b.rows) return false;
      out = a;
      return true;
    }
    if (!a.has_rows && !b.has_rows) {
      if (a.wide != b.wide) return false;
      out = a;
      return true;
    }
    const Space& with = a.has_rows ? a : b;
    const Space& without = a.has_rows ? b : a;
    if (!fits(without.wide, with)) return false;
    out = with;
    return true;
  }
  void fuse_programs() {
    for (std::size_t n = 0; n < graph_.size(); ++n) {
      if (group_[n] == kNone || groups_[group_[n]].kind != Group::kProgram) continue;
      const NodeView node = graph_[n];
      for (std::size_t i = 0; i < node.operand_count(); ++i) {
        if (!node.has_operand(i)) continue;
        const std::uint32_t value = node.operand_index(i);
        const std::size_t p = producer_[value];
        if (p == kNone || group_[p] == kNone) continue;
        const std::size_t a = group_[p], b = group_[n];
        if (a == b || groups_[a].kind != Group::kProgram) continue;
        if (groups_[a].nodes.size() + groups_[b].nodes.size() > kProgramNodes) continue;
        Space merged;
        if (!compatible(shapes_[a], shapes_[b], merged)) continue;
        // A reduced value without its dims would line up with the wrong ones.
        if (!fits(dims_of(graph_.value(value)), merged)) continue;
        if (!acyclic(a, b)) continue;
        merge(a, b);
        shapes_[a] = std::move(merged);
      }
    }
    for (Group& g : groups_)
      if (g.kind == Group::kProgram) std::sort(g.nodes.begin(), g.nodes.end());
  }

  // ---- Weights
  // -----------------------------------------------------------------------------------

  struct WeightUse {
    std::size_t group;
    std::uint64_t layout;
  };
  // The products that read `value` as their right operand; false where anything else reads it.
  bool weight_uses(std::uint32_t value, std::uint32_t weight, bool transposed,
                   std::vector<WeightUse>& uses) const {
    if (output_[value]) return false;
    for (const std::size_t n : users_[value]) {
      const NodeView node = graph_[n];
      const std::string_view op = node.op();
      if (op == "aten.t" || op == "aten.transpose.int" || op == "aten.permute") {
        if (transposed_view(node) && weight_uses(node.result_index(), weight, !transposed, uses))
          continue;
        return false;
      }
      if (group_[n] == kNone || groups_[group_[n]].kind != Group::kMatmul) return false;
      const bool linear = op == "aten.linear";
      const std::size_t right = op == "aten.addmm" ? 2 : 1;
      if (!linear && op != "aten.mm" && op != "aten.addmm") return false;
      if (node.operand_index(right) != value) return false;
      for (std::size_t i = 0; i < node.operand_count(); ++i)
        if (i != right && node.operand_index(i) == value) return false;
      uses.push_back(
          {group_[n], choose_matmul_layout(node, graph_.value(weight), linear != transposed)});
    }
    return true;
  }
  static bool transposed_view(const NodeView& node) {
    if (node.op() != "aten.permute") return node.operand(0).rank() == 2;
    const bp_attribute* dims = node.attribute("dims");
    return node.operand(0).rank() == 2 && dims && dims->count == 2 &&
           wrap_dim(dims->integers[0], 2) == 1;
  }
  bool convolution_uses(std::uint32_t value, std::vector<WeightUse>& uses) const {
    for (const std::size_t n : users_[value]) {
      const NodeView node = graph_[n];
      if (!is_convolution_op(node.op()) || node.operand_index(1) != value ||
          node.operand_index(0) == value)
        return false;
      uses.push_back({group_[n], choose_convolution_layout(node)});
    }
    return true;
  }
  void pack(const std::function<bool(std::size_t)>& may_pack, Grouping& out) {
    const auto inputs = graph_.inputs();
    out.layouts.assign(inputs.size(), {BP_LAYOUT_STRIDED, 0, 0});
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::uint32_t value = inputs[i];
      const sdk::ValueView v = graph_.value(value);
      if (!v.has(BP_VALUE_STATIC) || !may_pack(i) || v.rank() < 2 || output_[value]) continue;
      const auto dims = v.dims();
      if (std::any_of(dims.begin(), dims.end(), [](bp_dim d) { return d < 1; })) continue;
      if (std::count(inputs.begin(), inputs.end(), value) != 1) continue;
      std::vector<WeightUse> uses;
      const bool usable =
          v.rank() == 2 ? weight_uses(value, value, false, uses) : convolution_uses(value, uses);
      if (!usable || uses.empty()) continue;
      const std::uint64_t layout = uses[0].layout;
      if (layout == 0 || std::any_of(uses.begin(), uses.end(), [&](const WeightUse& u) {
            return u.layout != layout || groups_[u.group].packed != BP_NONE;
          }))
        continue;
      for (const WeightUse& u : uses) groups_[u.group].packed = value;
      out.layouts[i] = {BP_LAYOUT_OPAQUE, 0, layout};
    }
  }

  // ---- Order
  // -------------------------------------------------------------------------------------

  // Kahn's algorithm over groups and views, smallest first node first.
  void order(Grouping& out) {
    const std::size_t count = groups_.size();
    // Views are units of their own after the groups.
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

  // A single node's operands and results as it lists them; of a group, the values it reads and
  // those that others read of it.
  sdk::Step step_of(const Group& group, std::size_t id) const {
    sdk::Step step;
    step.nodes = group.nodes;
    const NodeView first = graph_[group.nodes[0]];
    if (group.kind == Group::kSingle) {
      for (std::size_t i = 0; i < first.operand_count(); ++i)
        step.operands.push_back(first.operand_index(i));
      for (std::size_t i = 0; i < first.result_count(); ++i)
        step.results.push_back(first.result_index(i));
      return step;
    }
    const auto add = [](std::vector<std::uint32_t>& to, std::uint32_t v) {
      if (std::find(to.begin(), to.end(), v) == to.end()) to.push_back(v);
    };
    std::uint32_t replaced = BP_NONE;
    if (group.packed != BP_NONE) {
      replaced = first.operand_index(first.op() == "aten.addmm" ? 2 : 1);
      add(step.operands, group.packed);
    }
    for (const std::uint32_t n : group.nodes) {
      const NodeView node = graph_[n];
      for (std::size_t i = 0; i < node.operand_count(); ++i) {
        const std::uint32_t v = node.operand_index(i);
        if (v == BP_NONE || v == replaced) continue;
        if (producer_[v] == kNone || group_[producer_[v]] != id) add(step.operands, v);
      }
      for (std::size_t i = 0; i < node.result_count(); ++i) {
        const std::uint32_t v = node.result_index(i);
        if (v == BP_NONE) continue;
        if (output_[v] || std::any_of(users_[v].begin(), users_[v].end(),
                                      [&](std::size_t u) { return group_[u] != id; }))
          add(step.results, v);
      }
    }
    return step;
  }

  const GraphView& graph_;
  const std::vector<bool>& channels_last_;  // per value
  std::vector<std::vector<std::size_t>> users_;
  std::vector<std::size_t> producer_;
  std::vector<bool> output_;
  std::vector<std::size_t> group_;  // per node; kNone for views
  std::vector<Group> groups_;
  std::vector<Space> shapes_;
  std::vector<std::uint64_t> seen_;
  std::uint64_t stamp_ = 0;
};

}  // namespace

Grouping group_nodes(const GraphView& graph, const std::vector<bool>& channels_last,
                     const std::function<bool(std::size_t)>& may_pack) {
  return Grouper(graph, channels_last).run(may_pack);
}

}  // namespace backplane::onednn
