// Which node of a partition its plugin cannot compile, so that the others stay with it.
#pragma once

#include <span>
#include <vector>

#include "core/partition/partition.h"
#include "core/runtime/plan/plan_builder.h"

namespace backplane::runtime {

// One per compile of a graph.
class FaultSearch {
 public:
  FaultSearch(const std::vector<Device*>& devices, const std::vector<partition::Target>& targets,
              const CompileOptions& options)
      : devices_(devices), targets_(targets), options_(options) {}

  // Narrows `broken`, of a partition of `cut`, to the node at fault: the one that the plugin names,
  // else it is asked for parts of the partition. What the plugin refuses by itself is noted with
  // the device. Stays as it is where the failure is about no node, or none is found. `scratch` is
  // of no use afterwards. The smallest part that failed is kept for replay.
  void narrow(CompiledGraph& scratch, const partition::Cut& cut, BrokenClaim& broken);

 private:
  using Nodes = std::span<const ir::NodeId>;
  bool may_ask_for_parts(const BrokenClaim& broken) const;
  partition::Cut cut_around(Nodes part) const;
  void find(const ir::Graph& graph, BrokenClaim& broken);
  // Of a part of the partition, convex. Where it fails, `broken` is about that part.
  bool compiles(Nodes part, BrokenClaim& broken);
  bool goes_on(const BrokenClaim& broken) const;
  void search(Nodes nodes, BrokenClaim& broken);
  void find_last_of_company(Nodes nodes, BrokenClaim& broken);

  const std::vector<Device*>& devices_;
  const std::vector<partition::Target>& targets_;  // parallel to devices_
  const CompileOptions& options_;
  CompiledGraph* scratch_ = nullptr;
  const partition::Cut* cut_ = nullptr;
  std::uint32_t partition_ = 0;
  std::vector<ir::NodeId> failed_;  // the last part that did
  int trials_left_ = 64;            // a compile may be slow
};

}  // namespace backplane::runtime
