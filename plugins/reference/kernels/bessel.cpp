// Bessel functions and the like.
#include <limits>

#include "kernels/pointwise.h"

namespace backplane::reference {
namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kDirect = 300;  // beyond: the asymptotic series

// 1 -+ (m - 1)/(8 x) + (m - 1)(m - 9)/(2! (8 x)^2) -+ ..., m = 4 order^2
double asymptotic(double order, double x, double sign) {
  const double m = 4 * order * order;
  double term = 1, sum = 1;
  for (int k = 1; k < 20; ++k) {
    const double odd = 2 * k - 1;
    term *= sign * (m - odd * odd) / (k * 8 * x);
    sum += term;
  }
  return sum;
}
// exp(-|x|) I(x)
double scaled_i(int order, double x) {
  if (std::isnan(x)) return x;
  const double a = std::abs(x), sign = order == 1 && x < 0 ? -1 : 1;
  if (std::isinf(x)) return 0;
  if (a < kDirect) return sign * std::exp(-a) * std::cyl_bessel_i(order, a);
  return sign * asymptotic(order, a, -1) / std::sqrt(2 * kPi * a);
}
double bessel_i(int order, double x) {
  const double a = std::abs(x);
  if (std::isnan(x)) return x;
  if (a < kDirect) return (order == 1 && x < 0 ? -1 : 1) * std::cyl_bessel_i(order, a);
  return scaled_i(order, x) * std::exp(a);
}
// exp(x) K(x)
double scaled_k(int order, double x) {
  if (std::isnan(x) || x < 0) return kNan;
  if (x == 0) return kInfinity;
  if (x < kDirect) return std::exp(x) * std::cyl_bessel_k(order, x);
  return asymptotic(order, x, 1) * std::sqrt(kPi / (2 * x));
}
double bessel_k(int order, double x) {
  if (std::isnan(x) || x < 0) return kNan;
  if (x == 0) return kInfinity;
  return x < kDirect ? std::cyl_bessel_k(order, x) : scaled_k(order, x) * std::exp(-x);
}
double airy_ai(double x) {
  if (std::isnan(x) || std::isinf(x)) return kNan;
  if (x > 103.892) return 0;
  const double third = 1.0 / 3, z = std::abs(x), zeta = 2 * third * z * std::sqrt(z);
  if (z < 1e-8) return 0.355028053887817239 - 0.258819403792806798 * x;
  if (x > 0) return std::sqrt(z / 3) / kPi * std::cyl_bessel_k(third, zeta);
  const double j = std::cyl_bessel_j(third, zeta), y = std::cyl_neumann(third, zeta);
  // J of order -1/3 from J and Y of order 1/3.
  return std::sqrt(z) / 3 * (j + std::cos(third * kPi) * j - std::sin(third * kPi) * y);
}
double spherical_j0(double x) {
  if (std::isinf(x)) return 0;
  const double s = x * x;
  if (std::abs(x) < 0.5)
    return 1 - s / 6 * (1 - s / 20 * (1 - s / 42 * (1 - s / 72 * (1 - s / 110 * (1 - s / 156)))));
  return std::sin(x) / x;
}

constexpr auto kI0 = [](auto&, double a) { return bessel_i(0, a); };
constexpr auto kI1 = [](auto&, double a) { return bessel_i(1, a); };
constexpr auto kAiry = [](auto&, double a) { return airy_ai(a); };
constexpr auto kSpherical = [](auto&, double a) { return spherical_j0(a); };
constexpr auto kScaledK0 = [](auto&, double a) { return scaled_k(0, a); };
constexpr auto kScaledK1 = [](auto&, double a) { return scaled_k(1, a); };
// PyTorch's formulas have no limit at infinity.
constexpr auto kJ0 = [](auto&, double a) { return std::isinf(a) ? kNan : ::j0(a); };
constexpr auto kJ1 = [](auto&, double a) { return std::isinf(a) ? kNan : ::j1(a); };
constexpr auto kY0 = [](auto&, double a) { return a < 0 || std::isinf(a) ? kNan : ::y0(a); };
constexpr auto kY1 = [](auto&, double a) { return a < 0 || std::isinf(a) ? kNan : ::y1(a); };

constexpr PointwiseRow of_x(std::string_view name, auto function) {
  return pointwise<1>(name, {"x"}, {}, Compute::kResult, function);
}

constexpr PointwiseRow kRows[] = {
    unary("aten.i0", kI0),
    unary("aten.special_i0", kI0),
    unary("aten.special_i1", kI1),
    unary("aten.special_i0e", [](auto&, double a) { return scaled_i(0, a); }),
    unary("aten.special_i1e", [](auto&, double a) { return scaled_i(1, a); }),
    unary("aten.special_modified_bessel_i0", kI0),
    unary("aten.special_modified_bessel_i1", kI1),
    unary("aten.special_modified_bessel_k0", [](auto&, double a) { return bessel_k(0, a); }),
    unary("aten.special_modified_bessel_k1", [](auto&, double a) { return bessel_k(1, a); }),
    of_x("aten.special_scaled_modified_bessel_k0", kScaledK0),
    of_x("aten.special_scaled_modified_bessel_k1", kScaledK1),
    unary("aten.special_bessel_j0", kJ0),
    unary("aten.special_bessel_j1", kJ1),
    unary("aten.special_bessel_y0", kY0),
    unary("aten.special_bessel_y1", kY1),
    of_x("aten.special_airy_ai", kAiry),
    of_x("aten.special_spherical_bessel_j0", kSpherical),
};

}  // namespace

PointwiseRows bessel_kernels() { return kRows; }

}  // namespace backplane::reference
