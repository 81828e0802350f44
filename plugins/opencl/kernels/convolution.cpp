#include "kernels/registry.h"
namespace backplane::opencl {
std::span<const KernelRow> convolution_kernels() { return {}; }
}  // namespace backplane::opencl
