// Several static graphs of one structure as one graph with dim classes.
//
// Numbers that are equal in all of them stay numbers. The others get classes: sizes of inputs are
// free, others are products or sums of known classes where all graphs agree, else free as well. A
// guess can be wrong for a size that was not among them; match() compares every number, so a wrong
// guess is found before that size is served.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/ir/dim_expression.h"
#include "core/ir/flat_graph.h"
#include "core/ir/graph.h"

namespace backplane::ir {

class GeneralGraph {
 public:
  // `graph` is the one of samples[0]; all have its structure. kUnsupported where a number varies in
  // a place that holds no class.
  static Result<GeneralGraph> build(const Graph& graph, std::span<const FlatGraph* const> samples);

  const Graph& graph() const { return graph_; }
  // The values of the classes without expression, in their order, at the sizes of `flat`, which has
  // the structure. kInvalidArgument, saying which number differs, where this graph does not say
  // what was recorded there.
  Result<std::vector<std::int64_t>> match(const FlatGraph& flat) const;

 private:
  Graph graph_;
  DimProgram program_;                // of the classes alone; its integers are the free ones
  std::vector<Dim> dims_;             // by number of the flat graph
  std::vector<std::size_t> sources_;  // by free class: a number that it is
};

}  // namespace backplane::ir
