#include "kernels/registry.h"
namespace backplane::opencl {
std::span<const KernelRow> pooling_kernels() { return {}; }
}  // namespace backplane::opencl
