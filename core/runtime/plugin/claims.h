// Asks a device what it takes of a graph.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/ir/graph.h"
#include "core/partition/partition.h"
#include "core/runtime/plugin/device.h"
#include "core/runtime/plugin/graph_arrays.h"

namespace backplane::runtime {

// The device's own figures; 0 where it says nothing.
partition::DeviceModel model_of(const Device& device);

// Claims with unknown node ids, or of a device that failed to answer, are errors of the plugin.
// Nodes that belong to the host are taken out of them. `arrays` is of `graph`.
Result<partition::Target> query_claims(Device& device, const ir::Graph& graph,
                                       const GraphArrays& arrays);

// Takes nodes out of the target's claims and says why: `reasons` by node, empty where it stays. An
// atomic claim goes with any of its nodes.
void take_back(partition::Target& target, std::vector<std::string> reasons);

// Those that the device failed to compile before, or nodes like them.
void take_back_faulty(const Device& device, const ir::Graph& graph, partition::Target& target);

}  // namespace backplane::runtime
