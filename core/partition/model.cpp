#include "core/partition/model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/ir/cost.h"

namespace backplane::partition {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kNsPerSecond = 1e9;

double copy_ns(double bytes, double bytes_per_s, double latency_ns) {
  if (bytes <= 0 || bytes_per_s <= 0) return 0;
  return bytes / bytes_per_s * kNsPerSecond + latency_ns;
}

double total_bytes(const ir::Work& work) {
  return static_cast<double>(work.read_bytes) + static_cast<double>(work.written_bytes);
}

// The longer of computing and moving; a rate that is unknown for the device and the host costs
// nothing.
double roofline_ns(const ir::Work& work, const DeviceModel& device, const DeviceModel& host) {
  const double flops_per_s = device.flops_per_s > 0 ? device.flops_per_s : host.flops_per_s;
  const double bytes_per_s =
      device.memory_bytes_per_s > 0 ? device.memory_bytes_per_s : host.memory_bytes_per_s;
  const double compute = flops_per_s > 0 ? work.flops / flops_per_s * kNsPerSecond : 0;
  const double memory = bytes_per_s > 0 ? total_bytes(work) / bytes_per_s * kNsPerSecond : 0;
  return std::max(compute, memory);
}

// A claim with its nodes sorted and unique.
struct CanonicalClaim {
  std::uint32_t index = 0;
  const Claim* claim = nullptr;
  std::vector<ir::NodeId> nodes;
};

std::vector<CanonicalClaim> canonical_claims(const Target& target, TargetId id,
                                             std::span<const ClaimRef> left_out) {
  std::vector<CanonicalClaim> result;
  for (std::uint32_t i = 0; i < target.claims.size(); ++i) {
    if (std::ranges::find(left_out, ClaimRef{id, i}) != left_out.end()) continue;
    CanonicalClaim entry{i, &target.claims[i], target.claims[i].nodes};
    std::ranges::sort(entry.nodes);
    entry.nodes.erase(std::unique(entry.nodes.begin(), entry.nodes.end()), entry.nodes.end());
    if (!entry.nodes.empty()) result.push_back(std::move(entry));
  }
  // Claims that compare equal are interchangeable, so the order given leaves no trace.
  std::ranges::stable_sort(result, [](const CanonicalClaim& a, const CanonicalClaim& b) {
    if (a.nodes.size() != b.nodes.size()) return a.nodes.size() > b.nodes.size();
    if (a.nodes != b.nodes) return a.nodes < b.nodes;
    if (a.claim->estimated != b.claim->estimated) return a.claim->estimated;
    if (a.claim->time_ns != b.claim->time_ns) return a.claim->time_ns < b.claim->time_ns;
    return a.claim->launch_ns < b.claim->launch_ns;
  });
  return result;
}

class Builder {
 public:
  Builder(const ir::Graph& graph, const std::vector<Target>& targets, const Options& options)
      : graph_(graph), targets_(targets), options_(options) {}

  Model build(std::span<const ClaimRef> left_out) {
    add_nodes();
    for (TargetId t = 0; t < targets_.size(); ++t) add_target(t, left_out);
    add_transfers();
    add_preference();
    return std::move(model_);
  }

 private:
  void add_nodes() {
    const std::size_t count = graph_.nodes.size();
    model_.node_count = count;
    model_.is_view.resize(count);
    model_.host_ns.resize(count, 0.0);
    work_.resize(count);
    for (ir::NodeId n = 0; n < count; ++n) {
      const ir::OpInfo* op = graph_.nodes[n].op;
      model_.is_view[n] = op != nullptr && op->op_class == ir::OpClass::kView;
      if (model_.is_view[n]) continue;
      work_[n] = ir::node_work(graph_, n);
      model_.host_ns[n] =
          roofline_ns(work_[n], options_.host, options_.host) + options_.host_node_ns;
    }
  }

  void add_target(TargetId t, std::span<const ClaimRef> left_out) {
    const std::size_t count = graph_.nodes.size();
    const Target& target = targets_[t];
    model_.devices.push_back(target.model);
    model_.target_ns.emplace_back(count, kInfinite);
    model_.launch_ns.emplace_back(count, 0.0);
    model_.atomic_of.emplace_back(count, ir::kNone);
    const std::vector<CanonicalClaim> claims = canonical_claims(target, t, left_out);
    std::vector<bool> has_estimate(count, false);
    for (const CanonicalClaim& entry : claims) {
      if (!entry.claim->divisible) continue;
      const std::vector<double> shares = node_shares(entry, target.model);
      for (std::size_t i = 0; i < entry.nodes.size(); ++i) {
        const ir::NodeId n = entry.nodes[i];
        const bool better = entry.claim->estimated != has_estimate[n]
                                ? entry.claim->estimated
                                : shares[i] < model_.target_ns[t][n];
        if (better) set_cost(t, n, shares[i], launch_of(*entry.claim, target.model));
        if (entry.claim->estimated) has_estimate[n] = true;
      }
    }
    std::vector<bool> divisible(count, false);
    for (ir::NodeId n = 0; n < count; ++n) divisible[n] = model_.target_ns[t][n] < kInfinite;
    for (const CanonicalClaim& entry : claims) {
      if (entry.claim->divisible) continue;
      bool adds = false, overlaps = false;
      for (const ir::NodeId n : entry.nodes) {
        adds = adds || !divisible[n];
        overlaps = overlaps || model_.atomic_of[t][n] != ir::kNone;
      }
      if (!adds || overlaps || !is_convex(entry.nodes)) continue;
      const std::vector<double> shares = node_shares(entry, target.model);
      for (std::size_t i = 0; i < entry.nodes.size(); ++i) {
        const ir::NodeId n = entry.nodes[i];
        set_cost(t, n, shares[i], launch_of(*entry.claim, target.model));
        model_.atomic_of[t][n] = static_cast<std::uint32_t>(model_.atomics.size());
      }
      model_.atomics.push_back({t, entry.index, entry.nodes});
    }
  }

  void set_cost(TargetId t, ir::NodeId n, double compute_ns, double launch_ns) {
    model_.target_ns[t][n] = compute_ns;
    model_.launch_ns[t][n] = launch_ns;
  }

  static double launch_of(const Claim& claim, const DeviceModel& device) {
    return claim.estimated ? claim.launch_ns : device.launch_latency_ns;
  }

  // What each node of the claim costs, without the launch. Views cost nothing.
  std::vector<double> node_shares(const CanonicalClaim& entry, const DeviceModel& device) const {
    std::vector<double> shares(entry.nodes.size(), 0.0);
    double sum = 0, plain_sum = 0, computing = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const ir::NodeId n = entry.nodes[i];
      if (model_.is_view[n]) continue;
      shares[i] = roofline_ns(work_[n], device, options_.host);
      sum += shares[i];
      plain_sum += work_[n].flops + total_bytes(work_[n]);
      computing += 1;
    }
    if (!entry.claim->estimated) return shares;
    const double time_ns = std::max(0.0, entry.claim->time_ns - entry.claim->launch_ns);
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const ir::NodeId n = entry.nodes[i];
      if (model_.is_view[n]) continue;
      if (sum > 0) {
        shares[i] = time_ns * (shares[i] / sum);
      } else if (plain_sum > 0) {
        shares[i] = time_ns * ((work_[n].flops + total_bytes(work_[n])) / plain_sum);
      } else {
        shares[i] = time_ns / computing;
      }
    }
    return shares;
  }

  // Whether no path leaves the set and comes back; nodes ascending.
  bool is_convex(const std::vector<ir::NodeId>& nodes) const {
    const ir::NodeId first = nodes.front(), last = nodes.back();
    if (last - first + 1 == nodes.size()) return true;
    enum : std::uint8_t { kUnrelated, kMember, kAfterMember };
    std::vector<std::uint8_t> state(last - first + 1, kUnrelated);
    for (const ir::NodeId n : nodes) state[n - first] = kMember;
    for (ir::NodeId n = first; n <= last; ++n) {
      for (const ir::ValueId v : graph_.nodes[n].operands) {
        if (v == ir::kNone) continue;
        const ir::NodeId producer = graph_.values[v].producer;
        if (producer == ir::kNone || producer < first || producer >= n) continue;
        const std::uint8_t from = state[producer - first];
        if (from == kUnrelated) continue;
        if (state[n - first] == kMember) {
          if (from == kAfterMember) return false;
        } else {
          state[n - first] = kAfterMember;
        }
      }
    }
    return true;
  }

  void add_transfers() {
    const std::vector<std::vector<ir::NodeId>> users = graph_.users();
    std::vector<std::uint32_t> output_uses(graph_.values.size(), 0);
    for (const ir::ValueId v : graph_.outputs) ++output_uses[v];
    model_.transfer_of.assign(graph_.values.size(), ir::kNone);
    for (ir::ValueId v = 0; v < graph_.values.size(); ++v) {
      const ir::Value& value = graph_.values[v];
      if (value.kind == ir::ValueKind::kConstant || value.is_host_scalar) continue;
      Transfer transfer;
      if (value.kind == ir::ValueKind::kInput) {
        if (value.is_saved) continue;  // stays where the forward put it
        if (value.is_static) {
          transfer.factor = std::clamp(1.0 - options_.resident_input_discount, 0.0, 1.0);
        }
      } else {
        transfer.producer = value.producer;
      }
      // Handing a saved value over to the backward moves nothing; a second use returns it.
      transfer.read_by_host = output_uses[v] > (value.is_saved ? 1u : 0u);
      if (transfer.factor <= 0 || (users[v].empty() && !transfer.read_by_host)) continue;
      transfer.bytes = static_cast<double>(graph_.hint_bytes(v));
      transfer.first_reader = static_cast<std::uint32_t>(model_.readers.size());
      for (const ir::NodeId n : users[v]) {
        const bool repeated = model_.readers.size() > transfer.first_reader &&
                              model_.readers.back() == n;  // users are in order
        if (!repeated) model_.readers.push_back(n);
      }
      transfer.reader_count =
          static_cast<std::uint32_t>(model_.readers.size()) - transfer.first_reader;
      model_.transfer_of[v] = static_cast<std::uint32_t>(model_.transfers.size());
      model_.transfers.push_back(transfer);
    }
  }

  void add_preference() {
    model_.prefers_plugin.assign(model_.node_count, false);
    double bound = 1;
    for (ir::NodeId n = 0; n < model_.node_count; ++n) {
      double most = model_.host_ns[n];
      bool claimed = false;
      for (TargetId t = 0; t < model_.target_count(); ++t) {
        if (model_.target_ns[t][n] == kInfinite) continue;
        claimed = true;
        most = std::max(most, model_.target_ns[t][n] + model_.launch_ns[t][n]);
      }
      bound += most;
      model_.prefers_plugin[n] = options_.prefer_plugin && claimed && !model_.is_view[n];
    }
    for (const Transfer& transfer : model_.transfers) {
      for (TargetId t = 0; t < model_.target_count(); ++t) {
        bound += model_.to_device_ns(transfer, t) + model_.from_device_ns(transfer, t);
      }
    }
    model_.leave_ns = options_.prefer_plugin ? bound : 0;
  }

  const ir::Graph& graph_;
  const std::vector<Target>& targets_;
  const Options& options_;
  std::vector<ir::Work> work_;
  Model model_;
};

Status invalid(const std::string& what) { return Status(Code::kInvalidArgument, what); }

bool is_amount(double number) { return std::isfinite(number) && number >= 0; }

// The first number that is none, by name; empty where all are sound.
std::string unsound(const DeviceModel& m) {
  const std::pair<const char*, double> numbers[] = {
      {"flop_per_s of float32", m.flops_per_s},
      {"memory_bytes_per_s", m.memory_bytes_per_s},
      {"to_device_bytes_per_s", m.to_device_bytes_per_s},
      {"from_device_bytes_per_s", m.from_device_bytes_per_s},
      {"copy_latency_ns", m.copy_latency_ns},
      {"launch_latency_ns", m.launch_latency_ns},
  };
  for (const auto& [name, number] : numbers)
    if (!is_amount(number)) return name + (" = " + std::to_string(number));
  return {};
}

}  // namespace

double Model::to_device_ns(const Transfer& transfer, TargetId target) const {
  const DeviceModel& device = devices[target];
  return transfer.factor *
         copy_ns(transfer.bytes, device.to_device_bytes_per_s, device.copy_latency_ns);
}

double Model::from_device_ns(const Transfer& transfer, TargetId target) const {
  const DeviceModel& device = devices[target];
  return transfer.factor *
         copy_ns(transfer.bytes, device.from_device_bytes_per_s, device.copy_latency_ns);
}

double Model::compute_ns(ir::NodeId node, TargetId label) const {
  return label == kHost ? host_ns[node] : target_ns[label][node];
}

double Model::node_ns(ir::NodeId node, TargetId label) const {
  if (label == kHost) return host_ns[node] + (prefers_plugin[node] ? leave_ns : 0.0);
  return target_ns[label][node];
}

double Model::transfer_ns(const Transfer& transfer, const Labels& labels) const {
  const TargetId from = transfer.producer == ir::kNone ? kHost : labels[transfer.producer];
  bool leaves = transfer.read_by_host && from != kHost;
  double sum = 0;
  const std::span<const ir::NodeId> nodes = readers_of(transfer);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const TargetId to = labels[nodes[i]];
    if (to == from) continue;
    leaves = true;
    if (to == kHost) continue;
    bool first = true;
    for (std::size_t j = i; j > 0 && first; --j) first = labels[nodes[j - 1]] != to;
    if (first) sum += to_device_ns(transfer, to);
  }
  if (leaves && from != kHost) sum += from_device_ns(transfer, from);
  return sum;
}

double Model::total_transfer_ns(const Labels& labels) const {
  double sum = 0;
  for (const Transfer& transfer : transfers) sum += transfer_ns(transfer, labels);
  return sum;
}

double Model::assignment_ns(const Labels& labels) const {
  double sum = 0;
  for (ir::NodeId n = 0; n < node_count; ++n) sum += node_ns(n, labels[n]);
  for (const AtomicClaim& atomic : atomics) {
    const auto here = std::ranges::count_if(
        atomic.nodes, [&](ir::NodeId n) { return labels[n] == atomic.target; });
    if (here != 0 && static_cast<std::size_t>(here) != atomic.nodes.size()) return kInfinite;
  }
  return sum + total_transfer_ns(labels);
}

Model build_model(const ir::Graph& graph, const std::vector<Target>& targets,
                  const Options& options, std::span<const ClaimRef> left_out) {
  return Builder(graph, targets, options).build(left_out);
}

Status check_targets(const ir::Graph& graph, const std::vector<Target>& targets,
                     const Options& options) {
  if (!unsound(options.host).empty() || !is_amount(options.host_node_ns) ||
      !is_amount(options.resident_input_discount)) {
    return invalid("The partition options hold a number that is negative or not finite.");
  }
  for (const Target& target : targets) {
    if (const std::string what = unsound(target.model); !what.empty()) {
      return invalid("The device model of '" + target.name + "' says " + what +
                     "; expected a finite number that is not negative.");
    }
    for (const Claim& claim : target.claims) {
      for (const ir::NodeId n : claim.nodes) {
        if (n < graph.nodes.size()) continue;
        return invalid("A claim of '" + target.name + "' names node " + std::to_string(n) +
                       " of a graph with " + std::to_string(graph.nodes.size()) + " nodes.");
      }
      if (claim.estimated && (!is_amount(claim.time_ns) || !is_amount(claim.launch_ns))) {
        return invalid("A claim of '" + target.name +
                       "' has an estimate that is negative or not finite.");
      }
    }
  }
  return {};
}

}  // namespace backplane::partition
