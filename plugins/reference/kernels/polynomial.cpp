// Orthogonal polynomials in x of degree n, by recurrence; degrees below zero give zero.
#include "kernels/pointwise.h"

namespace backplane::reference {
namespace {

// next(k, x, p(k), p(k - 1)) -> p(k + 1)
template <class F>
double recur(double x, double degree, double first, F&& next) {
  const auto n = static_cast<std::int64_t>(degree);
  if (n < 0) return 0;
  double previous = 1, current = first;
  if (n == 0) return 1;
  for (std::int64_t k = 1; k < n && !std::isnan(current); ++k) {
    const double following = next(static_cast<double>(k), x, current, previous);
    previous = current;
    current = following;
  }
  return current;
}
double chebyshev_step(double, double x, double p, double q) { return 2 * x * p - q; }
bool is_even(double n) { return static_cast<std::int64_t>(n) % 2 == 0; }

double chebyshev_t(double x, double n) {
  n = std::trunc(n);
  if (n < 0) return 0;
  if (std::abs(x) == 1) return x > 0 || is_even(n) ? 1 : -1;
  if (n > 6 && std::abs(x) < 1) return std::cos(n * std::acos(x));
  return recur(x, n, x, chebyshev_step);
}
double chebyshev_u(double x, double n) {
  n = std::trunc(n);
  if (n < 0) return 0;
  if (std::abs(x) == 1) return x > 0 || is_even(n) ? n + 1 : -(n + 1);
  if (n > 8 && std::abs(x) < 1) return std::sin((n + 1) * std::acos(x)) / std::sin(std::acos(x));
  return recur(x, n, 2 * x, chebyshev_step);
}
double chebyshev_v(double x, double n) {
  n = std::trunc(n);
  if (n < 0) return 0;
  if (std::abs(x) == 1) return x > 0 ? 1 : is_even(n) ? 2 * n + 1 : -(2 * n + 1);
  if (n > 8 && std::abs(x) < 1)
    return std::cos((n + 0.5) * std::acos(x)) / std::cos(std::acos(x) / 2);
  return recur(x, n, 2 * x - 1, chebyshev_step);
}
double chebyshev_w(double x, double n) {
  n = std::trunc(n);
  if (n < 0) return 0;
  if (std::abs(x) == 1) return x > 0 ? 2 * n + 1 : is_even(n) ? 1 : -1;
  if (n > 8 && std::abs(x) < 1)
    return std::sin((n + 0.5) * std::acos(x)) / std::sin(std::acos(x) / 2);
  return recur(x, n, 2 * x + 1, chebyshev_step);
}
double hermite_h(double x, double n) {
  return recur(x, n, 2 * x,
               [](double k, double t, double p, double q) { return 2 * t * p - 2 * k * q; });
}
double hermite_he(double x, double n) {
  return recur(x, n, x, [](double k, double t, double p, double q) { return t * p - k * q; });
}
double laguerre(double x, double n) {
  return recur(x, n, 1 - x, [](double k, double t, double p, double q) {
    return ((2 * k + 1 - t) * p - k * q) / (k + 1);
  });
}
double legendre(double x, double n) {
  return recur(x, n, x, [](double k, double t, double p, double q) {
    return ((2 * k + 1) * t * p - k * q) / (k + 1);
  });
}
double shifted_t(double x, double n) { return chebyshev_t(2 * x - 1, n); }
double shifted_u(double x, double n) { return chebyshev_u(2 * x - 1, n); }
double shifted_v(double x, double n) { return chebyshev_v(2 * x - 1, n); }
double shifted_w(double x, double n) { return chebyshev_w(2 * x - 1, n); }

template <double (*kFunction)(double, double)>
constexpr PointwiseRow polynomial(std::string_view name) {
  return pointwise<2>(name, {"x", "n"}, {}, Compute::kResult,
                      [](auto&, double x, double n) { return kFunction(x, n); });
}
#define BP_REFERENCE_POLYNOMIAL(name, function)               \
  polynomial<function>("aten.special_" name),                 \
      polynomial<function>("aten.special_" name ".n_scalar"), \
      polynomial<function>("aten.special_" name ".x_scalar")

constexpr PointwiseRow kRows[] = {
    BP_REFERENCE_POLYNOMIAL("chebyshev_polynomial_t", chebyshev_t),
    BP_REFERENCE_POLYNOMIAL("chebyshev_polynomial_u", chebyshev_u),
    BP_REFERENCE_POLYNOMIAL("chebyshev_polynomial_v", chebyshev_v),
    BP_REFERENCE_POLYNOMIAL("chebyshev_polynomial_w", chebyshev_w),
    BP_REFERENCE_POLYNOMIAL("shifted_chebyshev_polynomial_t", shifted_t),
    BP_REFERENCE_POLYNOMIAL("shifted_chebyshev_polynomial_u", shifted_u),
    BP_REFERENCE_POLYNOMIAL("shifted_chebyshev_polynomial_v", shifted_v),
    BP_REFERENCE_POLYNOMIAL("shifted_chebyshev_polynomial_w", shifted_w),
    BP_REFERENCE_POLYNOMIAL("hermite_polynomial_h", hermite_h),
    BP_REFERENCE_POLYNOMIAL("hermite_polynomial_he", hermite_he),
    BP_REFERENCE_POLYNOMIAL("laguerre_polynomial_l", laguerre),
    BP_REFERENCE_POLYNOMIAL("legendre_polynomial_p", legendre),
};
#undef BP_REFERENCE_POLYNOMIAL

}  // namespace

PointwiseRows polynomial_kernels() { return kRows; }

}  // namespace backplane::reference
