#include "core/partition/joint_cut.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "core/ir/cost.h"
#include "core/ir/op_table.h"
#include "core/ir/view.h"
#include "core/partition/min_cut.h"

namespace backplane::partition {
namespace {

using ir::Graph;
using ir::kNone;
using ir::Node;
using ir::NodeId;
using ir::OpClass;
using ir::Value;
using ir::ValueId;
using ir::ValueKind;

// Worth more than any pointwise work on the same bytes; computed twice only to meet a budget.
bool is_expensive(const ir::OpInfo& op) {
  switch (op.op_class) {
    case OpClass::kMatmul:
    case OpClass::kConvolution:
    case OpClass::kAttention:
    case OpClass::kPooling:
    case OpClass::kNormalization:
    case OpClass::kReduction:
    case OpClass::kOther:
      return true;
    default:
      return false;
  }
}

bool is_free_to_fuse(const ir::OpInfo& op) {
  return op.op_class == OpClass::kPointwise || op.op_class == OpClass::kView ||
         op.op_class == OpClass::kFactory;
}

// What the cut decides about, worked out once; solved for several weights of memory.
class JointProblem {
 public:
  JointProblem(const Graph& joint, const JointBorder& border, const JointCutOptions& options)
      : joint_(joint), border_(border), options_(options), users_(joint.users()) {
    find_tangent_dependent();
    find_needed_forward();
    is_copied_.assign(joint.values.size(), false);
    for (std::size_t i = 0; i < options.copied_arguments.size(); ++i)
      is_copied_[joint.inputs[i]] = options.copied_arguments[i];
  }

  bool forward_needs_tangents() const {
    for (std::size_t i = 0; i < border_.forward_output_count; ++i)
      if (value_depends_[joint_.outputs[i]]) return true;
    return false;
  }

  // By node that depends on no tangent: whether the backward computes it.
  std::vector<bool> solve(double memory_weight, bool allow_expensive) const {
    CutProblem problem;
    std::vector<CutProblem::Variable> computed(joint_.nodes.size()), held(joint_.values.size());
    for (NodeId n = 0; n < joint_.nodes.size(); ++n)
      if (!node_depends_[n]) computed[n] = problem.add_variable();
    for (ValueId v = 0; v < joint_.values.size(); ++v)
      if (is_variable(v)) held[v] = problem.add_variable();

    for (ValueId v = 0; v < joint_.values.size(); ++v) {
      if (!is_variable(v)) continue;
      const Value& value = joint_.values[v];
      const CutProblem::Variable made =
          value.kind == ValueKind::kInput ? CutProblem::kKeepSide : computed[value.producer];
      // A view is part of its root; the backward makes it anew.
      if (is_view(v))
        problem.add_rule(made, held[v]);
      else
        problem.add_cost(made, held[v], memory_weight * save_seconds(v));
      if (needed_by_gradients(v)) problem.add_rule(held[v], CutProblem::kChangeSide);
    }
    for (NodeId n = 0; n < joint_.nodes.size(); ++n) {
      if (node_depends_[n]) continue;
      const Node& node = joint_.nodes[n];
      for (const ValueId operand : node.operands) {
        if (operand == kNone || !is_variable(operand)) continue;
        problem.add_rule(held[operand], computed[n]);
        // What the forward computes for the backward alone needs its operands there too.
        const Value& value = joint_.values[operand];
        if (!needed_forward_[n] && value.kind == ValueKind::kResult &&
            !needed_forward_[value.producer])
          problem.add_rule(computed[n], computed[value.producer]);
      }
      if (ir::has_effects(node) ||
          (needed_forward_[n] && !allow_expensive && is_expensive(*node.op)))
        problem.add_rule(CutProblem::kKeepSide, computed[n]);
      else if (needed_forward_[n])
        problem.add_cost(CutProblem::kKeepSide, computed[n], recompute_seconds(n));
    }
    const std::vector<bool> changes = problem.solve();
    std::vector<bool> in_backward(joint_.nodes.size(), false);
    for (NodeId n = 0; n < joint_.nodes.size(); ++n)
      in_backward[n] = node_depends_[n] || changes[computed[n]];
    return in_backward;
  }

  // The values that cross where the backward has these nodes, in order of the joint graph.
  std::vector<ValueId> crossing(const std::vector<bool>& in_backward,
                                const std::vector<bool>& live) const {
    std::vector<bool> read(joint_.values.size(), false);
    const auto mark = [&](ValueId v) {
      if (v == kNone || !is_variable(v)) return;
      const Value& value = joint_.values[v];
      if (value.kind == ValueKind::kInput || !in_backward[value.producer]) read[v] = true;
    };
    for (std::size_t i = border_.forward_output_count; i < joint_.outputs.size(); ++i)
      mark(joint_.outputs[i]);
    for (NodeId n = 0; n < joint_.nodes.size(); ++n)
      if (live[n])
        for (const ValueId operand : joint_.nodes[n].operands) mark(operand);
    std::vector<ValueId> values;
    for (ValueId v = 0; v < joint_.values.size(); ++v)
      if (read[v]) values.push_back(v);
    return values;
  }

  // The nodes among `candidates` that the wanted values need, and those with effects.
  std::vector<bool> live(const std::vector<bool>& candidates,
                         std::span<const ValueId> wanted) const {
    std::vector<bool> read(joint_.values.size(), false), alive(joint_.nodes.size(), false);
    for (const ValueId v : wanted) read[v] = true;
    for (NodeId n = static_cast<NodeId>(joint_.nodes.size()); n-- > 0;) {
      if (!candidates[n]) continue;
      const Node& node = joint_.nodes[n];
      alive[n] = ir::has_effects(node) ||
                 std::ranges::any_of(node.results, [&](ValueId r) { return read[r]; });
      if (!alive[n]) continue;
      for (const ValueId operand : node.operands)
        if (operand != kNone) read[operand] = true;
    }
    return alive;
  }

  std::int64_t counted_bytes(ValueId v) const {
    return joint_.values[v].is_static ? 0 : joint_.hint_bytes(v);
  }

  std::int64_t counted_bytes(std::span<const ValueId> values) const {
    std::int64_t bytes = 0;
    for (const ValueId v : values) bytes += counted_bytes(v);
    return bytes;
  }

  double recompute_seconds(NodeId n) const {
    const ir::Work work = ir::node_work(joint_, n);
    double seconds = work.flops / options_.flops_per_second;
    // Fused into who reads it, it costs no traffic; a small share keeps long chains from being
    // free.
    const double moved = static_cast<double>(work.read_bytes + work.written_bytes);
    seconds += moved / options_.bytes_per_second * (fuses_into_backward(n) ? 0.05 : 1.0);
    return seconds;
  }

  bool depends_on_tangents(NodeId n) const { return node_depends_[n]; }
  bool needed_forward(NodeId n) const { return needed_forward_[n]; }

 private:
  // Tangents, what depends on them, and constants are on no side of the cut.
  bool is_variable(ValueId v) const {
    return joint_.values[v].kind != ValueKind::kConstant && !value_depends_[v];
  }

  bool is_view(ValueId v) const {
    return joint_.values[v].kind == ValueKind::kResult &&
           joint_.nodes[joint_.values[v].producer].op->op_class == OpClass::kView;
  }

  bool needed_by_gradients(ValueId v) const {
    if (std::find(
            joint_.outputs.begin() + static_cast<std::ptrdiff_t>(border_.forward_output_count),
            joint_.outputs.end(), v) != joint_.outputs.end())
      return true;
    return std::ranges::any_of(users_[v], [&](NodeId n) { return node_depends_[n]; });
  }

  // Written by the forward, read by the backward; a copy is read first.
  double save_seconds(ValueId v) const {
    return (is_copied_[v] ? 3.0 : 2.0) * static_cast<double>(counted_bytes(v)) /
           options_.bytes_per_second;
  }

  bool fuses_into_backward(NodeId n) const {
    if (!is_free_to_fuse(*joint_.nodes[n].op)) return false;
    for (const ValueId result : joint_.nodes[n].results)
      for (const NodeId user : users_[result]) {
        if (needed_forward_[user]) continue;  // its own copy there is another matter
        if (joint_.nodes[user].op->op_class == OpClass::kView) {
          if (!fuses_into_backward(user)) return false;
        } else if (!is_free_to_fuse(*joint_.nodes[user].op) &&
                   joint_.nodes[user].op->op_class != OpClass::kReduction) {
          return false;
        }
      }
    return true;
  }

  void find_tangent_dependent() {
    value_depends_.assign(joint_.values.size(), false);
    node_depends_.assign(joint_.nodes.size(), false);
    for (std::size_t i = border_.argument_count; i < joint_.inputs.size(); ++i)
      value_depends_[joint_.inputs[i]] = true;
    for (NodeId n = 0; n < joint_.nodes.size(); ++n) {
      const Node& node = joint_.nodes[n];
      node_depends_[n] = std::ranges::any_of(
          node.operands, [&](ValueId v) { return v != kNone && value_depends_[v]; });
      if (node_depends_[n])
        for (const ValueId result : node.results) value_depends_[result] = true;
    }
  }

  void find_needed_forward() {
    const std::vector<bool> all(joint_.nodes.size(), true);
    needed_forward_ = live(all, std::span(joint_.outputs).first(border_.forward_output_count));
    for (NodeId n = 0; n < joint_.nodes.size(); ++n)
      needed_forward_[n] = needed_forward_[n] && !node_depends_[n];
  }

  const Graph& joint_;
  const JointBorder& border_;
  const JointCutOptions& options_;
  std::vector<std::vector<NodeId>> users_;
  std::vector<bool> value_depends_, node_depends_, needed_forward_, is_copied_;
};

// Copies chosen nodes of one graph into a new one.
class Extraction {
 public:
  Extraction(const Graph& from, std::string name) : from_(from), ids_(from.values.size(), kNone) {
    to_.name = std::move(name);
    to_.dim_classes = from.dim_classes;
  }

  void add_input(ValueId v, bool is_saved) {
    const Value& value = from_.values[v];
    ids_[v] = to_.add_input(value.name, value.type);
    to_.values[ids_[v]].is_static = value.is_static;
    to_.values[ids_[v]].is_saved = is_saved;
  }

  void add_node(NodeId n) {
    const Node& node = from_.nodes[n];
    std::vector<ValueId> operands;
    std::vector<ir::TensorType> types;
    for (const ValueId operand : node.operands) operands.push_back(id(operand));
    for (const ValueId result : node.results) types.push_back(from_.values[result].type);
    const Node& copy = to_.nodes[to_.add_node_like(node, std::move(operands), std::move(types))];
    for (std::size_t i = 0; i < node.results.size(); ++i) {
      ids_[node.results[i]] = copy.results[i];
      to_.values[copy.results[i]].name = from_.values[node.results[i]].name;
    }
  }

  ValueId id(ValueId v) {
    if (v == kNone) return kNone;
    const Value& value = from_.values[v];
    if (ids_[v] == kNone && value.kind == ValueKind::kConstant)
      ids_[v] = to_.add_constant(value.name, value.type, value.constant);
    return ids_[v];
  }

  void add_output(ValueId v) { to_.outputs.push_back(id(v)); }
  void mark_saved(ValueId v) { to_.values[ids_[v]].is_saved = true; }

  Graph take_graph() { return std::move(to_); }
  std::vector<ValueId> take_ids() { return std::move(ids_); }

 private:
  const Graph& from_;
  Graph to_;
  std::vector<ValueId> ids_;
};

// The order in which a half computes its nodes: that of the joint graph, but what `is_late` says is
// computed just before its first reader, so that it lives no longer than it must.
std::vector<NodeId> order_late(const Graph& joint, const std::vector<bool>& chosen,
                               const std::vector<bool>& is_late) {
  std::vector<NodeId> order, stack;
  std::vector<bool> done(joint.nodes.size(), false);
  const auto add = [&](NodeId node) {
    stack.push_back(node);
    while (!stack.empty()) {
      const NodeId n = stack.back();
      const std::size_t before = stack.size();
      if (!done[n])
        for (const ValueId operand : joint.nodes[n].operands) {
          const NodeId producer = operand == kNone ? kNone : joint.values[operand].producer;
          if (producer != kNone && chosen[producer] && !done[producer]) stack.push_back(producer);
        }
      if (stack.size() > before) continue;
      stack.pop_back();
      if (!done[n]) order.push_back(n);
      done[n] = true;
    }
  };
  for (NodeId n = 0; n < joint.nodes.size(); ++n)
    if (chosen[n] && !is_late[n]) add(n);
  for (NodeId n = 0; n < joint.nodes.size(); ++n)
    if (chosen[n]) add(n);
  return order;
}

// The same for what `is_early` says: computed as soon as its operands are there.
std::vector<NodeId> order_early(const Graph& joint, const std::vector<bool>& chosen,
                                const std::vector<bool>& is_early) {
  std::vector<std::vector<NodeId>> readers(joint.nodes.size());  // early ones
  std::vector<std::size_t> waiting(joint.nodes.size(), 0);
  std::vector<NodeId> order, ready;
  for (NodeId n = 0; n < joint.nodes.size(); ++n) {
    if (!chosen[n] || !is_early[n]) continue;
    for (const ValueId operand : joint.nodes[n].operands) {
      const NodeId producer = operand == kNone ? kNone : joint.values[operand].producer;
      if (producer == kNone || !chosen[producer]) continue;
      readers[producer].push_back(n);
      ++waiting[n];
    }
    if (waiting[n] == 0) ready.push_back(n);
  }
  const auto add_ready = [&] {
    while (!ready.empty()) {
      const NodeId n = ready.back();
      ready.pop_back();
      order.push_back(n);
      for (const NodeId reader : readers[n])
        if (--waiting[reader] == 0) ready.push_back(reader);
    }
  };
  add_ready();
  for (NodeId n = 0; n < joint.nodes.size(); ++n) {
    if (!chosen[n] || is_early[n]) continue;
    ready.push_back(n);
    add_ready();
  }
  return order;
}

struct Solution {
  std::vector<bool> in_backward, live_backward;
  std::vector<ValueId> saved;
  std::int64_t bytes = 0;
};

Solution evaluate(const JointProblem& problem, const Graph& joint, const JointBorder& border,
                  double weight, bool allow_expensive) {
  Solution s;
  s.in_backward = problem.solve(weight, allow_expensive);
  s.live_backward =
      problem.live(s.in_backward, std::span(joint.outputs).subspan(border.forward_output_count));
  s.saved = problem.crossing(s.in_backward, s.live_backward);
  s.bytes = problem.counted_bytes(s.saved);
  return s;
}

// More weight on memory saves no more bytes, so the least weight that meets the budget is found by
// halving; it recomputes least.
Solution meet_budget(const JointProblem& problem, const Graph& joint, const JointBorder& border,
                     double budget, Solution initial) {
  const auto limit = static_cast<std::int64_t>(budget * static_cast<double>(initial.bytes));
  double low = 0, high = 30;  // binary logarithms of the weight
  Solution best = evaluate(problem, joint, border, std::exp2(high), /*allow_expensive=*/true);
  if (best.bytes > initial.bytes) return initial;
  for (int step = 0; step < 12; ++step) {
    const double middle = (low + high) / 2;
    Solution tried = evaluate(problem, joint, border, std::exp2(middle), /*allow_expensive=*/true);
    if (tried.bytes <= limit) {
      high = middle;
      best = std::move(tried);
    } else {
      low = middle;
    }
  }
  return best;
}

}  // namespace

Result<JointCut> cut_joint(const Graph& joint, const JointBorder& border,
                           const JointCutOptions& options) {
  if (border.argument_count > joint.inputs.size() ||
      border.forward_output_count > joint.outputs.size())
    return Status(Code::kInvalidArgument, "The border lies outside of the joint graph.");
  const JointProblem problem(joint, border, options);
  if (problem.forward_needs_tangents())
    return Status(Code::kInvalidArgument, "A forward output depends on a tangent.");
  Solution solution = evaluate(problem, joint, border, 1, /*allow_expensive=*/false);
  if (options.memory_budget < 1)
    solution = meet_budget(problem, joint, border, options.memory_budget, std::move(solution));

  JointCut out;
  // The forward's outputs, and what is saved of what it computes.
  std::vector<ValueId> wanted(
      joint.outputs.begin(),
      joint.outputs.begin() + static_cast<std::ptrdiff_t>(border.forward_output_count));
  wanted.insert(wanted.end(), solution.saved.begin(), solution.saved.end());
  std::vector<bool> forward_candidates(joint.nodes.size());
  for (NodeId n = 0; n < joint.nodes.size(); ++n)
    forward_candidates[n] =
        !problem.depends_on_tangents(n) && (problem.needed_forward(n) || !solution.in_backward[n]);
  const std::vector<bool> live_forward = problem.live(forward_candidates, wanted);

  Extraction forward(joint, joint.name + "_forward"), backward(joint, joint.name + "_backward");
  for (std::size_t i = 0; i < border.argument_count; ++i)
    forward.add_input(joint.inputs[i], /*is_saved=*/false);
  for (const ValueId v : solution.saved) backward.add_input(v, /*is_saved=*/true);
  for (std::size_t i = border.argument_count; i < joint.inputs.size(); ++i)
    backward.add_input(joint.inputs[i], /*is_saved=*/false);
  std::vector<bool> for_backward(joint.nodes.size()), depends_on_none(joint.nodes.size());
  for (NodeId n = 0; n < joint.nodes.size(); ++n) {
    for_backward[n] = !problem.needed_forward(n);
    depends_on_none[n] = !problem.depends_on_tangents(n);
    if (!solution.live_backward[n] || !live_forward[n] ||
        joint.nodes[n].op->op_class == OpClass::kView)
      continue;
    out.recomputed.push_back(n);
    out.recompute_seconds += problem.recompute_seconds(n);
  }
  for (const NodeId n : order_early(joint, live_forward, for_backward)) forward.add_node(n);
  for (const NodeId n : order_late(joint, solution.live_backward, depends_on_none))
    backward.add_node(n);
  auto position = static_cast<std::uint32_t>(border.forward_output_count);
  for (std::size_t i = 0; i < joint.outputs.size(); ++i)
    (i < border.forward_output_count ? forward : backward).add_output(joint.outputs[i]);
  for (const ValueId v : solution.saved) {
    SavedValue saved;
    saved.value = v;
    saved.is_argument = joint.values[v].kind == ValueKind::kInput;
    saved.bytes = joint.hint_bytes(v);
    if (saved.is_argument) {
      saved.forward_position = static_cast<std::uint32_t>(
          std::find(joint.inputs.begin(), joint.inputs.end(), v) - joint.inputs.begin());
      saved.is_copied = saved.forward_position < options.copied_arguments.size() &&
                        options.copied_arguments[saved.forward_position];
    } else {
      forward.add_output(v);
      forward.mark_saved(v);
      saved.forward_position = position++;
    }
    out.saved.push_back(saved);
  }
  out.saved_bytes = solution.bytes;
  out.forward_ids = forward.take_ids();
  out.backward_ids = backward.take_ids();
  out.forward = forward.take_graph();
  out.backward = backward.take_graph();
  return out;
}

std::string explain(const Graph& joint, const JointCut& cut) {
  std::string text;
  char line[160];
  std::snprintf(line, sizeof line, "saves %zu values, %lld bytes without weights\n",
                cut.saved.size(), static_cast<long long>(cut.saved_bytes));
  text += line;
  for (const SavedValue& saved : cut.saved)
    text += "  %" + joint.values[saved.value].name + ": " + std::to_string(saved.bytes) + " bytes" +
            (saved.is_argument ? ", an argument\n" : "\n");
  std::snprintf(line, sizeof line, "computes %zu nodes twice, %.3g s predicted\n",
                cut.recomputed.size(), cut.recompute_seconds);
  text += line;
  for (const NodeId n : cut.recomputed)
    text += "  " + std::string(joint.nodes[n].op->name) + " %" +
            (joint.nodes[n].results.empty() ? "" : joint.values[joint.nodes[n].results[0]].name) +
            "\n";
  return text;
}

}  // namespace backplane::partition
