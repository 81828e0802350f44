// What the plugin takes: every node that it has a kernel for, one by one.
#pragma once

#include <backplane/sdk/device.hpp>

namespace backplane::onednn {

sdk::Claims claim_nodes(const sdk::GraphView& graph);

}  // namespace backplane::onednn
