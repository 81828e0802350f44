// Pointwise ops: a function per compute domain, applied to rows of the broadcast operands.
#pragma once

#include <array>
#include <cmath>
#include <string_view>

#include "kernel_registry.h"

namespace backplane::reference {

// Attributes of the op, in the order of its row. A string is coded: see text_code.
template <class T>
struct Params {
  std::array<T, 6> value{};
  std::array<bool, 6> has{};
  int bits = 64;  // of the compute type, when it is an integer
  Type compute = Type::kF64;
  T operator[](std::size_t i) const { return value[i]; }
};

template <class T>
using RowFunction = void (*)(const Params<T>&, const T* const* in, T* out, std::int64_t n);

enum class Compute : std::uint8_t {
  kResult,    // in the result's type
  kOperands,  // in the promoted type of the operands: comparisons, tests, reals of complex
};

struct Param {
  std::string_view name;
  double fallback = 0;
};

struct PointwiseRow {
  std::string_view name;
  // An argument that is no operand of the node is a number: read from the attribute of its name.
  std::array<std::string_view, 5> arguments{};
  std::array<Param, 6> params{};
  Compute compute = Compute::kResult;
  RowFunction<double> real = nullptr;
  RowFunction<std::int64_t> integer = nullptr;  // null: computed as double
  RowFunction<Complex> complex = nullptr;       // null: refused
};

void run_pointwise(const Frame& frame);

// F is a captureless lambda of (params, a [, b [, c [, d]]]).
template <class T, int kArity, class F>
void apply_row(const Params<T>& p, const T* const* in, T* out, std::int64_t n) {
  const F f{};
  for (std::int64_t i = 0; i < n; ++i) {
    if constexpr (kArity == 1)
      out[i] = static_cast<T>(f(p, in[0][i]));
    else if constexpr (kArity == 2)
      out[i] = static_cast<T>(f(p, in[0][i], in[1][i]));
    else if constexpr (kArity == 3)
      out[i] = static_cast<T>(f(p, in[0][i], in[1][i], in[2][i]));
    else
      out[i] = static_cast<T>(f(p, in[0][i], in[1][i], in[2][i], in[3][i]));
  }
}

struct None {};
template <class T, int kArity, class F>
constexpr RowFunction<T> row_function(F) {
  if constexpr (std::is_same_v<F, None>)
    return nullptr;
  else
    return &apply_row<T, kArity, F>;
}

using Names = std::array<std::string_view, 5>;
using ParamList = std::array<Param, 6>;

template <int kArity, class R, class I = None, class C = None>
constexpr PointwiseRow pointwise(std::string_view name, Names arguments, ParamList params,
                                 Compute compute, R real, I integer = {}, C complex = {}) {
  return {name,
          arguments,
          params,
          compute,
          row_function<double, kArity>(real),
          row_function<std::int64_t, kArity>(integer),
          row_function<Complex, kArity>(complex)};
}
// One argument "self", computed in the result's type.
template <class R, class I = None, class C = None>
constexpr PointwiseRow unary(std::string_view name, R real, I integer = {}, C complex = {}) {
  return pointwise<1>(name, {"self"}, {}, Compute::kResult, real, integer, complex);
}
template <class R, class I = None, class C = None>
constexpr PointwiseRow binary(std::string_view name, R real, I integer = {}, C complex = {}) {
  return pointwise<2>(name, {"self", "other"}, {}, Compute::kResult, real, integer, complex);
}

// For functions that jump: the value as the framework's own intermediate type has it.
inline double as_computed(Type type, double v) {
  return round_to(type == Type::kF64 ? type : Type::kF32, v);
}

// Arithmetic that wraps for integers.
inline double add(double a, double b) { return a + b; }
inline Complex add(Complex a, Complex b) { return a + b; }
inline std::int64_t add(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
inline double sub(double a, double b) { return a - b; }
inline Complex sub(Complex a, Complex b) { return a - b; }
inline std::int64_t sub(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}
inline double mul(double a, double b) { return a * b; }
// As PyTorch's: C's own puts infinities where both parts are NaN.
inline Complex mul(Complex a, Complex b) {
  return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
}
inline std::int64_t mul(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}
inline double divide(double a, double b) { return a / b; }
inline Complex divide(Complex a, Complex b) { return a / b; }
inline std::int64_t divide(std::int64_t a, std::int64_t b) {
  if (b == 0) throw KernelError("ZeroDivisionError: integer division by zero");
  return b == -1 ? sub(std::int64_t{0}, a) : a / b;
}

}  // namespace backplane::reference
