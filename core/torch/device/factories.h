// Kernels that make tensors, change their storage or look at them in another way.
#pragma once

#include <torch/library.h>

namespace backplane::device {

void register_memory_kernels(torch::Library& library);

}  // namespace backplane::device
