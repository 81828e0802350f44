// Pointwise ops of one operand: rounding, exponentials, trigonometry, parts of complex numbers.
#include "kernels/pointwise.h"

namespace backplane::reference {
namespace {

using I = std::int64_t;

constexpr double kPi = 3.14159265358979323846;

constexpr auto kNeg = [](auto&, auto a) { return -a; };
constexpr auto kNegInteger = [](auto&, I a) { return sub(I{0}, a); };
constexpr auto kAbs = [](auto&, auto a) { return std::abs(a); };
constexpr auto kAbsInteger = [](auto&, I a) { return a < 0 ? sub(I{0}, a) : a; };
constexpr auto kSign = [](auto&, auto a) {
  using T = decltype(a);
  return T(a > T(0) ? 1 : 0) - T(a < T(0) ? 1 : 0);  // of NaN zero
};
constexpr auto kSgn = [](auto&, Complex a) {
  return a == Complex(0) ? Complex(0) : a / std::abs(a);
};
constexpr auto kSame = [](auto&, auto a) { return a; };
constexpr auto kExp = [](auto&, auto a) { return std::exp(a); };
constexpr auto kExp2 = [](auto&, double a) { return std::exp2(a); };
constexpr auto kExp2Complex = [](auto&, Complex a) { return std::exp(a * std::log(2.0)); };
constexpr auto kExpm1 = [](auto&, double a) { return std::expm1(a); };
constexpr auto kExpm1Complex = [](auto&, Complex a) {
  const double x = a.real(), half = std::sin(a.imag() / 2), e = std::expm1(x);
  return Complex(e * std::cos(a.imag()) - 2 * half * half, (e + 1) * std::sin(a.imag()));
};
constexpr auto kLog = [](auto&, auto a) { return std::log(a); };
constexpr auto kLog2 = [](auto&, double a) { return std::log2(a); };
constexpr auto kLog2Complex = [](auto&, Complex a) { return std::log(a) / std::log(2.0); };
constexpr auto kLog10 = [](auto&, auto a) { return std::log10(a); };
constexpr auto kLog1p = [](auto&, double a) { return std::log1p(a); };
constexpr auto kLog1pComplex = [](auto&, Complex a) {
  const double x = a.real(), y = a.imag();
  // |1 + z|^2 - 1 without cancellation.
  return Complex(0.5 * std::log1p(x * (2 + x) + y * y), std::atan2(y, 1 + x));
};
constexpr auto kSqrt = [](auto&, auto a) { return std::sqrt(a); };
constexpr auto kRsqrt = [](auto&, auto a) { return decltype(a)(1) / std::sqrt(a); };
constexpr auto kReciprocal = [](auto&, auto a) { return decltype(a)(1) / a; };
constexpr auto kSin = [](auto&, auto a) { return std::sin(a); };
constexpr auto kCos = [](auto&, auto a) { return std::cos(a); };
constexpr auto kTan = [](auto&, auto a) { return std::tan(a); };
constexpr auto kAsin = [](auto&, auto a) { return std::asin(a); };
constexpr auto kAcos = [](auto&, auto a) { return std::acos(a); };
constexpr auto kAtan = [](auto&, auto a) { return std::atan(a); };
constexpr auto kSinh = [](auto&, auto a) { return std::sinh(a); };
constexpr auto kCosh = [](auto&, auto a) { return std::cosh(a); };
constexpr auto kTanh = [](auto&, auto a) { return std::tanh(a); };
constexpr auto kAsinh = [](auto&, auto a) { return std::asinh(a); };
constexpr auto kAcosh = [](auto&, auto a) { return std::acosh(a); };
constexpr auto kAtanh = [](auto&, auto a) { return std::atanh(a); };
constexpr auto kFloor = [](auto&, double a) { return std::floor(a); };
constexpr auto kCeil = [](auto&, double a) { return std::ceil(a); };
constexpr auto kTrunc = [](auto&, double a) { return std::trunc(a); };
constexpr auto kFrac = [](auto&, double a) { return a - std::trunc(a); };
constexpr auto kRound = [](auto&, double a) { return std::nearbyint(a); };
constexpr auto kRoundDecimals = [](auto& p, double a) {
  // As ATen: scaled in the element type.
  const double power = std::pow(10.0, std::abs(p[0]));
  const Type t = p.compute;
  if (p[0] >= 0) return as_computed(t, std::nearbyint(as_computed(t, a * power)) / power);
  return as_computed(t, std::nearbyint(as_computed(t, a / power)) * power);
};
constexpr auto kSigmoid = [](auto&, auto a) {
  using T = decltype(a);
  return T(1) / (T(1) + std::exp(-a));
};
constexpr auto kSquare = [](auto&, auto a) { return mul(a, a); };
constexpr auto kErf = [](auto&, double a) { return std::erf(a); };
constexpr auto kErfc = [](auto&, double a) { return std::erfc(a); };
constexpr auto kNot = [](auto& p, I a) { return p.compute == Type::kBool ? I{a == 0} : ~a; };
constexpr auto kNoReal = [](auto&, double) { return std::nan(""); };
constexpr auto kAngle = [](auto&, double a) { return std::isnan(a) ? a : a < 0 ? kPi : 0.0; };
constexpr auto kAngleComplex = [](auto&, Complex a) { return std::arg(a); };
constexpr auto kConj = [](auto&, Complex a) { return std::conj(a); };
constexpr auto kReal = [](auto&, Complex a) { return Complex(a.real()); };
constexpr auto kImag = [](auto&, Complex a) { return Complex(a.imag()); };
constexpr auto kZero = [](auto&, auto) { return 0; };
constexpr auto kSinc = [](auto&, auto a) {
  using T = decltype(a);
  return a == T(0) ? T(1) : std::sin(T(kPi) * a) / (T(kPi) * a);
};
double largest(Type type) {
  switch (type) {
    case Type::kF16:
      return 65504;
    case Type::kBF16:
      return 0x1.fep127;
    case Type::kF32:
    case Type::kC64:
      return 0x1.fffffep127;
    default:
      return 0x1.fffffffffffffp1023;
  }
}
template <class P>
double replaced(const P& p, double a) {
  if (std::isnan(a)) return std::real(p[0]);
  if (std::isinf(a) && a > 0) return p.has[1] ? std::real(p[1]) : largest(p.compute);
  if (std::isinf(a)) return p.has[2] ? std::real(p[2]) : -largest(p.compute);
  return a;
}
constexpr auto kNanToNum = [](auto& p, double a) { return replaced(p, a); };
constexpr auto kNanToNumComplex = [](auto& p, Complex a) {
  return Complex(replaced(p, a.real()), replaced(p, a.imag()));
};
constexpr auto kLogit = [](auto& p, double a) {
  const double low = as_computed(p.compute, p[0]), high = as_computed(p.compute, 1 - low);
  if (p.has[0]) a = a < low ? low : a > high ? high : a;
  return std::log(a / (1 - a));
};

constexpr PointwiseRow kRows[] = {
    unary("aten.neg", kNeg, kNegInteger, kNeg),
    unary("aten.abs", kAbs, kAbsInteger, kAbs),
    unary("aten.sign", kSign, kSign),
    unary("aten.sgn", kSign, kSign, kSgn),
    unary("aten.positive", kSame, kSame, kSame),
    unary("aten.exp", kExp, None{}, kExp),
    unary("aten.exp2", kExp2, None{}, kExp2Complex),
    unary("aten.expm1", kExpm1, None{}, kExpm1Complex),
    unary("aten.log", kLog, None{}, kLog),
    unary("aten.log2", kLog2, None{}, kLog2Complex),
    unary("aten.log10", kLog10, None{}, kLog10),
    unary("aten.log1p", kLog1p, None{}, kLog1pComplex),
    unary("aten.sqrt", kSqrt, None{}, kSqrt),
    unary("aten.rsqrt", kRsqrt, None{}, kRsqrt),
    unary("aten.reciprocal", kReciprocal, None{}, kReciprocal),
    unary("aten.sin", kSin, None{}, kSin),
    unary("aten.cos", kCos, None{}, kCos),
    unary("aten.tan", kTan, None{}, kTan),
    unary("aten.asin", kAsin, None{}, kAsin),
    unary("aten.acos", kAcos, None{}, kAcos),
    unary("aten.atan", kAtan, None{}, kAtan),
    unary("aten.sinh", kSinh, None{}, kSinh),
    unary("aten.cosh", kCosh, None{}, kCosh),
    unary("aten.tanh", kTanh, None{}, kTanh),
    unary("aten.asinh", kAsinh, None{}, kAsinh),
    unary("aten.acosh", kAcosh, None{}, kAcosh),
    unary("aten.atanh", kAtanh, None{}, kAtanh),
    unary("aten.floor", kFloor, kSame),
    unary("aten.ceil", kCeil, kSame),
    unary("aten.trunc", kTrunc, kSame),
    unary("aten.frac", kFrac),
    unary("aten.round", kRound, kSame),
    pointwise<1>("aten.round.decimals", {"self"}, {Param{"decimals", 0}}, Compute::kResult,
                 kRoundDecimals, kSame),
    unary("aten.sigmoid", kSigmoid, None{}, kSigmoid),
    unary("aten.square", kSquare, kSquare, kSquare),
    unary("aten.erf", kErf),
    unary("aten.erfc", kErfc),
    unary("aten.deg2rad", [](auto&, double a) { return a * (kPi / 180); }),
    unary("aten.rad2deg", [](auto&, double a) { return a * (180 / kPi); }),
    unary("aten.bitwise_not", kNoReal, kNot),
    unary("aten.angle", kAngle, None{}, kAngleComplex),
    unary("aten.conj_physical", kSame, kSame, kConj),
    unary("aten._conj", kSame, kSame, kConj),
    unary("aten._conj_physical", kSame, kSame, kConj),
    unary("aten.resolve_conj", kSame, kSame, kSame),
    unary("aten.resolve_neg", kSame, kSame, kSame),
    unary("aten._neg_view", kNeg, kNegInteger, kNeg),
    unary("aten.real", kSame, kSame, kReal),
    unary("aten.imag", kZero, kZero, kImag),
    unary("aten.sinc", kSinc, None{}, kSinc),
    pointwise<1>("aten.nan_to_num", {"self"},
                 {Param{"nan", 0}, Param{"posinf", 0}, Param{"neginf", 0}}, Compute::kResult,
                 kNanToNum, kSame, kNanToNumComplex),
    pointwise<1>("aten.logit", {"self"}, {Param{"eps", 0}}, Compute::kResult, kLogit),
};

}  // namespace

PointwiseRows unary_kernels() { return kRows; }

}  // namespace backplane::reference
