// The arrays of a bp_graph.
#pragma once

#include <backplane/graph.h>

#include <cstdint>
#include <deque>
#include <vector>

namespace backplane::runtime {

struct GraphStore {
  std::vector<bp_node> nodes;
  std::vector<bp_value> values;
  std::vector<bp_attribute> attributes;
  std::vector<bp_op> ops;
  std::vector<bp_dim_class> dim_classes;
  std::vector<std::uint32_t> indices, inputs, outputs;
  std::vector<bp_dim> dims, strides;
  // Lists of attributes, at stable addresses.
  std::deque<std::vector<std::int64_t>> integers;
  std::deque<std::vector<double>> reals;
  std::deque<std::vector<std::uint8_t>> flags;

  // A graph without a name; it points in here.
  bp_graph view() const {
    bp_graph graph{};
    graph.struct_size = sizeof graph;
    const auto put = [](auto& first, auto& count, auto& stride, const auto& store) {
      first = store.data();
      count = store.size();
      stride = sizeof(store[0]);
    };
    put(graph.nodes, graph.node_count, graph.node_stride, nodes);
    put(graph.values, graph.value_count, graph.value_stride, values);
    put(graph.attributes, graph.attribute_count, graph.attribute_stride, attributes);
    put(graph.ops, graph.op_count, graph.op_stride, ops);
    put(graph.dim_classes, graph.dim_class_count, graph.dim_class_stride, dim_classes);
    graph.indices = indices.data();
    graph.index_count = indices.size();
    graph.dims = dims.data();
    graph.strides = strides.data();
    graph.dim_count = dims.size();
    graph.inputs = inputs.data();
    graph.input_count = inputs.size();
    graph.outputs = outputs.data();
    graph.output_count = outputs.size();
    return graph;
  }
};

}  // namespace backplane::runtime
