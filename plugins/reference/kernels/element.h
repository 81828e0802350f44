// Element types and the conversion of rows between memory and the three compute domains:
// double, int64_t and std::complex<double>.
#pragma once

#include <backplane/base.h>

#include <complex>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace backplane::reference {

using Complex = std::complex<double>;

enum class Type : std::uint8_t {
  kNone,
  kBool,
  kU8,
  kI8,
  kI16,
  kI32,
  kI64,
  kU16,
  kU32,
  kU64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kC64,
  kC128
};

Type type_of(bp_dtype dtype);
std::int64_t bytes_of(Type type);

inline bool is_complex(Type t) { return t == Type::kC64 || t == Type::kC128; }
inline bool is_float(Type t) { return t >= Type::kF16 && t <= Type::kF64; }
inline bool is_integral(Type t) { return t >= Type::kBool && t <= Type::kU64; }  // bool too
int bits_of_integer(Type type);

// PyTorch's promotion of two element types.
Type promote(Type a, Type b);

// The value of `v` after a round trip through `type`; the identity for integers.
double round_to(Type type, double v);

// n elements from `from`, `stride` elements apart, to a dense row; and back.
template <class T>
void load_row(Type type, const std::byte* from, std::int64_t stride, std::int64_t n, T* to);
template <class T>
void store_row(Type type, std::byte* to, std::int64_t stride, std::int64_t n, const T* from);

#define BP_REFERENCE_ROWS(T)                                                                \
  extern template void load_row<T>(Type, const std::byte*, std::int64_t, std::int64_t, T*); \
  extern template void store_row<T>(Type, std::byte*, std::int64_t, std::int64_t, const T*);
BP_REFERENCE_ROWS(double)
BP_REFERENCE_ROWS(std::int64_t)
BP_REFERENCE_ROWS(Complex)
#undef BP_REFERENCE_ROWS

// Out of range and NaN become the most negative number, as the processor's own conversion does.
inline std::int64_t to_integer(double v) {
  if (v >= -9223372036854775808.0 && v < 9223372036854775808.0) return static_cast<std::int64_t>(v);
  return INT64_MIN;
}

// The same for an element of 32 bits and fewer, which the processor makes from one of 32.
template <class M>
M to_element(double v) {
  if constexpr (sizeof(M) < sizeof(std::int32_t) || std::is_same_v<M, std::int32_t>)
    return static_cast<M>(v > -2147483649.0 && v < 2147483648.0 ? static_cast<std::int32_t>(v)
                                                                : INT32_MIN);
  else
    return static_cast<M>(to_integer(v));
}

}  // namespace backplane::reference
