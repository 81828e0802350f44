#include "core/torch/device/layouts.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <utility>

namespace backplane::device {

namespace {

void refuse_sparse(const c10::OperatorHandle& op, torch::jit::Stack* /*stack*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.operator_name(),
      ": the torch device 'backplane' has no sparse tensors, and computes with none of the CPU's. "
      "Make it dense first (to_dense()), or keep what is computed with it on the CPU (cpu()). A "
      "layer with sparse=True has sparse gradients.");
}

void refuse_quantized(const c10::OperatorHandle& op, torch::jit::Stack* /*stack*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.operator_name(),
      ": the torch device 'backplane' has no quantized tensors. Move what dequantize() gives, or "
      "keep what is computed with it on the CPU (cpu()).");
}

void refuse_below(c10::DispatchKey key, torch::CppFunction refuse) {
  auto& library = *new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  library.fallback(std::move(refuse));
}

}  // namespace

void register_missing_layouts() {
  const auto sparse = [] { return torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>(); };
  refuse_below(c10::DispatchKey::SparsePrivateUse1, sparse());
  refuse_below(c10::DispatchKey::SparseCsrPrivateUse1, sparse());
  refuse_below(c10::DispatchKey::QuantizedPrivateUse1,
               torch::CppFunction::makeFromBoxedFunction<&refuse_quantized>());
}

}  // namespace backplane::device
