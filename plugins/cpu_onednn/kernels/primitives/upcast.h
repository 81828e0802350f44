// Kernels of bfloat16 where oneDNN has none: operands as float32, the float32 kernel, results
// rounded back.
#pragma once

#include <functional>

#include "tensor.h"

namespace backplane::onednn {

using Factory = std::function<sdk::Result<std::unique_ptr<sdk::Kernel>>(const sdk::StepContext&)>;

// `make` sees the step with float32 in the place of bfloat16.
sdk::Result<std::unique_ptr<sdk::Kernel>> make_upcast_kernel(const sdk::StepContext& context,
                                                             const Factory& make);

}  // namespace backplane::onednn
