// Graphs that cases write themselves, whose results have one right value.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sdk/conformance/src/graph_run.h"
#include "sdk/conformance/src/kit.h"

namespace backplane::conformance {

// The device and the oracle for a graph that the device takes whole; anything but a pass says why
// it does not.
Outcome open_for(Kit& kit, const ir::Graph& graph, runtime::Device*& out_device,
                 runtime::Device*& out_oracle);
// Runs it once on the device: dense results by output; empty, and the outcome says why.
Outcome run_once(runtime::Device& device, const ir::Graph& graph, std::vector<Bytes>& inputs,
                 std::vector<Bytes>& out_results);

// A graph with these inputs gives what the oracle gives, bit for bit, and truth values as they are
// read. `rule`: what a failure has broken. Unsupported where the plugin leaves a node.
Outcome run_small_graph(Kit& kit, const ir::Graph& graph, std::vector<Bytes> inputs,
                        std::string_view rule);

// The text of a graph whose inputs and output are vectors of `count` elements of these types, as
// "f16", and whose nodes are `body`, lines that make %result.
std::string vector_graph(std::int64_t count, const std::vector<std::string>& inputs,
                         const std::string& body, const std::vector<std::string>& results);

}  // namespace backplane::conformance
