// Eager operators on the device: each is recorded as a graph of one operator, compiled by the
// device's plugin and kept; what the plugin does not take runs on the CPU.
#pragma once

#include <torch/library.h>

namespace backplane::device {

// Gives every operator that the CPU has a kernel for, and the device none, one of ours: else those
// would reach the device in pieces. Operators that return views are left out.
void register_eager_kernels(torch::Library& library);

}  // namespace backplane::device
