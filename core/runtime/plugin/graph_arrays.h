// An ir::Graph, or a part of it, as the flat arrays of the plugin ABI.
#pragma once

#include <backplane/graph.h>

#include <deque>
#include <span>
#include <string>
#include <vector>

#include "core/ir/graph.h"

namespace backplane::runtime {

bp_dtype to_bp_dtype(ir::DType dtype);

// Owns the arrays; borrows names, constants and the op table from the graph, which must outlive it.
// Node and value ids are those of the graph.
class GraphArrays {
 public:
  // All nodes.
  explicit GraphArrays(const ir::Graph& graph);
  // `nodes` ascending; `inputs` are the values they read from outside (constants excepted),
  // `outputs` the values that are needed outside.
  GraphArrays(const ir::Graph& graph, std::span<const ir::NodeId> nodes,
              std::span<const ir::ValueId> inputs, std::span<const ir::ValueId> outputs);
  GraphArrays(const GraphArrays&) = delete;
  GraphArrays& operator=(const GraphArrays&) = delete;

  const bp_graph& get() const { return view_; }

 private:
  void build(const ir::Graph& graph, std::span<const ir::NodeId> nodes,
             std::span<const ir::ValueId> inputs, std::span<const ir::ValueId> outputs);
  std::uint32_t value_index(const ir::Graph& graph, ir::ValueId id);
  bp_attribute attribute(const ir::Attribute& in);

  bp_graph view_{};
  std::vector<bp_node> nodes_;
  std::vector<bp_value> values_;
  std::vector<bp_attribute> attributes_;
  std::vector<bp_op> ops_;
  std::vector<bp_dim_class> classes_;
  std::vector<std::uint32_t> indices_, inputs_, outputs_;
  std::vector<std::uint32_t> index_of_value_;  // by ValueId
  std::vector<bp_dim> dims_, strides_;
  std::deque<std::vector<std::int64_t>> integers_;  // stable addresses
  std::deque<std::vector<std::uint8_t>> flags_;
};

}  // namespace backplane::runtime
