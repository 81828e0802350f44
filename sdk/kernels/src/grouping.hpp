// Which nodes become one kernel.
#pragma once

#include <backplane/sdk/program.hpp>

#include <functional>
#include <vector>

namespace backplane::kernels {

struct Group {
  enum Kind { kSingle, kPoints, kProduct } kind = kSingle;
  std::vector<std::uint32_t> nodes;  // of a product: itself first, then its epilogue
};
struct Grouping {
  std::vector<Group> groups;
  std::vector<sdk::Step> steps;    // one a group, in an order that may run
  std::vector<bp_layout> layouts;  // of the graph's inputs
};
// `may_pack(i)`: the plugin may choose the layout of input i; panels have `panel_columns`.
Grouping group_nodes(const sdk::GraphView& graph, const std::function<bool(std::size_t)>& may_pack,
                     std::int64_t panel_columns);

}  // namespace backplane::kernels
