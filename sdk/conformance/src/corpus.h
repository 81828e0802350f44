// The graphs that cases are made of, each with what its inputs may be.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/ir/graph.h"

namespace backplane::conformance {

// Elements of one input.
struct Recipe {
  std::vector<std::int64_t> values;  // in row-major order; empty: by range
  double low = -1, high = 1;
};

struct CorpusGraph {
  std::string name;  // "abs/f32/0"
  std::vector<Recipe> recipes;
  // Values of the dim classes at which it is the graph of the program, beside the hints.
  std::vector<std::map<std::string, std::int64_t>> sizes;
  std::string text;

  Result<ir::Graph> graph() const;
};

// "case NAME", a line per input, lines of sizes, a graph, "end". Errors name the case.
Result<std::vector<CorpusGraph>> parse_corpus(std::string_view text);

}  // namespace backplane::conformance
