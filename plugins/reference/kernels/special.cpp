// Special functions around gamma and the error function.
#include "kernels/special.h"

#include <limits>

#include "kernels/pointwise.h"

namespace backplane::reference {

namespace {
constexpr double kPi = 3.14159265358979323846;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
// B(2k) / (2k)!, k = 1..12.
constexpr double kBernoulli[] = {
    8.333333333333333e-2,    -1.3888888888888889e-3,  3.3068783068783070e-5,
    -8.2671957671957672e-7,  2.0876756987868099e-8,   -5.2841901386874932e-10,
    1.3382536530684679e-11,  -3.3896802963225829e-13, 8.5860620562778446e-15,
    -2.1748686985580619e-16, 5.5090028283602295e-18,  -1.3954464685812523e-19};
}  // namespace

double digamma(double x) {
  if (x == 0) return std::copysign(kInfinity, -x);
  if (x < 0) {
    if (x == std::trunc(x)) return kNan;
    return digamma(1 - x) - kPi / std::tan(kPi * std::fmod(x, 1.0));
  }
  double shift = 0;
  for (; x < 12; x += 1) shift -= 1 / x;
  const double y = 1 / (x * x);
  const double tail =
      y * (1.0 / 12 - y * (1.0 / 120 - y * (1.0 / 252 - y * (1.0 / 240 - y * (1.0 / 132)))));
  return shift + std::log(x) - 0.5 / x - tail;
}

// Sum of 1 / (k + q)^s, by Euler and Maclaurin.
double hurwitz_zeta(double s, double q) {
  if (std::isnan(s) || std::isnan(q)) return kNan;
  if (s == 1) return kInfinity;
  if (s < 1) return kNan;
  if (q <= 0) {
    if (q == std::floor(q)) return kInfinity;
    if (s != std::floor(s)) return kNan;
  }
  double sum = std::pow(q, -s), a = q;
  for (int i = 0; i < 9 || a <= 12; ++i) {
    a += 1;
    sum += std::pow(a, -s);
  }
  const double power = std::pow(a, -s);
  sum += power * a / (s - 1) - 0.5 * power;
  double factor = s, term = power / a;
  for (int k = 0; k < 12; ++k) {
    sum += kBernoulli[k] * factor * term;
    factor *= (s + 2 * k + 1) * (s + 2 * k + 2);
    term /= a * a;
  }
  return sum;
}

// As PyTorch's, which is exact to ten digits.
double trigamma(double x) {
  if (x < 0.5) {  // reflection
    const double s = std::sin(kPi * x);
    return kPi * kPi / (s * s) - trigamma(1 - x);
  }
  double sum = 0;
  for (int i = 0; i < 6; ++i, x += 1) sum += 1 / (x * x);
  const double y = 1 / (x * x);
  return sum + (1 + 1 / (2 * x) + y * (1. / 6 - y * (1. / 30 - y * (1. / 42)))) / x;
}

double polygamma(std::int64_t n, double x) {
  if (n == 0) return digamma(x);
  if (n == 1) return trigamma(x);
  const double sign = n % 2 ? 1 : -1;
  return sign * std::tgamma(static_cast<double>(n) + 1) *
         hurwitz_zeta(static_cast<double>(n) + 1, x);
}

double scaled_erfc(double x) {
  if (std::isnan(x)) return x;
  if (x < 20) return std::exp(x * x) * std::erfc(x);
  const double y = 1 / (x * x);
  return (1 - y * (0.5 - y * (0.75 - y * (1.875 - y * 6.5625)))) / (x * std::sqrt(kPi));
}

// x with erfc(x) = q, 0 < q < 2.
double inverse_erfc(double q) {
  if (!(q >= 0 && q <= 2)) return kNan;
  if (q == 0) return kInfinity;
  if (q == 2) return -kInfinity;
  if (q > 1) return -inverse_erfc(2 - q);
  const double t = std::sqrt(-2 * std::log(q / 2));
  double x = -0.70711 * ((2.30753 + t * 0.27061) / (1 + t * (0.99229 + t * 0.04481)) - t);
  for (int i = 0; i < 4; ++i) {  // Halley
    const double error = (std::erfc(x) - q) / (1.12837916709551257 * std::exp(-x * x));
    x += error / (1 - x * error);
  }
  return x;
}
double inverse_erf(double y) {
  if (std::isnan(y) || std::abs(y) > 1) return kNan;
  if (std::abs(y) == 1) return std::copysign(kInfinity, y);
  if (std::abs(y) > 0.5) return std::copysign(inverse_erfc(1 - std::abs(y)), y);
  double x = y * 0.886226925452758;
  for (int i = 0; i < 6; ++i) {
    const double error = (std::erf(x) - y) / (1.12837916709551257 * std::exp(-x * x));
    x -= error / (1 + x * error);
  }
  return x;
}

// The regularized incomplete gamma functions; upper: of [x, inf).
double incomplete_gamma(double a, double x, bool upper) {
  if (std::isnan(a) || std::isnan(x) || a < 0 || x < 0) return kNan;
  if (a == 0) return x > 0 ? (upper ? 0.0 : 1.0) : kNan;
  if (x == 0) return upper ? 1 : 0;
  if (std::isinf(a)) return std::isinf(x) ? kNan : (upper ? 1 : 0);
  if (std::isinf(x)) return upper ? 0 : 1;
  int sign = 0;
  const double log_front = a * std::log(x) - x - ::lgamma_r(a, &sign);
  if (x < a + 1) {
    double term = 1 / a, sum = term;
    for (double n = a + 1; std::abs(term) > std::abs(sum) * 1e-17 && n < a + 1e6; n += 1)
      sum += term *= x / n;
    const double lower = sum * std::exp(log_front);
    return upper ? 1 - lower : lower;
  }
  // Lentz's continued fraction.
  double b = x + 1 - a, c = 1e300, d = 1 / b, h = d;
  for (int i = 1; i < 1000000; ++i) {
    const double an = -i * (i - a);
    b += 2;
    d = an * d + b;
    if (std::abs(d) < 1e-300) d = 1e-300;
    c = b + an / c;
    if (std::abs(c) < 1e-300) c = 1e-300;
    d = 1 / d;
    h *= d * c;
    if (std::abs(d * c - 1) < 1e-16) break;
  }
  const double rest = std::exp(log_front) * h;
  return upper ? rest : 1 - rest;
}

namespace {

constexpr double kSqrtHalf = 0.70710678118654752440;

constexpr auto kLgamma = [](auto&, double a) {
  int sign = 0;
  return ::lgamma_r(a, &sign);
};
constexpr auto kPolygamma = [](auto& p, double a) {
  return polygamma(static_cast<std::int64_t>(p[0]), a);
};
constexpr auto kMvlgamma = [](auto& p, double a) {
  const double n = p[0];
  double sum = n * (n - 1) / 4 * std::log(kPi);
  int sign = 0;
  for (double j = 0; j < n; j += 1) sum += ::lgamma_r(a - j / 2, &sign);
  return sum;
};
constexpr auto kZeta = [](auto&, double s, double q) { return hurwitz_zeta(s, q); };
constexpr auto kEntr = [](auto&, double a) {
  return std::isnan(a) ? a : a > 0 ? -a * std::log(a) : a == 0 ? 0 : -kInfinity;
};
constexpr auto kNdtr = [](auto&, double a) { return 0.5 * std::erfc(-a * kSqrtHalf); };
constexpr auto kNdtri = [](auto&, double a) { return -inverse_erfc(2 * a) / kSqrtHalf; };
constexpr auto kLogNdtr = [](auto&, double a) {
  const double t = a * kSqrtHalf;
  return a < -1 ? std::log(scaled_erfc(-t) / 2) - t * t : std::log1p(-std::erfc(t) / 2);
};

constexpr PointwiseRow kRows[] = {
    unary("aten.lgamma", kLgamma),
    unary("aten.digamma", [](auto&, double a) { return digamma(a); }),
    pointwise<1>("aten.polygamma", {"self"}, {Param{"n", 0}}, Compute::kResult, kPolygamma),
    pointwise<1>("aten.mvlgamma", {"self"}, {Param{"p", 1}}, Compute::kResult, kMvlgamma),
    binary("aten.special_zeta", kZeta),
    binary("aten.special_zeta.other_scalar", kZeta),
    binary("aten.special_zeta.self_scalar", kZeta),
    binary("aten.igamma", [](auto&, double a, double x) { return incomplete_gamma(a, x, false); }),
    binary("aten.igammac", [](auto&, double a, double x) { return incomplete_gamma(a, x, true); }),
    unary("aten.erfinv", [](auto&, double a) { return inverse_erf(a); }),
    unary("aten.special_erfcx", [](auto&, double a) { return scaled_erfc(a); }),
    unary("aten.special_entr", kEntr),
    unary("aten.special_ndtr", kNdtr),
    unary("aten.special_ndtri", kNdtri),
    unary("aten.special_log_ndtr", kLogNdtr),
};

}  // namespace

PointwiseRows special_kernels() { return kRows; }

}  // namespace backplane::reference
