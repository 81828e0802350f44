// Forward-mode AD hangs its tangents on tensors, where neither sizes nor dispatch keys show them.
#pragma once

#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/variable.h>

namespace backplane::bridge {

inline bool has_tangent(const torch::autograd::AutogradMeta& meta) {
  return meta.fw_grad_ && !meta.fw_grad_->empty();
}

// As PyTorch has it, but without a call for each tensor that has none.
inline bool has_tangent(const c10::TensorImpl& tensor) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(tensor.autograd_meta());
  return meta && has_tangent(*meta);
}

}  // namespace backplane::bridge
