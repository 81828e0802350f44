// Orthogonal polynomials in x of degree n >= 0, by recurrence; degrees below zero give zero.
#include <limits>

#include "kernels/pointwise.h"

namespace backplane::reference {
namespace {

// In the type that PyTorch computes in: where they overflow is part of the result.
// next(k, x, p(k), p(k - 1)) -> p(k + 1)
template <class T, class F>
T recur(T x, T degree, T first, F&& next) {
  const auto n = static_cast<std::int64_t>(degree);
  T previous = 1, current = first;
  if (n == 0) return 1;
  for (std::int64_t k = 1; k < n && !std::isnan(current); ++k) {
    const T following = next(static_cast<T>(k), x, current, previous);
    previous = current;
    current = following;
  }
  return current;
}
template <class T>
T chebyshev_step(T, T x, T p, T q) {
  return 2 * x * p - q;
}
template <class T>
bool is_even(T n) {
  return static_cast<std::int64_t>(n) % 2 == 0;
}

template <class T>
T chebyshev_t(T x, T n) {
  if (std::abs(x) == 1) return x > 0 || is_even(n) ? 1 : -1;
  if (n > 6 && std::abs(x) < 1) return std::cos(n * std::acos(x));
  return recur(x, n, x, chebyshev_step<T>);
}
template <class T>
T chebyshev_u(T x, T n) {
  if (std::abs(x) == 1) return x > 0 || is_even(n) ? n + 1 : -(n + 1);
  if (n > 8 && std::abs(x) < 1) return std::sin((n + 1) * std::acos(x)) / std::sin(std::acos(x));
  return recur(x, n, 2 * x, chebyshev_step<T>);
}
template <class T>
T chebyshev_v(T x, T n) {
  if (std::abs(x) == 1) return x > 0 ? 1 : is_even(n) ? 2 * n + 1 : -(2 * n + 1);
  if (n > 8 && std::abs(x) < 1)
    return std::cos((n + T(0.5)) * std::acos(x)) / std::cos(std::acos(x) / 2);
  return recur(x, n, 2 * x - 1, chebyshev_step<T>);
}
template <class T>
T chebyshev_w(T x, T n) {
  if (std::abs(x) == 1) return x > 0 ? 2 * n + 1 : is_even(n) ? 1 : -1;
  if (n > 8 && std::abs(x) < 1)
    return std::sin((n + T(0.5)) * std::acos(x)) / std::sin(std::acos(x) / 2);
  return recur(x, n, 2 * x + 1, chebyshev_step<T>);
}
template <class T>
T hermite_h(T x, T n) {
  return recur(x, n, 2 * x, [](T k, T t, T p, T q) { return 2 * t * p - 2 * k * q; });
}
template <class T>
T hermite_he(T x, T n) {
  return recur(x, n, x, [](T k, T t, T p, T q) { return t * p - k * q; });
}
template <class T>
T laguerre(T x, T n) {
  return recur(x, n, 1 - x,
               [](T k, T t, T p, T q) { return ((2 * k + 1 - t) * p - k * q) / (k + 1); });
}
template <class T>
T legendre(T x, T n) {
  return recur(x, n, x, [](T k, T t, T p, T q) { return ((2 * k + 1) * t * p - k * q) / (k + 1); });
}
// `degree` without its fraction. One that no integer can be (NaN, infinity) is as one below zero.
template <class T>
T evaluate(T (*polynomial)(T, T), T x, T degree) {
  constexpr auto kLimit = static_cast<T>(std::numeric_limits<std::int64_t>::max());
  return degree > -1 && degree < kLimit ? polynomial(x, std::trunc(degree)) : T(0);
}

// A shifted polynomial is that of 2x - 1.
template <double (*kDouble)(double, double), float (*kFloat)(float, float), bool kIsShifted>
constexpr PointwiseRow polynomial(std::string_view name) {
  return pointwise<2>(name, {"x", "n"}, {}, Compute::kResult,
                      [](auto& p, double x, double n) -> double {
                        const auto at = [](auto in) { return kIsShifted ? 2 * in - 1 : in; };
                        if (p.compute == Type::kF64) return evaluate(kDouble, at(x), n);
                        return evaluate(kFloat, at(static_cast<float>(x)), static_cast<float>(n));
                      });
}
#define BP_REFERENCE_POLYNOMIAL(name, function, is_shifted)                                        \
  polynomial<function<double>, function<float>, is_shifted>("aten.special_" name),                 \
      polynomial<function<double>, function<float>, is_shifted>("aten.special_" name ".n_scalar"), \
      polynomial<function<double>, function<float>, is_shifted>("aten.special_" name ".x_scalar")

constexpr PointwiseRow kRows[] = {
    BP_REFERENCE_POLYNOMIAL("chebyshev_polynomial_t", chebyshev_t, false),
    BP_REFERENCE_POLYNOMIAL("chebyshev_polynomial_u", chebyshev_u, false),
    BP_REFERENCE_POLYNOMIAL("chebyshev_polynomial_v", chebyshev_v, false),
    BP_REFERENCE_POLYNOMIAL("chebyshev_polynomial_w", chebyshev_w, false),
    BP_REFERENCE_POLYNOMIAL("shifted_chebyshev_polynomial_t", chebyshev_t, true),
    BP_REFERENCE_POLYNOMIAL("shifted_chebyshev_polynomial_u", chebyshev_u, true),
    BP_REFERENCE_POLYNOMIAL("shifted_chebyshev_polynomial_v", chebyshev_v, true),
    BP_REFERENCE_POLYNOMIAL("shifted_chebyshev_polynomial_w", chebyshev_w, true),
    BP_REFERENCE_POLYNOMIAL("hermite_polynomial_h", hermite_h, false),
    BP_REFERENCE_POLYNOMIAL("hermite_polynomial_he", hermite_he, false),
    BP_REFERENCE_POLYNOMIAL("laguerre_polynomial_l", laguerre, false),
    BP_REFERENCE_POLYNOMIAL("legendre_polynomial_p", legendre, false),
};
#undef BP_REFERENCE_POLYNOMIAL

}  // namespace

PointwiseRows polynomial_kernels() { return kRows; }

}  // namespace backplane::reference
