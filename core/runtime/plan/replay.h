// Partitions that failed, as files that `backplane replay` runs without the model and its
// framework.
#pragma once

#include <span>
#include <string>

#include "core/ir/graph.h"

namespace backplane::runtime {

struct FailedPartition {
  const ir::Graph& graph;
  std::span<const ir::NodeId> nodes;
  std::span<const ir::ValueId> inputs, outputs;
  std::span<const std::int64_t> class_values;
  std::string device;  // label
  std::string message;
};

// Whether BACKPLANE_REPLAY names a folder.
bool keeps_failures();

// What to add to the message: where the file lies, or why there is none. Empty unless
// BACKPLANE_REPLAY names a folder. A partition that fails again is written once.
std::string keep_for_replay(const FailedPartition& failed);

}  // namespace backplane::runtime
