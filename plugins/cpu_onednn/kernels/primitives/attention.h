// Scaled dot product attention: softmax(q k^T * scale + mask) v, block by block, never the whole
// score matrix; and its gradient, which recomputes the scores from the log-sum-exp.
#pragma once

#include "tensor.h"

namespace backplane::onednn {

sdk::Result<std::unique_ptr<sdk::Kernel>> make_attention_kernel(const sdk::StepContext& context);
sdk::Result<std::unique_ptr<sdk::Kernel>> make_attention_backward_kernel(
    const sdk::StepContext& context);
// float32 or bfloat16, no dropout.
std::optional<sdk::Refusal> refuse_attention(const sdk::NodeView& node);

}  // namespace backplane::onednn
