#pragma once

#include <ATen/core/Tensor.h>

namespace backplane::bridge {

// From now on the hooks that a leaf has are not called by a backward that has no gradient for it.
// With or without the GIL.
void spare_hooks(const at::Tensor& leaf);

}  // namespace backplane::bridge
