#include "kernels/element.h"

#include <bit>
#include <cstring>
#include <limits>

namespace backplane::reference {

Type type_of(bp_dtype dtype) {
  if (dtype.lanes != 1) return Type::kNone;
  switch (dtype.code) {
    case BP_DTYPE_BOOL:
      return dtype.bits == 8 ? Type::kBool : Type::kNone;
    case BP_DTYPE_INT:
      switch (dtype.bits) {
        case 8:
          return Type::kI8;
        case 16:
          return Type::kI16;
        case 32:
          return Type::kI32;
        case 64:
          return Type::kI64;
        default:
          return Type::kNone;
      }
    case BP_DTYPE_UINT:
      switch (dtype.bits) {
        case 8:
          return Type::kU8;
        case 16:
          return Type::kU16;
        case 32:
          return Type::kU32;
        case 64:
          return Type::kU64;
        default:
          return Type::kNone;
      }
    case BP_DTYPE_FLOAT:
      switch (dtype.bits) {
        case 16:
          return Type::kF16;
        case 32:
          return Type::kF32;
        case 64:
          return Type::kF64;
        default:
          return Type::kNone;
      }
    case BP_DTYPE_BFLOAT:
      return dtype.bits == 16 ? Type::kBF16 : Type::kNone;
    case BP_DTYPE_COMPLEX:
      return dtype.bits == 64 ? Type::kC64 : dtype.bits == 128 ? Type::kC128 : Type::kNone;
    default:
      return Type::kNone;
  }
}

std::int64_t bytes_of(Type type) {
  switch (type) {
    case Type::kNone:
      return 0;
    case Type::kBool:
    case Type::kU8:
    case Type::kI8:
      return 1;
    case Type::kI16:
    case Type::kU16:
    case Type::kF16:
    case Type::kBF16:
      return 2;
    case Type::kI32:
    case Type::kU32:
    case Type::kF32:
      return 4;
    case Type::kI64:
    case Type::kU64:
    case Type::kF64:
    case Type::kC64:
      return 8;
    case Type::kC128:
      return 16;
  }
  return 0;
}

int bits_of_integer(Type type) { return static_cast<int>(bytes_of(type)) * 8; }

Type promote(Type a, Type b) {
  if (a == b || b == Type::kNone) return a;
  if (a == Type::kNone) return b;
  if (is_complex(a) || is_complex(b)) {
    const bool wide = a == Type::kC128 || b == Type::kC128 || a == Type::kF64 || b == Type::kF64;
    return wide ? Type::kC128 : Type::kC64;
  }
  if (is_float(a) || is_float(b)) {
    if (!is_float(a)) return b;
    if (!is_float(b)) return a;
    if (a == Type::kF64 || b == Type::kF64) return Type::kF64;
    return Type::kF32;  // f32 with a half, or the two halves with each other
  }
  if (a == Type::kBool) return b;
  if (b == Type::kBool) return a;
  const auto is_unsigned = [](Type t) {
    return t == Type::kU8 || t == Type::kU16 || t == Type::kU32 || t == Type::kU64;
  };
  const std::int64_t wide = bytes_of(a) > bytes_of(b) ? bytes_of(a) : bytes_of(b);
  if (is_unsigned(a) && is_unsigned(b)) return bytes_of(a) == wide ? a : b;
  if (!is_unsigned(a) && !is_unsigned(b)) return bytes_of(a) == wide ? a : b;
  const Type of_unsigned = is_unsigned(a) ? a : b, of_signed = is_unsigned(a) ? b : a;
  if (bytes_of(of_signed) > bytes_of(of_unsigned)) return of_signed;
  switch (bytes_of(of_unsigned)) {
    case 1:
      return Type::kI16;
    case 2:
      return Type::kI32;
    default:
      return Type::kI64;
  }
}

namespace {

// To nearest even; of float32, by way of which PyTorch makes 16 bits of all wider numbers.
template <int kMantissa, int kExponent>
std::uint16_t narrow(float v) {
  constexpr std::int64_t kBias = (1 << (kExponent - 1)) - 1;
  const auto bits = std::bit_cast<std::uint64_t>(static_cast<double>(v));
  const auto sign = static_cast<std::uint16_t>((bits >> 63) << 15);
  const auto exponent = static_cast<std::int64_t>((bits >> 52) & 0x7ff);
  const std::uint64_t mantissa = bits & ((std::uint64_t{1} << 52) - 1);
  constexpr std::uint64_t kInfinity = ((std::uint64_t{1} << kExponent) - 1) << kMantissa;
  if (exponent == 0x7ff) {
    const std::uint64_t quiet = mantissa ? std::uint64_t{1} << (kMantissa - 1) : 0;
    return static_cast<std::uint16_t>(sign | kInfinity | quiet);
  }
  const std::int64_t e = exponent - 1023;
  if (e > kBias) return static_cast<std::uint16_t>(sign | kInfinity);
  std::uint64_t whole = mantissa, base = 0;
  std::int64_t shift = 52 - kMantissa;
  if (e >= 1 - kBias) {
    base = static_cast<std::uint64_t>(e + kBias) << kMantissa;
  } else {
    if (exponent == 0) return sign;
    whole |= std::uint64_t{1} << 52;
    shift += 1 - kBias - e;
    if (shift > 62) return sign;
  }
  std::uint64_t kept = whole >> shift;
  const std::uint64_t rest = whole & ((std::uint64_t{1} << shift) - 1);
  const std::uint64_t half = std::uint64_t{1} << (shift - 1);
  if (rest > half || (rest == half && (kept & 1))) ++kept;
  return static_cast<std::uint16_t>(sign | (base + kept));
}

double from_half(std::uint16_t h) {
  const std::uint64_t sign = static_cast<std::uint64_t>(h >> 15) << 63;
  const std::uint64_t exponent = (h >> 10) & 0x1f, mantissa = h & 0x3ff;
  if (exponent == 0) {
    const double small = static_cast<double>(mantissa) * 0x1p-24;
    return sign ? -small : small;
  }
  const std::uint64_t wide = exponent == 0x1f ? 0x7ff : exponent - 15 + 1023;
  return std::bit_cast<double>(sign | (wide << 52) | (mantissa << 42));
}
double from_bfloat(std::uint16_t h) {
  return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(h) << 16));
}

struct Half {
  std::uint16_t bits;
};
struct BFloat {
  std::uint16_t bits;
};
struct Bool {
  std::uint8_t byte;
};

template <class T, class M>
T widen(M m) {
  if constexpr (std::is_same_v<M, Half>) {
    return widen<T>(from_half(m.bits));
  } else if constexpr (std::is_same_v<M, BFloat>) {
    return widen<T>(from_bfloat(m.bits));
  } else if constexpr (std::is_same_v<M, Bool>) {
    return static_cast<T>(m.byte != 0 ? 1.0 : 0.0);
  } else if constexpr (std::is_same_v<M, std::complex<float>> || std::is_same_v<M, Complex>) {
    if constexpr (std::is_same_v<T, Complex>)
      return {m.real(), m.imag()};
    else
      return widen<T>(m.real());
  } else if constexpr (std::is_same_v<T, std::int64_t> && std::is_floating_point_v<M>) {
    return to_integer(static_cast<double>(m));
  } else if constexpr (std::is_same_v<T, Complex>) {
    return {static_cast<double>(m), 0.0};
  } else {
    return static_cast<T>(m);
  }
}

template <class M, class T>
M shrink(T v) {
  if constexpr (std::is_same_v<M, std::complex<float>> || std::is_same_v<M, Complex>) {
    using R = typename M::value_type;
    if constexpr (std::is_same_v<T, Complex>)
      return {static_cast<R>(v.real()), static_cast<R>(v.imag())};
    else
      return {static_cast<R>(v), R{0}};
  } else if constexpr (std::is_same_v<M, Bool>) {
    return {static_cast<std::uint8_t>(v != T{} ? 1 : 0)};
  } else if constexpr (std::is_same_v<T, Complex>) {
    return shrink<M>(v.real());
  } else if constexpr (std::is_same_v<M, Half>) {
    return {narrow<10, 5>(static_cast<float>(v))};
  } else if constexpr (std::is_same_v<M, BFloat>) {
    return {narrow<7, 8>(static_cast<float>(v))};
  } else if constexpr (std::is_integral_v<M> && std::is_same_v<T, double>) {
    if constexpr (std::is_same_v<M, std::uint64_t>)
      if (v >= 9223372036854775808.0 && v < 18446744073709551616.0)
        return static_cast<std::uint64_t>(v);
    return to_element<M>(v);
  } else {
    return static_cast<M>(v);
  }
}

template <class M, class T>
void load_as(const std::byte* from, std::int64_t stride, std::int64_t n, T* to) {
  const M* p = reinterpret_cast<const M*>(from);
  if (stride == 1) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = widen<T>(p[i]);
  } else if (stride == 0) {
    if (n > 0) {
      const T v = widen<T>(p[0]);
      for (std::int64_t i = 0; i < n; ++i) to[i] = v;
    }
  } else {
    for (std::int64_t i = 0; i < n; ++i) to[i] = widen<T>(p[i * stride]);
  }
}
template <class M, class T>
void store_as(std::byte* to, std::int64_t stride, std::int64_t n, const T* from) {
  M* p = reinterpret_cast<M*>(to);
  if (stride == 1) {
    for (std::int64_t i = 0; i < n; ++i) p[i] = shrink<M>(from[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) p[i * stride] = shrink<M>(from[i]);
  }
}

template <class F>
void with_memory_type(Type type, F&& f) {
  switch (type) {
    case Type::kNone:
      return;
    case Type::kBool:
      return f(Bool{});
    case Type::kU8:
      return f(std::uint8_t{});
    case Type::kI8:
      return f(std::int8_t{});
    case Type::kI16:
      return f(std::int16_t{});
    case Type::kI32:
      return f(std::int32_t{});
    case Type::kI64:
      return f(std::int64_t{});
    case Type::kU16:
      return f(std::uint16_t{});
    case Type::kU32:
      return f(std::uint32_t{});
    case Type::kU64:
      return f(std::uint64_t{});
    case Type::kF16:
      return f(Half{});
    case Type::kBF16:
      return f(BFloat{});
    case Type::kF32:
      return f(float{});
    case Type::kF64:
      return f(double{});
    case Type::kC64:
      return f(std::complex<float>{});
    case Type::kC128:
      return f(Complex{});
  }
}

}  // namespace

template <class T>
void load_row(Type type, const std::byte* from, std::int64_t stride, std::int64_t n, T* to) {
  with_memory_type(type, [&]<class M>(M) { load_as<M>(from, stride, n, to); });
}
template <class T>
void store_row(Type type, std::byte* to, std::int64_t stride, std::int64_t n, const T* from) {
  with_memory_type(type, [&]<class M>(M) { store_as<M>(to, stride, n, from); });
}
#define BP_REFERENCE_ROWS(T)                                                         \
  template void load_row<T>(Type, const std::byte*, std::int64_t, std::int64_t, T*); \
  template void store_row<T>(Type, std::byte*, std::int64_t, std::int64_t, const T*);
BP_REFERENCE_ROWS(double)
BP_REFERENCE_ROWS(std::int64_t)
BP_REFERENCE_ROWS(Complex)
#undef BP_REFERENCE_ROWS

double round_to(Type type, double v) {
  switch (type) {
    case Type::kF32:
    case Type::kC64:
      return static_cast<double>(static_cast<float>(v));
    case Type::kF16:
      return from_half(narrow<10, 5>(static_cast<float>(v)));
    case Type::kBF16:
      return from_bfloat(narrow<7, 8>(static_cast<float>(v)));
    default:
      return v;
  }
}

}  // namespace backplane::reference
