#include "grouping.h"

#include <backplane/sdk/groups.hpp>
#include <backplane/sdk/points.hpp>

#include <algorithm>

#include "kernels/kernel_registry.h"
#include "kernels/primitives/bounds.h"
#include "kernels/primitives/convolution.h"
#include "kernels/primitives/matmul.h"
#include "kernels/rows/emitter.h"

namespace backplane::onednn {
namespace {

using sdk::GraphView;
using sdk::NodeView;

constexpr std::size_t kNone = sdk::NodeGroups::kNone;
constexpr std::size_t kProgramNodes = 64;      // keeps the registers of a group in the cache
constexpr std::int64_t kLongestRow = 1 << 16;  // elements that a fused reduction holds per register
constexpr std::int64_t kShortestRow = 8;

std::int64_t hint(const GraphView& graph, bp_dim d) {
  return d >= 0 ? d : bp_graph_dim_class(&graph.raw(), static_cast<std::size_t>(-1 - d))->hint;
}

class Grouper {
 public:
  Grouper(const GraphView& graph, const std::vector<bool>& channels_last)
      : graph_(graph), channels_last_(channels_last), groups_(graph) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const std::size_t n = groups_.nodes(g).front();
      Group::Kind kind = Group::kSingle;
      sdk::PointSpace shape;
      if (is_matmul_op(graph_[n].op())) kind = Group::kMatmul;
      if (is_convolution_op(graph_[n].op())) kind = Group::kConvolution;
      if (is_program(n)) {
        kind = Group::kProgram;
        shape = shape_of(n);
      }
      kinds_.push_back(kind);
      shapes_.push_back(std::move(shape));
    }
    packed_.assign(groups_.size(), BP_NONE);
  }

  Grouping run(const std::function<bool(std::size_t)>& may_pack) {
    fuse_post_ops();
    fuse_programs();
    Grouping out;
    pack(may_pack, out);
    for (const std::size_t g : groups_.order()) {
      out.steps.push_back(step_of(g));
      out.groups.push_back({kinds_[g], groups_.nodes(g), packed_[g]});
    }
    return out;
  }

 private:
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
  sdk::PointSpace shape_of(std::size_t n) const {
    const NodeView node = graph_[n];
    const bool rows = find_program_op(node.op())->kind == ProgramOp::kRow;
    const auto dims = rows ? node.operand(0).dims() : node.result().dims();
    sdk::PointSpace s;
    s.wide.assign(dims.begin(), dims.end());
    if (rows) s.rows = row_dims(node);
    s.has_rows = rows;
    return s;
  }
  // ---- Products with what follows them
  // -----------------------------------------------------------

  bool feeds_row_operator(std::uint32_t value) const {
    const auto& users = groups_.users(value);
    return std::any_of(users.begin(), users.end(), [&](std::size_t n) {
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
  // The only reader of a value that stays inside, if nothing has joined it; else kNone.
  std::size_t only_user(std::uint32_t value) const {
    const std::size_t u = groups_.only_user(value);
    if (u == kNone || groups_.group_of(u) == kNone) return kNone;
    return groups_.nodes(groups_.group_of(u)).size() == 1 ? u : kNone;
  }
  bool read(const NodeView& node, std::size_t result) const {
    const std::uint32_t v = node.result_index(result);
    return v != BP_NONE && (!groups_.users(v).empty() || groups_.is_output(v));
  }
  // A product that took this sum would wait for another kernel, with its operands alive: as
  // gradients are summed up. Of two products the later one takes the sum.
  bool would_wait(const NodeView& user, std::uint32_t value, std::size_t product) const {
    for (std::size_t i = 0; i < user.operand_count(); ++i) {
      const std::uint32_t other = user.operand_index(i);
      if (!user.has_operand(i) || other == value) continue;
      const std::size_t p = groups_.producer(other);
      if (p == kNone || p < product || groups_.group_of(p) == kNone) continue;
      if (kinds_[groups_.group_of(p)] != Group::kProgram && groups_.only_user(other) != kNone)
        return true;
    }
    return false;
  }
  // Zeros around the input are the convolution's own padding.
  void fuse_padding(std::size_t n) {
    const NodeView node = graph_[n];
    const std::uint32_t input = node.operand_index(0);
    const std::size_t p = groups_.producer(input);
    if (p == kNone || groups_.group_of(p) == kNone || groups_.only_user(input) == kNone ||
        !is_input_padding(graph_[p], node) ||
        !groups_.may_join(groups_.group_of(n), groups_.group_of(p)))
      return;
    groups_.join(groups_.group_of(n), groups_.group_of(p));
  }
  void fuse_post_ops() {
    for (std::size_t n = 0; n < graph_.size(); ++n) {
      const std::size_t g = groups_.group_of(n);
      if (g == kNone || groups_.nodes(g).front() != n) continue;
      const bool convolution = kinds_[g] == Group::kConvolution;
      if (!convolution && kinds_[g] != Group::kMatmul) continue;
      std::uint32_t value = graph_[n].result_index();
      if (convolution) fuse_padding(n);
      if (convolution) {
        const std::size_t u = only_user(value);
        if (u != kNone && is_foldable_norm(graph_[u], value) && !read(graph_[u], 1) &&
            !read(graph_[u], 2) &&
            channels_last_[value] == channels_last_[graph_[u].result_index()] &&
            groups_.may_join(g, groups_.group_of(u))) {
          groups_.join(g, groups_.group_of(u));
          value = graph_[u].result_index();
        }
      }
      // What follows a transposed convolution has no place in its primitive (repeats_epilogue).
      const bool bounds_alone = convolution && graph_[n].bool_or("transposed", false);
      while (groups_.nodes(g).size() < 6) {
        const std::size_t u = only_user(value);
        if (u == kNone || !is_post_op(graph_[u], value) || !one_layout(graph_[u])) break;
        if (bounds_alone && !bounds_of(graph_[u])) break;
        // A residual before a norm is cheaper in the norm, which reads the sum anyway.
        if (graph_[u].operand_count() > 1 && feeds_row_operator(graph_[u].result_index())) break;
        if (would_wait(graph_[u], value, n)) break;
        if (!groups_.may_join(g, groups_.group_of(u))) break;
        groups_.join(g, groups_.group_of(u));
        value = graph_[u].result_index();
        if (bounds_of(graph_[u])) break;  // they run behind the primitive
      }
    }
  }

  // ---- Programs
  // ----------------------------------------------------------------------------------

  bool is_program_group(std::size_t node) const {
    const std::size_t g = groups_.group_of(node);
    return g != kNone && kinds_[g] == Group::kProgram;
  }
  // A sum that would wait in a group for what is computed after it, keeping its operands alive: as
  // gradients are summed up.
  bool waits_for_later(std::size_t sum, const NodeView& user) const {
    if (graph_[sum].op() != "aten.add.Tensor" || user.op() != "aten.add.Tensor") return false;
    for (std::size_t i = 0; i < user.operand_count(); ++i) {
      const std::size_t p = user.has_operand(i) ? groups_.producer(user.operand_index(i)) : kNone;
      if (p != kNone && p > sum && !is_program_group(p) && groups_.group_of(p) != kNone)
        return true;
    }
    return false;
  }
  void fuse_programs() {
    for (std::size_t n = 0; n < graph_.size(); ++n) {
      if (!is_program_group(n)) continue;
      const NodeView node = graph_[n];
      for (std::size_t i = 0; i < node.operand_count(); ++i) {
        if (!node.has_operand(i)) continue;
        const std::uint32_t value = node.operand_index(i);
        const std::size_t p = groups_.producer(value);
        if (p == kNone || !is_program_group(p)) continue;
        const std::size_t a = groups_.group_of(p), b = groups_.group_of(n);
        if (a == b || groups_.nodes(a).size() + groups_.nodes(b).size() > kProgramNodes) continue;
        auto joined = sdk::PointSpace::join(shapes_[a], shapes_[b]);
        if (waits_for_later(p, node)) continue;
        // A reduced value without its dims would line up with the wrong ones.
        if (!joined || !joined->fits(graph_.value(value).dims())) continue;
        if (!groups_.may_join(a, b)) continue;
        groups_.join(a, b);
        shapes_[a] = std::move(*joined);
      }
    }
    for (std::size_t g = 0; g < groups_.size(); ++g)
      if (kinds_[g] == Group::kProgram) groups_.sort_nodes(g);
  }

  // ---- Weights
  // -----------------------------------------------------------------------------------

  struct WeightUse {
    std::size_t group;
    std::uint64_t layout;
  };
  // The products that read a matrix as their right operand; false where anything else reads it.
  bool weight_uses(std::uint32_t weight, std::vector<WeightUse>& uses) const {
    std::vector<sdk::NodeGroups::FactorUse> found;
    const auto right = [&](const NodeView& node) -> std::size_t {
      const std::string_view op = node.op();
      if (kinds_[groups_.group_of(node.index())] != Group::kMatmul) return kNone;
      if (op == "aten.linear" || op == "aten.mm") return 1;
      return op == "aten.addmm" ? 2 : kNone;
    };
    if (!groups_.find_factor_uses(weight, right, found)) return false;
    for (const auto& use : found)
      uses.push_back(
          {groups_.group_of(use.node),
           choose_matmul_layout(graph_[use.node], graph_.value(weight), use.transposed)});
    return true;
  }
  bool convolution_uses(std::uint32_t value, std::vector<WeightUse>& uses) const {
    for (const std::size_t n : groups_.users(value)) {
      const NodeView node = graph_[n];
      if (!is_convolution_op(node.op()) || node.operand_index(1) != value ||
          node.operand_index(0) == value)
        return false;
      uses.push_back({groups_.group_of(n), choose_convolution_layout(node)});
    }
    return true;
  }
  void pack(const std::function<bool(std::size_t)>& may_pack, Grouping& out) {
    const auto inputs = graph_.inputs();
    out.layouts.assign(inputs.size(), {BP_LAYOUT_STRIDED, 0, 0});
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::uint32_t value = inputs[i];
      const sdk::ValueView v = graph_.value(value);
      if (!v.has(BP_VALUE_STATIC) || !may_pack(i) || v.rank() < 2 || groups_.is_output(value))
        continue;
      const auto dims = v.dims();
      if (std::any_of(dims.begin(), dims.end(), [](bp_dim d) { return d < 1; })) continue;
      if (std::count(inputs.begin(), inputs.end(), value) != 1) continue;
      std::vector<WeightUse> uses;
      const bool usable = v.rank() == 2 ? weight_uses(value, uses) : convolution_uses(value, uses);
      if (!usable || uses.empty()) continue;
      const std::uint64_t layout = uses[0].layout;
      if (layout == 0 || std::any_of(uses.begin(), uses.end(), [&](const WeightUse& u) {
            return u.layout != layout || packed_[u.group] != BP_NONE;
          }))
        continue;
      for (const WeightUse& u : uses) packed_[u.group] = value;
      out.layouts[i] = {BP_LAYOUT_OPAQUE, 0, layout};
    }
  }

  // ---- Steps
  // -------------------------------------------------------------------------------------

  // A single node's operands and results as it lists them; of a group, the values it reads and
  // those that others read of it. A packed weight comes first, in place of what it was made of.
  sdk::Step step_of(std::size_t group) const {
    sdk::Step step;
    step.nodes = groups_.nodes(group);
    const NodeView first = graph_[step.nodes[0]];
    if (kinds_[group] == Group::kSingle) {
      sdk::NodeGroups::list_operands(first, step);
      sdk::NodeGroups::list_results(first, step);
      return step;
    }
    std::uint32_t replaced = BP_NONE;
    if (packed_[group] != BP_NONE) {
      replaced = first.operand_index(first.op() == "aten.addmm" ? 2 : 1);
      step.operands.push_back(packed_[group]);
    }
    groups_.add_operands(group, step, replaced);
    groups_.add_results(group, step);
    return step;
  }

  const GraphView& graph_;
  const std::vector<bool>& channels_last_;  // per value
  sdk::NodeGroups groups_;
  std::vector<Group::Kind> kinds_;  // of each group
  std::vector<sdk::PointSpace> shapes_;
  std::vector<std::uint32_t> packed_;  // values of packed weights
};

}  // namespace

Grouping group_nodes(const GraphView& graph, const std::vector<bool>& channels_last,
                     const std::function<bool(std::size_t)>& may_pack) {
  return Grouper(graph, channels_last).run(may_pack);
}

}  // namespace backplane::onednn
