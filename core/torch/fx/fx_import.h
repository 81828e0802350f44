// TorchDynamo's and AOTAutograd's FX graphs of ATen operators as ir::Graph. The one place that
// reads torch.fx; needs the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/status.h"
#include "core/ir/graph.h"

namespace backplane::fx {

// What argument i of the compiled function is.
struct Argument {
  enum class Kind : std::uint8_t { kTensor, kInteger, kIgnored };
  Kind kind = Kind::kTensor;
  std::uint32_t index = 0;  // position in graph.inputs, or among the integer arguments
};
// What output i of the compiled function is.
struct OutputNone {};
using Output = std::variant<OutputNone, std::uint32_t /* position in graph.outputs */, ir::Dim>;

struct Imported {
  ir::Graph graph;
  std::vector<Argument> arguments;
  std::vector<std::string> integer_arguments;  // names of the dim classes they bind
  std::vector<Output> outputs;
  // Where the graph's inputs and outputs are: on the host, or on torch's device of that index.
  std::optional<std::int8_t> device_index;
  std::vector<bool> inputs_on_device, outputs_on_device;  // by position in the graph's
};

// A graph without FX behind it: each input is a tensor, each output is given, and the dim classes
// that no expression gives are integer arguments behind the tensors, in order.
Imported wrap_graph(ir::Graph graph);

// "model.py:12" of the last frame in a stack trace as FX records it; empty where there is none.
std::string location_of(std::string_view stack_trace);

// `static_inputs`: names of placeholders that hold weights and buffers. Fails, naming the node,
// on what the IR cannot carry: other devices, subclasses, quantized types, higher-order operators.
Result<Imported> import_graph(const pybind11::object& graph_module, const std::string& name,
                              const std::vector<std::string>& static_inputs);

}  // namespace backplane::fx
