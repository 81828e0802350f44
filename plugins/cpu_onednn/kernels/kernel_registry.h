// Op name to kernel, for the ops that are neither pointwise nor products. Every family file lists
// its ops in one constant array.
#pragma once

#include "tensor.h"

#include <string_view>

namespace backplane::onednn {

using MadeKernel = sdk::Result<std::unique_ptr<sdk::Kernel>>;

struct KernelRow {
  std::string_view name;
  MadeKernel (*make)(const sdk::StepContext& context);
  // Null: everything that the common checks let through.
  std::optional<sdk::Refusal> (*refuse)(const sdk::NodeView& node) = nullptr;
};
const KernelRow* find_kernel(std::string_view op);

using KernelRows = std::span<const KernelRow>;
KernelRows attention_kernels();
KernelRows factory_kernels();
KernelRows indexing_kernels();
KernelRows scatter_kernels();
KernelRows movement_kernels();
KernelRows reduction_kernels();
KernelRows scan_kernels();
KernelRows pooling_kernels();
KernelRows channel_norm_kernels();
KernelRows loss_kernels();
KernelRows layer_norm_backward_kernels();
KernelRows channel_norm_backward_kernels();
KernelRows attention_backward_kernels();
KernelRows embedding_backward_kernels();
KernelRows convolution_backward_kernels();
KernelRows pooling_backward_kernels();
KernelRows nll_loss_kernels();
KernelRows resampling_kernels();
KernelRows resampling_backward_kernels();

inline std::optional<sdk::Refusal> refusal(bp_refusal reason, std::string_view text) {
  return sdk::Refusal{0, reason, std::string(text)};
}

// A kernel that is a function of the call; `body` must not throw.
template <class F>
class FunctionKernel : public sdk::Kernel {
 public:
  FunctionKernel(F body, std::uint64_t scratch) : body_(std::move(body)), scratch_(scratch) {}
  sdk::Status run(const sdk::KernelCall& call) const override {
    body_(call);
    return {};
  }
  std::uint64_t scratch_bytes() const override { return scratch_; }

 private:
  F body_;
  std::uint64_t scratch_;
};
template <class F>
MadeKernel make_kernel(F body, std::uint64_t scratch = 0) {
  return std::unique_ptr<sdk::Kernel>(
      std::make_unique<FunctionKernel<F>>(std::move(body), scratch));
}

}  // namespace backplane::onednn
