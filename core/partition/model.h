// The costs behind cut(): what every node costs on the host and on each target, which claims are
// taken whole, and what moving a value between devices costs.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/partition/partition.h"

namespace backplane::partition {

using Labels = std::vector<TargetId>;  // node -> target

// A claim that is taken with all its nodes or not at all, as a partition of its own.
struct AtomicClaim {
  TargetId target = 0;
  std::uint32_t claim = 0;        // index into Target::claims
  std::vector<ir::NodeId> nodes;  // ascending
};

// A value that may cross between devices; values that are free everywhere have none.
struct Transfer {
  ir::NodeId producer = ir::kNone;  // kNone: the host
  std::uint32_t first_reader = 0, reader_count = 0;
  bool read_by_host = false;  // it is a graph output
  double bytes = 0;
  double factor = 1;  // share of the cost that is paid
};

struct Model {
  std::size_t node_count = 0;
  std::vector<DeviceModel> devices;            // per target
  std::vector<double> host_ns;                 // per node
  std::vector<std::vector<double>> target_ns;  // [target][node], infinite where not claimed
  std::vector<std::vector<double>> launch_ns;  // [target][node], of the claim behind target_ns
  std::vector<bool> is_view;                   // per node
  std::vector<bool> prefers_plugin;            // per node: the host costs leave_ns more
  double leave_ns = 0;                         // more than everything else together
  std::vector<AtomicClaim> atomics;
  std::vector<std::vector<std::uint32_t>> atomic_of;  // [target][node] -> atomics, kNone: none
  std::vector<Transfer> transfers;
  std::vector<ir::NodeId> readers;         // of transfers, each node once
  std::vector<std::uint32_t> transfer_of;  // value -> transfers, kNone: free

  std::size_t target_count() const { return devices.size(); }
  std::span<const ir::NodeId> readers_of(const Transfer& transfer) const {
    return std::span(readers).subspan(transfer.first_reader, transfer.reader_count);
  }
  double to_device_ns(const Transfer& transfer, TargetId target) const;
  double from_device_ns(const Transfer& transfer, TargetId target) const;
  // Computing a node there, without leave_ns.
  double compute_ns(ir::NodeId node, TargetId label) const;
  // What the cut minimises: with leave_ns.
  double node_ns(ir::NodeId node, TargetId label) const;
  double transfer_ns(const Transfer& transfer, const Labels& labels) const;
  double total_transfer_ns(const Labels& labels) const;
  // Infinite where a label is not claimed or an atomic claim is taken in part.
  double assignment_ns(const Labels& labels) const;
};

// A claim left out of the model, as (target, claim).
using ClaimRef = std::pair<TargetId, std::uint32_t>;

// The claims must be valid (check_targets). Independent of the order of each target's claims.
//
// A node that several divisible claims of one target offer gets the cheapest of them, estimates
// before rooflines. An atomic claim counts only if it is convex and offers a node that no divisible
// one does; of overlapping atomic claims the larger wins, then the one with the smaller first node.
Model build_model(const ir::Graph& graph, const std::vector<Target>& targets,
                  const Options& options, std::span<const ClaimRef> left_out);

// Ids in range, numbers finite and not negative.
Status check_targets(const ir::Graph& graph, const std::vector<Target>& targets,
                     const Options& options);

}  // namespace backplane::partition
