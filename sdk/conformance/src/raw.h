// The plugin as its table, without the host's runtime: what a host may do and a runtime never does.
#pragma once

#include <backplane/sdk/testing/library.hpp>

#include <memory>
#include <string>
#include <vector>

#include "core/runtime/plugin/graph_arrays.h"
#include "sdk/conformance/src/kit.h"
#include "sdk/conformance/src/oracle.h"

namespace backplane::conformance {

namespace testing = sdk::testing;

// A graph of the corpus in the plugin's terms, and what it should give.
struct RawProblem {
  ir::Graph graph;
  std::unique_ptr<runtime::GraphArrays> arrays;
  Sizes classes;
  std::vector<testing::HostTensor> inputs;
  Expected expected;

  // Tensors of the outputs, not filled.
  std::vector<testing::HostTensor> results() const;
  // Empty: right. Tensors in the order of the graph's outputs.
  std::string difference(const std::vector<testing::HostTensor>& results) const;
};
Result<std::unique_ptr<RawProblem>> raw_problem(Kit& kit, const CorpusGraph& source);

// The process's one session of the plugin.
testing::Session& session(Kit& kit);

// Fails as unsupported where the plugin leaves a node.
void require_claimed(testing::Session& s, const bp_graph& graph);

// Calls `body(problem, session)` where the session's plugin takes the whole graph.
Outcome with_problem(Kit& kit, const CorpusGraph& source, testing::Session& s,
                     const std::function<Outcome(RawProblem&, testing::Session&)>& body);

// Arguments of a compilation with strides as the graph says; `requests` outlives them.
bp_compile_args compile_args(testing::Session& s, const bp_graph& graph,
                             std::vector<bp_io_request>& requests);

// Memory of one call on the device, inputs filled; released with the session.
struct Bound {
  std::vector<bp_range> inputs, outputs;
};
Bound bind(testing::Session& s, RawProblem& problem);
// The same as arguments of execute, workspace included.
struct BoundCall {
  std::vector<bp_binding> bindings;
  bp_execute_args args;
};
BoundCall bound_call(testing::Session& s, bp_executable* executable, const Bound& bound);

// `count` graphs of the corpus' plain ones, from all over it.
std::vector<const CorpusGraph*> some_graphs(const Corpus& corpus, std::size_t count);

// What `body` throws as an outcome: an unclaimed graph is unsupported, all else fails.
Outcome guarded(const std::function<Outcome()>& body);
void add_guarded(std::vector<Case>& out, std::string id, int level, Door door,
                 std::function<Outcome(Kit&)> run);

// How many entries a folder of /proc has.
std::size_t entries_of(const char* folder);

}  // namespace backplane::conformance
