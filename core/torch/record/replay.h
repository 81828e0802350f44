// A recorded graph run by ATen, node by node: the oracle that a recording is held against.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/ir/graph.h"

namespace backplane::record {

struct Replayed {
  std::vector<at::Tensor> outputs;  // of the graph
  // Nodes, as the printer writes them, whose result had another dtype or shape than recorded.
  std::vector<std::string> differences;
  // Nodes whose result had other strides: PyTorch's shape functions do not know those of every
  // kernel. It was laid out as recorded, which the runtime does too.
  std::vector<std::string> restrided;
};

// `constants`: by value of the graph, as Lowered::constants. `inputs` are laid out as recorded
// where their strides are others. ATen's own exceptions pass.
Result<Replayed> replay(const ir::Graph& graph, std::span<const at::Tensor> constants,
                        std::span<const at::Tensor> inputs);

}  // namespace backplane::record
