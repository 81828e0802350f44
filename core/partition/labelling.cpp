#include "core/partition/labelling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "core/partition/min_cut.h"

namespace backplane::partition {
namespace {

// A better cost than this times the old one counts as progress, anything else as rounding.
constexpr double kProgress = 1 - 1e-12;
constexpr int kMaxRounds = 100;
constexpr TargetId kMaxStarts = 4;
// Bound on nodes times restarts that give up an atomic claim.
constexpr std::size_t kMaxRestartNodes = 20000;

// One two-label move: each node keeps its label or changes. `low` is what the keep side of the cut
// stands for, `high` the change side; equal where the node has no choice. For every target the
// nodes that may reach it all do so on the same side, which makes the move a minimum cut.
class Move {
 public:
  Move(const Model& model, const Labels& current) : model_(model), current_(current) {}

  // Any node may change to `alpha`.
  Labels expand(TargetId alpha) {
    low_ = high_ = current_;
    for (ir::NodeId n = 0; n < current_.size(); ++n) {
      if (std::isfinite(model_.compute_ns(n, alpha))) high_[n] = alpha;
    }
    return solve();
  }

  // Nodes of `alpha` and `beta` choose again between the two.
  Labels swap(TargetId alpha, TargetId beta) {
    low_ = high_ = current_;
    for (ir::NodeId n = 0; n < current_.size(); ++n) {
      if (current_[n] != alpha && current_[n] != beta) continue;
      const TargetId other = current_[n] == alpha ? beta : alpha;
      if (!std::isfinite(model_.compute_ns(n, other))) continue;
      low_[n] = alpha;
      high_[n] = beta;
    }
    return solve();
  }

 private:
  static constexpr CutProblem::Variable kUnset = 0xffffffffu;

  Labels solve() {
    contract_atomics();
    // One variable per contracted set that has a choice.
    variable_.assign(current_.size(), kUnset);
    for (ir::NodeId n = 0; n < current_.size(); ++n) {
      if (low_[n] == high_[n]) continue;
      const ir::NodeId root = find(n);
      if (variable_[root] == kUnset) variable_[root] = problem_.add_variable();
      variable_[n] = variable_[root];
      const double low_ns = model_.node_ns(n, low_[n]);
      const double high_ns = model_.node_ns(n, high_[n]);
      if (low_ns < high_ns) {
        problem_.add_cost(CutProblem::kKeepSide, variable_[n], high_ns - low_ns);
      } else {
        problem_.add_cost(variable_[n], CutProblem::kChangeSide, low_ns - high_ns);
      }
    }
    std::vector<TargetId> targets;
    for (const Transfer& transfer : model_.transfers) add_transfer(transfer, targets);
    const std::vector<bool> changes = problem_.solve();
    Labels result = current_;
    for (ir::NodeId n = 0; n < result.size(); ++n) {
      if (variable_[n] != kUnset) result[n] = changes[variable_[n]] ? high_[n] : low_[n];
    }
    return result;
  }

  ir::NodeId find(ir::NodeId n) {
    while (parent_[n] != n) n = parent_[n] = parent_[parent_[n]];
    return n;
  }

  // Nodes of an atomic claim that may enter or leave its target do so together, or not at all.
  void contract_atomics() {
    parent_.resize(current_.size());
    std::iota(parent_.begin(), parent_.end(), ir::NodeId{0});
    std::vector<bool> tied(current_.size(), false);
    for (const AtomicClaim& atomic : model_.atomics) {
      const auto may_be_there = [&](ir::NodeId n) {
        return low_[n] == atomic.target || high_[n] == atomic.target;
      };
      if (std::ranges::none_of(atomic.nodes, may_be_there)) continue;
      for (const ir::NodeId n : atomic.nodes) {
        tied[n] = true;
        const ir::NodeId a = find(n), b = find(atomic.nodes.front());
        parent_[std::max(a, b)] = std::min(a, b);
      }
    }
    std::vector<bool> frozen(current_.size(), false);
    for (ir::NodeId n = 0; n < current_.size(); ++n) {
      if (tied[n] && low_[n] == high_[n]) frozen[find(n)] = true;
    }
    for (ir::NodeId n = 0; n < current_.size(); ++n) {
      if (tied[n] && frozen[find(n)]) low_[n] = high_[n] = current_[n];
    }
  }

  // Whether a node is at some target, by side: one bit per side.
  enum At : unsigned { kNever = 0, kWhenKept = 1, kWhenChanged = 2, kAlways = 3 };
  At at(ir::NodeId n, TargetId target) const {
    return static_cast<At>((low_[n] == target ? kWhenKept : 0u) |
                           (high_[n] == target ? kWhenChanged : 0u));
  }
  static At negated(At at) { return static_cast<At>(kAlways & ~static_cast<unsigned>(at)); }
  At producer_at(const Transfer& transfer, TargetId target) const {
    return transfer.producer == ir::kNone ? kNever : at(transfer.producer, target);
  }

  void add_transfer(const Transfer& transfer, std::vector<TargetId>& targets) {
    targets.clear();
    const auto add_target = [&](TargetId t) {
      if (t != kHost && std::ranges::find(targets, t) == targets.end()) targets.push_back(t);
    };
    if (transfer.producer != ir::kNone) {
      add_target(low_[transfer.producer]);
      add_target(high_[transfer.producer]);
    }
    const std::span<const ir::NodeId> readers = model_.readers_of(transfer);
    for (const ir::NodeId n : readers) {
      add_target(low_[n]);
      add_target(high_[n]);
    }
    const CutProblem::Variable producer =
        transfer.producer == ir::kNone ? kUnset : variable_[transfer.producer];
    for (const TargetId t : targets) {
      const At there = producer_at(transfer, t);
      readers_at_.clear();
      for (const ir::NodeId n : readers) readers_at_.push_back({variable_[n], at(n, t)});
      add_product(producer, negated(there), model_.to_device_ns(transfer, t));
      for (ReaderAt& reader : readers_at_) reader.at = negated(reader.at);
      if (transfer.read_by_host) readers_at_.push_back({kUnset, kAlways});
      add_product(producer, there, model_.from_device_ns(transfer, t));
    }
  }

  // `cost` is paid when the producer's predicate holds and that of any reader in readers_at_.
  void add_product(CutProblem::Variable producer, At producer_at, double cost) {
    if (producer_at == kNever || !(cost > 0)) return;
    bool always = false;
    pays_kept_.clear();
    pays_changed_.clear();
    for (const ReaderAt& reader : readers_at_) {
      if (reader.at == kAlways) always = true;
      // Contracted with the producer: the two predicates exclude each other.
      if (reader.variable == producer) continue;
      if (reader.at == kWhenKept) pays_kept_.push_back(reader.variable);
      if (reader.at == kWhenChanged) pays_changed_.push_back(reader.variable);
    }
    if (always) {
      if (producer_at == kWhenChanged) {
        problem_.add_cost(CutProblem::kKeepSide, producer, cost);
      } else if (producer_at == kWhenKept) {
        problem_.add_cost(producer, CutProblem::kChangeSide, cost);
      }
      return;
    }
    using Problem = CutProblem;
    if (producer_at != kWhenKept && !pays_kept_.empty()) {
      // Any reader on the keep side while the producer is on the change side.
      const Problem::Variable end = producer_at == kAlways ? Problem::kChangeSide : producer;
      add_any(pays_kept_, end, cost, true);
    }
    if (producer_at != kWhenChanged && !pays_changed_.empty()) {
      const Problem::Variable end = producer_at == kAlways ? Problem::kKeepSide : producer;
      add_any(pays_changed_, end, cost, false);
    }
  }

  void add_any(std::vector<CutProblem::Variable>& readers, CutProblem::Variable end, double cost,
               bool kept) {
    std::ranges::sort(readers);
    readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
    CutProblem::Variable any = readers.front();
    if (readers.size() > 1) {
      any = problem_.add_variable();
      for (const CutProblem::Variable reader : readers) {
        kept ? problem_.add_rule(reader, any) : problem_.add_rule(any, reader);
      }
    }
    kept ? problem_.add_cost(any, end, cost) : problem_.add_cost(end, any, cost);
  }

  struct ReaderAt {
    CutProblem::Variable variable;
    At at;
  };

  const Model& model_;
  const Labels& current_;
  Labels low_, high_;
  std::vector<ir::NodeId> parent_;
  std::vector<CutProblem::Variable> variable_;
  std::vector<ReaderAt> readers_at_;
  std::vector<CutProblem::Variable> pays_kept_, pays_changed_;
  CutProblem problem_;
};

// Improves a labelling until no expansion and no swap helps.
class Descent {
 public:
  Descent(const Model& model, Labels start)
      : model_(model), labels_(std::move(start)), cost_ns_(model.assignment_ns(labels_)) {}

  void run(TargetId first) {
    const TargetId count = static_cast<TargetId>(model_.target_count());
    for (int round = 0; round < kMaxRounds; ++round) {
      bool progress = false;
      for (TargetId i = 0; i < count; ++i) {
        progress |= accept(Move(model_, labels_).expand((first + i) % count));
      }
      if (count == 1) return;  // from the host, one expansion is the optimum
      progress |= accept(Move(model_, labels_).expand(kHost));
      if (progress) continue;
      for (TargetId a = 0; a < count; ++a) {
        for (TargetId b = a + 1; b < count; ++b) {
          progress |= accept(Move(model_, labels_).swap(a, b));
        }
        progress |= accept(Move(model_, labels_).swap(a, kHost));
      }
      if (!progress) return;
    }
  }

  const Labels& labels() const { return labels_; }
  double cost_ns() const { return cost_ns_; }

 private:
  bool accept(Labels proposal) {
    if (proposal == labels_) return false;
    const double cost_ns = model_.assignment_ns(proposal);
    if (!(cost_ns < cost_ns_ * kProgress)) return false;
    labels_ = std::move(proposal);
    cost_ns_ = cost_ns;
    return true;
  }

  const Model& model_;
  Labels labels_;
  double cost_ns_;
};

// Moves single views where that does not cost more.
class ViewPlacer {
 public:
  ViewPlacer(const ir::Graph& graph, const Model& model, Labels& labels)
      : graph_(graph), model_(model), labels_(labels), users_(graph.users()) {
    cost_ns_ = model.assignment_ns(labels);
  }

  void run() {
    for (ir::NodeId n = 0; n < model_.node_count; ++n) {
      if (model_.is_view[n] && follows_producer(n)) try_label(n, labels_[producer_of(n)]);
    }
    for (ir::NodeId n = static_cast<ir::NodeId>(model_.node_count); n-- > 0;) {
      if (!model_.is_view[n] || follows_producer(n)) continue;
      if (const ir::NodeId user = first_user(n); user != ir::kNone) try_label(n, labels_[user]);
    }
  }

 private:
  ir::NodeId producer_of(ir::NodeId n) const {
    const std::vector<ir::ValueId>& operands = graph_.nodes[n].operands;
    if (operands.empty() || operands[0] == ir::kNone) return ir::kNone;
    return graph_.values[operands[0]].producer;
  }
  // Views of what the host computed join a plugin where claimed nodes should.
  bool follows_producer(ir::NodeId n) const {
    const ir::NodeId producer = producer_of(n);
    return producer != ir::kNone && (labels_[producer] != kHost || model_.leave_ns == 0);
  }
  ir::NodeId first_user(ir::NodeId n) const {
    ir::NodeId first = ir::kNone;
    for (const ir::ValueId v : graph_.nodes[n].results) {
      if (!users_[v].empty()) first = std::min(first, users_[v].front());
    }
    return first;
  }
  bool is_atomic(ir::NodeId n, TargetId label) const {
    return label != kHost && model_.atomic_of[label][n] != ir::kNone;
  }
  void try_label(ir::NodeId n, TargetId label) {
    if (label == labels_[n] || is_atomic(n, label) || is_atomic(n, labels_[n])) return;
    if (!std::isfinite(model_.compute_ns(n, label))) return;
    const double delta_ns = relabel_delta_ns(graph_, model_, labels_, std::span(&n, 1), label);
    if (delta_ns <= cost_ns_ * (1 - kProgress)) labels_[n] = label;
  }

  const ir::Graph& graph_;
  const Model& model_;
  Labels& labels_;
  std::vector<std::vector<ir::NodeId>> users_;
  double cost_ns_ = 0;
};

// With several targets, the nodes of a taken atomic claim may be better off apart, which no single
// move finds: starts again without each of them, the claim's own target last.
void give_up_atomics(const Model& model, Labels& best, double& best_ns) {
  std::size_t restarts = kMaxRestartNodes / model.node_count;
  for (const AtomicClaim& atomic : model.atomics) {
    if (best[atomic.nodes.front()] != atomic.target) continue;
    if (restarts-- == 0) return;
    Labels without = best;
    for (const ir::NodeId n : atomic.nodes) without[n] = kHost;
    Descent descent(model, std::move(without));
    descent.run((atomic.target + 1) % static_cast<TargetId>(model.target_count()));
    if (!(descent.cost_ns() < best_ns * kProgress)) continue;
    best = descent.labels();
    best_ns = descent.cost_ns();
  }
}

}  // namespace

double relabel_delta_ns(const ir::Graph& graph, const Model& model, Labels& labels,
                        std::span<const ir::NodeId> nodes, TargetId label) {
  std::vector<std::uint32_t> touched;
  std::vector<TargetId> before;
  const auto touch = [&](ir::ValueId v) {
    if (v != ir::kNone && model.transfer_of[v] != ir::kNone) {
      touched.push_back(model.transfer_of[v]);
    }
  };
  double delta_ns = 0;
  for (const ir::NodeId n : nodes) {
    delta_ns += model.node_ns(n, label) - model.node_ns(n, labels[n]);
    before.push_back(labels[n]);
    std::ranges::for_each(graph.nodes[n].operands, touch);
    std::ranges::for_each(graph.nodes[n].results, touch);
  }
  std::ranges::sort(touched);
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  for (const std::uint32_t i : touched) delta_ns -= model.transfer_ns(model.transfers[i], labels);
  for (const ir::NodeId n : nodes) labels[n] = label;
  for (const std::uint32_t i : touched) delta_ns += model.transfer_ns(model.transfers[i], labels);
  for (std::size_t i = 0; i < nodes.size(); ++i) labels[nodes[i]] = before[i];
  return delta_ns;
}

Labels choose_labels(const ir::Graph& graph, const Model& model) {
  Labels best(model.node_count, kHost);
  if (model.target_count() == 0 || model.node_count == 0) return best;
  double best_ns = std::numeric_limits<double>::infinity();
  const TargetId starts = std::min(static_cast<TargetId>(model.target_count()), kMaxStarts);
  for (TargetId first = 0; first < starts; ++first) {
    Descent descent(model, Labels(model.node_count, kHost));
    descent.run(first);
    if (descent.cost_ns() >= best_ns) continue;
    best = descent.labels();
    best_ns = descent.cost_ns();
  }
  if (model.target_count() > 1) give_up_atomics(model, best, best_ns);
  ViewPlacer(graph, model, best).run();
  return best;
}

}  // namespace backplane::partition
