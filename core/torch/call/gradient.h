// Forward and backward of a captured graph as one differentiable step of autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/partition/joint_cut.h"
#include "core/torch/record/recorder.h"

namespace backplane::call {

// Runs a graph: its inputs in, its outputs out. Called without the GIL; ATen's exceptions pass.
using GraphRunner =
    std::function<Result<std::vector<at::Tensor>>(std::span<const at::Tensor> inputs)>;

enum class GraphRole { kInference, kForward, kBackward };
// Compiles a graph for one role. `constants`: as record::Recorded::constants. Called with the GIL.
using MakeRunner = std::function<Result<GraphRunner>(
    const ir::Graph& graph, const std::vector<at::Tensor>& constants, GraphRole role)>;

// What both directions share; outlives every backward that waits for it.
class DifferentiableGraph {
 public:
  static Result<std::shared_ptr<const DifferentiableGraph>> make(const record::Recorded& recorded,
                                                                 const MakeRunner& make_runner);

  // The graph's forward outputs, with history where gradients flow through them.
  Result<std::vector<at::Tensor>> run(std::span<const at::Tensor> inputs,
                                      std::shared_ptr<const DifferentiableGraph> self) const;

 private:
  friend class GradientNode;

  struct OutputPlan {
    std::uint32_t graph_output = 0;
    std::uint32_t tangent = 0;    // position among the tangents
    bool differentiable = false;  // a tensor of its own that requires gradients
  };

  GraphRunner forward_, backward_;
  std::vector<partition::SavedValue> saved_;
  std::size_t forward_output_count_ = 0;  // without saved values
  std::size_t argument_count_ = 0;
  std::vector<at::Tensor> tangents_like_;  // meta tensors
  std::vector<OutputPlan> outputs_;
  std::vector<std::uint32_t> gradient_of_;  // by argument: position among the gradients, or kAbsent
  std::vector<bool> mutated_;               // by argument
};

}  // namespace backplane::call
