// For kernels whose text is written by hand.
#pragma once

#include <backplane/kernelgen/kernel.hpp>

#include <cstdint>
#include <string>

namespace backplane::kernels {

constexpr std::int64_t kLanes = 16;  // of a vector, on CPUs

inline std::string number(std::int64_t v) { return std::to_string(v); }
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The first lines of a kernel that reads two tensors, base_a and base_b with their offsets in
// bytes, beside those of what follows the product.
inline std::string open_kernel(const kernelgen::Kernel& epilogue) {
  return "BP_KERNEL BP_ENTRY(BP_ITEM " + kernelgen::print_parameters(epilogue) +
         ", BP_GLOBAL uchar* base_a, ulong offset_a, BP_GLOBAL uchar* base_b, ulong offset_b) {\n  "
         "BP_BEGIN\n" +
         kernelgen::print_declarations(epilogue);
}

// A vector of `lanes` floats, the `index`th behind `pointer` to global memory.
inline std::string load_vector(std::int64_t lanes, const std::string& index,
                               const std::string& pointer) {
  return (lanes == 16 ? "BP_LOAD_F32_16(" : "vload" + number(lanes) + "(") + index + ", " +
         pointer + ")";
}

// Stores `x`, a vector of results of which the first is at `column`: whole, or lane by lane where
// the row of `columns` ends before it.
inline std::string store_vector(const kernelgen::Fragment& store, const std::string& column,
                                std::int64_t columns, std::int64_t lanes) {
  const std::string n = number(lanes), end = number(columns);
  return "  if (" + column + " + " + n + " <= " + end + ") {\n  const float" + n + " x0 = x;\n" +
         store.wide + "  } else {\n  float lane[" + n + "];\n  vstore" + n +
         "(x, 0, lane);\n  for (int l = 0; " + column + " < " + end + "; ++l, ++" + column +
         ") {\n  const float x0 = lane[l];\n" + store.narrow + "  }\n  }\n";
}

}  // namespace backplane::kernels
