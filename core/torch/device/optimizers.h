// PyTorch's fused optimizer steps on the torch device.
#pragma once

#include <torch/library.h>

namespace backplane::device {

// Into a library for "aten" on PrivateUse1.
void register_optimizers(torch::Library& library);

}  // namespace backplane::device
