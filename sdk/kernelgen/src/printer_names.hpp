// Names of variables in printed kernels.
#pragma once

#include <backplane/kernelgen/kernel.hpp>

#include <string>

namespace backplane::kernelgen {

inline std::string number(std::int64_t v) { return std::to_string(v); }
inline std::string variable(const char* prefix, std::int64_t index) {
  return prefix + number(index);
}
inline std::string axis_name(std::size_t axis) {
  return variable("a", static_cast<std::int64_t>(axis));
}
inline bool is_wide_type(Type t) { return t == Type::kF64 || t == Type::kI64; }
inline bool is_position(Reduction how) {
  return how == Reduction::kArgMax || how == Reduction::kArgMin;
}
// What `bytes` are read and written as.
inline const char* word_type(std::int64_t bytes) {
  return bytes >= 16  ? "uint4"
         : bytes == 8 ? "uint2"
         : bytes == 4 ? "uint"
         : bytes == 2 ? "ushort"
                      : "uchar";
}
inline constexpr char kLaneDigits[] = "0123456789abcdef";

}  // namespace backplane::kernelgen
