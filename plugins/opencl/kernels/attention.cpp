#include "kernels/registry.h"
namespace backplane::opencl {
std::span<const KernelRow> attention_kernels() { return {}; }
}  // namespace backplane::opencl
