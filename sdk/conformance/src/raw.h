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

  // Empty: right. Tensors in the order of the graph's outputs.
  std::string difference(const std::vector<testing::HostTensor>& results) const;
};
Result<std::unique_ptr<RawProblem>> raw_problem(Kit& kit, const CorpusGraph& source);

// `count` of the corpus' first float32 graphs that compute something, from all over it.
std::vector<const CorpusGraph*> some_graphs(const Corpus& corpus, std::size_t count);

// The process's one session of the plugin.
testing::Session& session(Kit& kit);

// What `body` throws as an outcome: an unclaimed graph is unsupported, all else fails.
Outcome guarded(const std::function<Outcome()>& body);

}  // namespace backplane::conformance
