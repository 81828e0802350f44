// Which values inside a program lie channels last, whatever strides the graph gives them: what
// convolutions are fastest in, and pointwise nodes, norms and pooling take as well as any.
#pragma once

#include <backplane/sdk/program.hpp>

#include <vector>

namespace backplane::onednn {

// Per value. Values that enter or leave the program, or meet a node that needs the graph's own
// strides, stay as they are.
std::vector<bool> channels_last_values(const sdk::GraphView& graph);

// Gives these values their strides, and views of them theirs.
void apply_channels_last(const sdk::GraphView& graph, const std::vector<bool>& values,
                         std::vector<sdk::TensorSpec>& specs);

}  // namespace backplane::onednn
