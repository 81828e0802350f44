// What results should be: the independent plugin `reference` in the graph's own types and in double
// precision, and how far from it a result may be.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sdk/conformance/src/graph_run.h"

namespace backplane::conformance {

// The graph with every float as float64; null where that means something else, as where bits of a
// float are read as an integer.
std::optional<ir::Graph> widened(const ir::Graph& graph);

struct Expected {
  std::vector<Bytes> results;               // dense, by output
  std::optional<std::vector<Bytes>> exact;  // in the widened types
  std::vector<ir::DType> exact_types;
};

// An error means that the case says nothing: the oracle does not take the graph.
Result<Expected> expect(const ir::Graph& graph, runtime::Device& oracle, const Sizes& classes,
                        std::vector<Bytes>& inputs);

// Whether a wrong result could be told from it: not where all is NaN or there is no element.
bool says_something(const ir::Graph& graph, const Expected& expected);

struct Judgement {
  std::string wrong;          // what differs first, empty: nothing
  double share_of_bound = 0;  // of the worst element; above 1: wrong
};
struct Strictness {
  bool exact = false;  // where single precision has the exact result, that and no other
  // So many units in the last place instead of the bound for whole graphs.
  double units = 0;
};
// Of the outputs of `graph`.
Judgement judge(const ir::Graph& graph, const Expected& expected, const std::vector<Bytes>& actual,
                const Strictness& strictness);

// Whether the graph's operators are exact on small whole numbers.
bool is_exact_on_integers(const ir::Graph& graph);

}  // namespace backplane::conformance
