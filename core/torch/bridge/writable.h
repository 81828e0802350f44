// Which tensors autograd lets a program write.
#pragma once

#include <ATen/core/Tensor.h>

namespace backplane::bridge {

// False for a leaf that requires gradients, a view of one, and a view whose history no write can
// join (one of several that an operator gave, or one made without gradients): PyTorch raises there,
// or warns. In the current grad mode.
bool is_writable_by_autograd(const at::Tensor& tensor);

}  // namespace backplane::bridge
