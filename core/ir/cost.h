// Device-independent work of a node at the classes' hints.
#pragma once

#include "core/ir/graph.h"

namespace backplane::ir {

struct Work {
  double flops = 0;
  std::int64_t read_bytes = 0;     // operands, each once
  std::int64_t written_bytes = 0;  // results; 0 for views
};
Work node_work(const Graph& graph, NodeId node);

}  // namespace backplane::ir
