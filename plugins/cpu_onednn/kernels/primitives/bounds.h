// relu, relu6 and hardtanh at the end of a product's group. oneDNN's take NaN for the lower bound,
// so they are no post-ops: they run on the result where it lies, in the kernel of the product.
#pragma once

#include <optional>

#include "kernels/primitives/dnnl_support.h"

namespace backplane::onednn {

struct Bounds {
  float low, high;
};
// Nothing where the node is none of these, or keeps nothing between its bounds.
std::optional<Bounds> bounds_of(const sdk::NodeView& node);

// Of a step whose last node has bounds; else it does nothing.
class ResultBounds {
 public:
  ResultBounds() = default;
  explicit ResultBounds(const sdk::StepContext& context);
  void run(std::byte* result) const;

 private:
  template <class Element>
  void run_as(Element* result) const;

  std::optional<Bounds> bounds_;
  bool is_bfloat16_ = false;
  Walk walk_{{}, {}};  // of the result, in the order of its memory
};

}  // namespace backplane::onednn
