// The node of a result that is computed from other results: a gradient between them, a hook on one
// and its `retain_grad` find what they find in eager mode.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>

#include "core/torch/autograd/joint_node.h"

namespace backplane::autograd {

// Its edges: its own input of the joint's node, then those of its sources. Where nobody asks for
// the gradient of a source, the joint's backward has it all, and nothing goes to them.
class ResultNode final : public torch::autograd::Node {
 public:
  // `result`: of the joint's signature; alive as long as the joint.
  ResultNode(std::shared_ptr<Joint> joint, const DerivedResult& result)
      : joint_(std::move(joint)), result_(result) {}

  std::string name() const override { return "BackplaneBackward"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& tangents) override;

 private:
  std::shared_ptr<Joint> joint_;
  const DerivedResult& result_;
};

}  // namespace backplane::autograd
