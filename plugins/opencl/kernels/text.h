// For kernels whose text is written by hand.
#pragma once

#include <backplane/kernelgen/kernel.hpp>

#include <cstdint>
#include <string>

namespace backplane::opencl {

constexpr std::int64_t kLanes = 16;  // of a vector, on CPUs

inline std::string number(std::int64_t v) { return std::to_string(v); }
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The first lines of a kernel that reads two tensors, base_a and base_b with their offsets in
// bytes, beside those of what follows the product.
inline std::string open_kernel(const kernelgen::Kernel& epilogue) {
  return "BP_KERNEL BP_ENTRY(" + kernelgen::print_parameters(epilogue) +
         ", BP_GLOBAL uchar* base_a, ulong offset_a, BP_GLOBAL uchar* base_b, ulong offset_b) {\n" +
         kernelgen::print_declarations(epilogue);
}

}  // namespace backplane::opencl
