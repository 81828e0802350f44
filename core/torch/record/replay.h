// A recorded graph run by ATen, node by node: the oracle that a recording is held against.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/torch/record/recorder.h"

namespace backplane::record {

struct Replayed {
  std::vector<at::Tensor> outputs;  // of the graph
  // Nodes whose result had another dtype, shape or strides than recorded, as the printer writes
  // them.
  std::vector<std::string> differences;
};

// `inputs`: the graph's, arguments first, then tangents. ATen's own exceptions pass.
Result<Replayed> replay(const Recorded& recorded, std::span<const at::Tensor> inputs);

}  // namespace backplane::record
