// From the tape to the IR: names, attributes and types as the importer of FX graphs writes them.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/ir/graph.h"
#include "core/torch/record/tape.h"

namespace backplane::record {

struct LowerOptions {
  std::string name = "graph";
  std::vector<ValueNumber> inputs;  // of the graph, in order
  std::vector<std::string> input_names;
  std::vector<ValueNumber> outputs;
  std::size_t forward_call_count = 0;  // calls before it are the forward
};

struct Lowered {
  ir::Graph graph;
  std::size_t forward_node_count = 0;
  // By value of the graph: the tensor behind each constant, numbers as PyTorch holds them (double,
  // taking part in type promotion as numbers do). Undefined elsewhere.
  std::vector<at::Tensor> constants;
  std::vector<ir::ValueId> ids;  // by value of the tape; kNone: the graph has none
};

// Leaves out calls whose results nobody reads. Fails, naming the call, on what the IR cannot carry.
Result<Lowered> lower(const Tape& tape, const LowerOptions& options);

// Type of a value. Fails for other devices, layouts and dtypes than the IR knows.
Result<ir::TensorType> lower_type(const at::Tensor& meta, c10::Device device);

}  // namespace backplane::record
