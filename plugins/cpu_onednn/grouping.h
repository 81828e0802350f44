// Which nodes one kernel computes together.
#pragma once

#include <backplane/sdk/program.hpp>

#include <functional>
#include <vector>

namespace backplane::onednn {

struct Group {
  enum Kind : std::uint8_t {
    kSingle,   // one node with a kernel of its own
    kProgram,  // pointwise nodes and row operators
    kMatmul,   // a product and its post-ops
    kConvolution,
  };
  Kind kind = kSingle;
  std::vector<std::uint32_t> nodes;    // in graph order; of a product, it first
  std::uint32_t packed = 0xffffffffU;  // value of the packed weight, bound in place of the operand
};

struct Grouping {
  std::vector<Group> groups;     // in an order that respects every dependency
  std::vector<sdk::Step> steps;  // of the groups
  // Layouts of the graph's inputs.
  std::vector<bp_layout> layouts;
};

// `channels_last`: per value, whether it lies so (layout_pass.h). `may_pack(i)`: the host lets the
// plugin choose the layout of input i.
Grouping group_nodes(const sdk::GraphView& graph, const std::vector<bool>& channels_last,
                     const std::function<bool(std::size_t)>& may_pack);

}  // namespace backplane::onednn
