// Convolutions through oneDNN, with batch norm, bias, activation and residual in the store.
#pragma once

#include "kernels/primitives/dnnl_support.h"
#include "packing.h"

namespace backplane::onednn {

bool is_convolution_op(std::string_view op);
std::optional<sdk::Refusal> refuse_convolution(const sdk::NodeView& node);

// Whether the node is an inference batch norm of `chained`, which only it reads.
bool is_foldable_norm(const sdk::NodeView& node, std::uint32_t chained);

// Whether `pad` puts zeros around the spatial dims, which `node` can do itself.
bool is_input_padding(const sdk::NodeView& pad, const sdk::NodeView& node);

// The step's nodes are the convolution, perhaps its padding, perhaps a batch norm, then post-ops.
// `packed` is the value of the weight where it is packed.
sdk::Result<std::unique_ptr<sdk::Kernel>> make_convolution_kernel(const sdk::StepContext& context,
                                                                  std::uint32_t packed);

// The layout the weight should have, at the hints; 0: as it is.
std::uint64_t choose_convolution_layout(const sdk::NodeView& node);

// Strides of a dense tensor whose channels (dim 1) vary fastest.
Shape channels_last(const Shape& dims);

}  // namespace backplane::onednn
