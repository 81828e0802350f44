// Turns a cut graph into steps, slots and compiled partitions. One use per CompiledGraph.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/runtime/plan/compiled_graph.h"

namespace backplane::runtime {

// A partition's plugin failed to compile what it claimed: the nodes go back to the host.
struct BrokenClaim {
  std::uint32_t target = 0, partition = 0;
  std::vector<ir::NodeId> nodes;
  std::vector<ir::NodeId> named;  // of these, those that the plugin's error is about
  bool is_compiled = false;       // the plugin was asked, and failed
  Status status;
};

// Whether the device's memory is a place of its own in plans.
bool is_place(const Device& device);

class PlanBuilder {
 public:
  PlanBuilder(CompiledGraph& out, const std::vector<Device*>& devices,
              const std::vector<partition::Target>& targets, const CompileOptions& options,
              const partition::Cut& cut)
      : out_(out),
        graph_(out.graph_),
        devices_(devices),
        targets_(targets),
        options_(options),
        cut_(cut) {}

  // On a failure of a plugin's compile, `broken` says which nodes it was about.
  Status build(BrokenClaim& broken);
  // Of one partition alone whether it compiles. Leaves nothing that could run.
  Status try_partition(std::uint32_t index, BrokenClaim& broken);
  // Of one that failed so; what to add to the message (replay.h).
  std::string keep_for_replay(std::uint32_t index, const std::string& message);

 private:
  // A partition as its plugin sees it.
  struct Piece {
    Device* device = nullptr;
    std::uint32_t place = 0;
    std::vector<ir::NodeId> nodes;  // those that compute, and the views between them; ascending
    std::vector<ir::ValueId> inputs, outputs;
    bool has_effects = false;
    bool is_needed() const { return !outputs.empty() || has_effects; }
  };
  Status gather(std::uint32_t index, Piece& out_piece, BrokenClaim& broken);
  // Of a builder that plans nothing else.
  Status gather_alone(std::uint32_t index, Piece& out_piece);
  Result<std::unique_ptr<Executable>> compile(const Piece& piece, std::uint32_t index,
                                              BrokenClaim& broken);
  bool is_view(ir::NodeId node) const;
  bool is_claimed(partition::TargetId target, ir::NodeId node) const;
  bool produced_in(ir::ValueId root, std::uint32_t partition) const;
  ir::ValueId entry_of(ir::ValueId operand, const Device& device, std::uint32_t place) const;
  std::string content_text(std::span<const ir::NodeId> nodes, std::span<const ir::ValueId> inputs,
                           std::span<const ir::ValueId> outputs) const;
  std::uint32_t input_slot(ir::ValueId value, Device* device, std::uint32_t place,
                           bp_layout layout);
  void find_needed_roots();
  void find_exports();
  bool is_resident_output(std::size_t position, CompiledGraph::Source source) const;
  void find_inputs();
  std::uint32_t place_of(const Device* device);
  std::uint32_t host_slot(ir::ValueId root);
  std::uint32_t device_slot(ir::ValueId root, std::uint32_t place);
  std::uint32_t new_slot(CompiledGraph::Slot slot);
  std::uint32_t new_result_slot(ir::ValueId root, std::uint32_t place, bool by_fallback);
  Status add_host_partition(std::uint32_t index);
  Status add_plugin_partition(std::uint32_t index, BrokenClaim& broken);
  std::uint32_t pack_slot(ir::ValueId value, Device* device, std::uint32_t place, bp_layout layout);
  void finish_exports();
  void mark_lifetimes();
  void mark_signals();

  CompiledGraph& out_;
  const ir::Graph& graph_;
  const std::vector<Device*>& devices_;
  const std::vector<partition::Target>& targets_;  // parallel to devices_
  const CompileOptions& options_;
  const partition::Cut& cut_;
  std::set<ir::ValueId> needed_;  // roots read outside the partition that makes them
  std::map<ir::ValueId, std::uint32_t> export_of_root_;
  std::map<std::pair<ir::ValueId, std::uint32_t>, std::uint32_t> slot_of_;  // (root, place)
  std::map<std::tuple<ir::ValueId, Device*, std::uint32_t, std::uint64_t>, std::uint32_t> packs_;
};

}  // namespace backplane::runtime
