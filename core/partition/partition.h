// Cuts a graph into partitions: which plugin device runs which nodes, and in which groups.
//
// Per plugin a minimum cut over predicted compute and transfer costs, then repair of cycles between
// groups and merging by launch cost. Deterministic: same input, same answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/ir/graph.h"

namespace backplane::partition {

// Index into Problem::targets; kHost is ATen on the host.
using TargetId = std::uint32_t;
inline constexpr TargetId kHost = 0xffffffffu;

// A set of nodes a target promised to take.
struct Claim {
  std::vector<ir::NodeId> nodes;
  bool divisible = true;  // any convex subset is promised too; else all or nothing
  bool estimated = false;
  double time_ns = 0;  // of the whole set; shared among its nodes by their work when divisible
  double launch_ns = 0;
};
struct Refusal {
  ir::NodeId node = 0;
  std::uint32_t reason = 0;  // bp_refusal
  std::string text;
};

// What the cut knows of a device. Zero rates are replaced by the host's.
struct DeviceModel {
  double flops_per_s = 0;
  double memory_bytes_per_s = 0;
  double to_device_bytes_per_s = 0, from_device_bytes_per_s = 0;  // 0: shares the host's memory
  double copy_latency_ns = 0;
  double launch_latency_ns = 0;
};
struct Target {
  std::string name;  // plugin name, for reports
  DeviceModel model;
  std::vector<Claim> claims;
  std::vector<Refusal> refusals;
};

struct Options {
  DeviceModel host;            // ATen
  double host_node_ns = 3000;  // dispatch of one ATen op
  bool prefer_plugin = true;   // true: a claimed node leaves its plugin only to repair a cycle
  double resident_input_discount = 1;  // 1: static inputs transfer for free
};

struct Partition {
  TargetId target = kHost;
  std::vector<ir::NodeId> nodes;  // ascending
  double predicted_ns = 0;
};
struct Cut {
  std::vector<Partition> partitions;   // in an order that can be executed
  std::vector<std::uint32_t> of_node;  // node -> index into partitions
  double predicted_ns = 0;             // compute + transfers + launches
  double predicted_transfer_ns = 0;
};

// Values cross between two devices over the host. Saved values stay where they are.
// kInvalidArgument when a claim names a node that is not there or a number is negative or not
// finite.
Result<Cut> cut(const ir::Graph& graph, const std::vector<Target>& targets, const Options& options);

// The cost that cut() minimises, of any assignment; used by tests and reports: compute and
// transfers without launches, which depend on the groups. Infinite where a node's target does not
// claim it or an atomic claim is taken in part. With prefer_plugin, each claimed node on the host
// (except views) adds more than all true costs together. After the cut, a partition whose launch
// costs more than it saves returns to the host.
double assignment_cost_ns(const ir::Graph& graph, const std::vector<Target>& targets,
                          const Options& options, const std::vector<TargetId>& target_of_node);

}  // namespace backplane::partition
