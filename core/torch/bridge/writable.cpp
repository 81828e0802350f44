#include "core/torch/bridge/writable.h"

#include <torch/csrc/autograd/VariableTypeUtils.h>

namespace backplane::bridge {

bool is_writable_by_autograd(const at::Tensor& tensor) {
  using torch::autograd::can_mutate_inplace_result;
  return torch::autograd::can_mutate_inplace(tensor, /*requires_grad=*/true) ==
         can_mutate_inplace_result::success;
}

}  // namespace backplane::bridge
