// A compiled graph as bytes. The loader checks a sum over the blob, and every size and index in it.
#pragma once

#include <backplane/sdk/graph.hpp>

#include <memory>
#include <string>
#include <vector>

namespace backplane::reference {

std::string save_graph(const sdk::GraphView& graph, const std::vector<bp_layout>& layouts);

struct LoadedGraph {
  bp_graph graph;  // points into the members below
  std::vector<bp_layout> layouts;

  std::vector<bp_node> nodes;
  std::vector<bp_value> values;
  std::vector<bp_attribute> attributes;
  std::vector<bp_op> ops;
  std::vector<bp_dim_class> classes;
  std::vector<std::uint32_t> indices, inputs, outputs;
  std::vector<bp_dim> dims, strides;
  std::vector<std::unique_ptr<std::max_align_t[]>> blocks;  // texts and lists
};
sdk::Result<std::unique_ptr<LoadedGraph>> load_graph(std::span<const std::byte> blob);

}  // namespace backplane::reference
