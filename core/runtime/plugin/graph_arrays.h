// An ir::Graph, or a part of it, as the flat arrays of the plugin ABI.
#pragma once

#include <backplane/graph.h>

#include <span>
#include <string>
#include <vector>

#include "core/ir/graph.h"
#include "core/runtime/host/graph_store.h"

namespace backplane::runtime {

bp_dtype to_bp_dtype(ir::DType dtype);

// What a plugin gets for the dim classes of its graph: those of `graph`, then of `offsets`.
std::vector<std::int64_t> class_values_of(const ir::Graph& graph,
                                          std::span<const ir::ValueId> offsets,
                                          std::span<const std::int64_t> values);

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
  std::string summary() const;  // "aten.mm, aten.relu and 3 more"
  // Views whose offset follows from sizes: each has a dim class of its own, behind the graph's.
  const std::vector<ir::ValueId>& offsets() const { return offsets_; }

 private:
  void build(const ir::Graph& graph, std::span<const ir::NodeId> nodes,
             std::span<const ir::ValueId> inputs, std::span<const ir::ValueId> outputs);
  std::uint32_t value_index(const ir::Graph& graph, ir::ValueId id);
  bp_dim alias_offset(const ir::Graph& graph, ir::ValueId view);
  bp_attribute attribute(const ir::Attribute& in);

  bp_graph view_{};
  GraphStore store_;
  std::vector<std::uint32_t> index_of_value_;  // by ValueId
  std::vector<ir::ValueId> offsets_;
};

}  // namespace backplane::runtime
