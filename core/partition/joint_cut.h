// Cuts a joint graph into a forward and a backward: which values the forward saves, which the
// backward computes once more.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/ir/graph.h"

namespace backplane::partition {

// Where forward and backward meet in a joint graph: inputs are arguments, then tangents; outputs
// are the forward's, then gradients.
struct JointBorder {
  std::size_t argument_count = 0;
  std::size_t forward_output_count = 0;
};

struct JointCutOptions {
  // Of the device. Only their ratio decides.
  double bytes_per_second = 20e9;
  double flops_per_second = 200e9;
  // Share of the bytes that the default cut saves: 1 is the default cut, which computes nothing
  // expensive twice; below, the cheapest cut that saves no more, down to what is possible.
  double memory_budget = 1;
  // By argument, or empty: others may write it before the backward, so what is saved is a copy.
  std::vector<bool> copied_arguments;
};

// A value that the backward reads and the forward has.
struct SavedValue {
  ir::ValueId value = ir::kNone;  // of the joint graph
  bool is_argument = false;       // the forward's input itself
  bool is_copied = false;         // JointCutOptions::copied_arguments
  // Position in forward.inputs if is_argument, else in forward.outputs.
  std::uint32_t forward_position = 0;
  std::int64_t bytes = 0;
};

struct JointCut {
  ir::Graph forward;   // inputs: the arguments; outputs: the forward's, then saved values
  ir::Graph backward;  // inputs: saved values in order, then tangents; outputs: gradients
  std::vector<SavedValue> saved;
  std::vector<ir::NodeId> recomputed;  // of the joint graph, in both graphs; without views
  std::int64_t saved_bytes = 0;        // without static arguments
  double recompute_seconds = 0;        // predicted
  // By value of the joint graph: its id in forward and backward; kNone where absent.
  std::vector<ir::ValueId> forward_ids, backward_ids;
};

// Fails where a forward output depends on a tangent.
Result<JointCut> cut_joint(const ir::Graph& joint, const JointBorder& border,
                           const JointCutOptions& options);

// For people: a line for each saved value and each node computed twice.
std::string explain(const ir::Graph& joint, const JointCut& cut);

}  // namespace backplane::partition
