// PyTorch's lists of what autocast does, for this device.
#include <ATen/Operators.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>

#include "core/torch/device/composites.h"

namespace backplane::device {

namespace {

// As PyTorch says it of its own accelerators: half precision has no room for logarithms near 0.
at::Tensor refuse_cross_entropy(const at::Tensor&, const at::Tensor&,
                                const std::optional<at::Tensor>&, std::int64_t) {
  C10_THROW_ERROR(
      Error,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
      "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
      "In this case, combine the two layers using "
      "torch.nn.functional.binary_cross_entropy_with_logits\n"
      "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
      "safe to autocast.");
}

}  // namespace

void register_autocast() {
  using namespace at;            // NOLINT(google-build-using-namespace): the macros name both
  using namespace at::autocast;  // NOLINT(google-build-using-namespace)
  static auto& all = *new torch::Library(torch::Library::IMPL, "_",
                                         c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  all.fallback(torch::CppFunction::makeFallthrough());
  static auto& m = *new torch::Library(torch::Library::IMPL, "aten",
                                       c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
#define BP_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define BP_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define BP_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define BP_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(BP_LOWER_PRECISION)
  AT_FORALL_FP32(BP_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(BP_FP32_SET_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(BP_PROMOTE)
  m.impl("binary_cross_entropy", TORCH_FN(refuse_cross_entropy));
#undef BP_LOWER_PRECISION
#undef BP_FP32
#undef BP_FP32_SET_OPT_DTYPE
#undef BP_PROMOTE
}

}  // namespace backplane::device
