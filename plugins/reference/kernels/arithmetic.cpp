// Pointwise ops of two and more operands.
#include <cstdlib>
#include <numeric>

#include "kernels/pointwise.h"

namespace backplane::reference {
namespace {

using I = std::int64_t;

double floor_divide(double a, double b) {
  if (b == 0) return a / b;
  const double mod = std::fmod(a, b);
  double div = (a - mod) / b;
  if (mod != 0 && (b < 0) != (mod < 0)) div -= 1;
  if (div == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(div);
  return div - floor > 0.5 ? floor + 1 : floor;
}
I floor_divide(I a, I b) {
  const I q = divide(a, b);
  return (a % (b == -1 ? 1 : b) != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}
double remainder_of(double a, double b) {
  const double mod = std::fmod(a, b);
  return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod;
}
I remainder_of(I a, I b) {
  if (b == 0) throw KernelError("ZeroDivisionError: integer remainder by zero");
  if (b == -1) return 0;
  const I mod = a % b;
  return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod;
}
I power(I base, I exponent) {
  if (exponent < 0) {
    if (base == 1) return 1;
    return base == -1 ? (exponent % 2 == 0 ? 1 : -1) : 0;
  }
  I out = 1;
  for (; exponent; exponent >>= 1, base = mul(base, base))
    if (exponent & 1) out = mul(out, base);
  return out;
}
Complex power(Complex a, Complex b) {
  if (b == Complex(0)) return 1;
  if (a == Complex(0)) return b.real() > 0 ? Complex(0) : std::pow(a, b);
  if (b.imag() == 0 && b.real() == 2) return a * a;
  return std::pow(a, b);
}

constexpr auto kAdd = [](auto& p, auto a, auto b) { return add(a, mul(p[0], b)); };
constexpr auto kSub = [](auto& p, auto a, auto b) { return sub(a, mul(p[0], b)); };
constexpr auto kReverseSub = [](auto& p, auto a, auto b) { return sub(b, mul(p[0], a)); };
constexpr auto kMul = [](auto&, auto a, auto b) { return mul(a, b); };
constexpr auto kDiv = [](auto&, auto a, auto b) { return divide(a, b); };
constexpr auto kDivMode = [](auto& p, double a, double b) {
  if (p[0] == 2) return floor_divide(a, b);
  return p[0] == 1 ? std::trunc(as_computed(p.compute, a / b)) : a / b;
};
constexpr auto kDivModeInteger = [](auto& p, I a, I b) {
  return p[0] == 2 ? floor_divide(a, b) : divide(a, b);
};
constexpr auto kFloorDivide = [](auto&, auto a, auto b) { return floor_divide(a, b); };
constexpr auto kRemainder = [](auto&, auto a, auto b) { return remainder_of(a, b); };
constexpr auto kFmod = [](auto&, double a, double b) { return std::fmod(a, b); };
constexpr auto kFmodInteger = [](auto&, I a, I b) {
  if (b == 0) throw KernelError("ZeroDivisionError: integer remainder by zero");
  return b == -1 ? I{0} : a % b;
};
constexpr auto kPow = [](auto&, double a, double b) { return std::pow(a, b); };
// PyTorch takes squares and roots for what they are: a square is rounded once, and the infinities
// of roots have other signs. Roots of float16 are powers like others.
constexpr auto kPowNumber = [](auto& p, double a, double b) {
  if (b == 2) return a * a;
  if (p.compute == Type::kF16) return std::pow(a, b);
  return b == 0.5 ? std::sqrt(a) : b == -0.5 ? 1 / std::sqrt(a) : std::pow(a, b);
};
constexpr auto kPowInteger = [](auto&, I a, I b) { return power(a, b); };
constexpr auto kPowComplex = [](auto&, Complex a, Complex b) { return power(a, b); };
constexpr auto kMaximum = [](auto&, auto a, auto b) {
  return a != a ? a : b != b ? b : a >= b ? a : b;
};
constexpr auto kMinimum = [](auto&, auto a, auto b) {
  return a != a ? a : b != b ? b : a <= b ? a : b;
};
constexpr auto kFmax = [](auto&, auto a, auto b) {
  return a != a ? b : b != b ? a : a >= b ? a : b;
};
constexpr auto kFmin = [](auto&, auto a, auto b) {
  return a != a ? b : b != b ? a : a <= b ? a : b;
};
constexpr auto kAnd = [](auto&, I a, I b) { return a & b; };
constexpr auto kOr = [](auto&, I a, I b) { return a | b; };
constexpr auto kXor = [](auto&, I a, I b) { return a ^ b; };
constexpr auto kNoReal = [](auto&, double, double) { return std::nan(""); };
constexpr auto kLeft = [](auto& p, I a, I b) {
  if (b < 0 || b >= p.bits) return I{0};
  return static_cast<I>(static_cast<std::uint64_t>(a) << b);
};
constexpr auto kRight = [](auto& p, I a, I b) {
  if (b < 0 || b >= p.bits) return a < 0 ? I{-1} : I{0};
  return a >> b;
};
constexpr auto kWhere = [](auto&, auto c, auto a, auto b) { return c != decltype(c){} ? a : b; };
constexpr auto kMaskedFill = [](auto&, auto a, auto m, auto v) {
  return m != decltype(m){} ? v : a;
};
constexpr auto kClamp = [](auto& p, auto a) {
  if (a != a) return a;
  if (p.has[0] && (p[0] != p[0] || a < p[0])) a = p[0];
  if (p.has[1] && a == a && (p[1] != p[1] || a > p[1])) a = p[1];
  return a;
};
constexpr auto kLerp = [](auto&, auto a, auto b, auto w) {
  return std::abs(w) < 0.5 ? a + mul(w, b - a) : b - mul(b - a, decltype(w)(1) - w);
};
constexpr auto kAddcmul = [](auto& p, auto a, auto b, auto c) {
  return add(a, mul(mul(p[0], b), c));
};
constexpr auto kAddcdiv = [](auto& p, auto a, auto b, auto c) {
  return a + divide(mul(p[0], b), c);
};
constexpr auto kXlogy = [](auto&, double a, double b) {
  return std::isnan(b) ? b : a == 0 ? 0 : a * std::log(b);
};
constexpr auto kXlog1py = [](auto&, double a, double b) {
  return std::isnan(b) ? b : a == 0 ? 0 : a * std::log1p(b);
};
constexpr auto kLogaddexp = [](auto&, double a, double b) {
  if (std::isinf(a) && a == b) return a;
  const double m = std::fmax(a, b);
  return std::isnan(a) || std::isnan(b) ? a + b : m + std::log1p(std::exp(-std::abs(a - b)));
};
constexpr auto kLogaddexpComplex = [](auto&, Complex a, Complex b) {
  const Complex m = a.real() > b.real() ? a : b, other = a.real() > b.real() ? b : a;
  if (std::isinf(m.real()) && m.real() < 0) return m;
  return m + std::log(1.0 + std::exp(other - m));
};
constexpr auto kLogaddexp2 = [](auto&, double a, double b) {
  if (std::isinf(a) && a == b) return a;
  const double m = std::fmax(a, b);
  return std::isnan(a) || std::isnan(b)
             ? a + b
             : m + std::log1p(std::exp2(-std::abs(a - b))) / 0.693147180559945309417;
};
constexpr auto kHeaviside = [](auto&, auto a, auto b) {
  using T = decltype(a);
  return a == T(0) ? b : a > T(0) ? T(1) : T(0);
};
constexpr auto kGcd = [](auto&, I a, I b) { return std::gcd(a, b); };
constexpr auto kLcm = [](auto&, I a, I b) {
  const I g = std::gcd(a, b);
  return g == 0 ? I{0} : std::abs(mul(a / g, b));
};
constexpr auto kNextafter = [](auto& p, double a, double b) {
  if (p.compute == Type::kF64) return std::nextafter(a, b);
  if (p.compute == Type::kF32)
    return static_cast<double>(std::nextafterf(static_cast<float>(a), static_cast<float>(b)));
  if (std::isnan(a) || std::isnan(b) || a == b) return std::isnan(a) ? a : b;
  const bool is_f16 = p.compute == Type::kF16;
  const int digits = is_f16 ? 11 : 8, least = is_f16 ? -14 : -126;
  if (std::isinf(a)) return std::copysign(is_f16 ? 65504.0 : 0x1.fep127, a);
  // The distance to the neighbour is half as long below a power of two.
  int exponent = a == 0 ? least : std::max(std::ilogb(a), least);
  if (std::abs(a) == std::ldexp(1.0, exponent) && exponent > least && (b < a) == (a > 0))
    --exponent;
  const double step = std::ldexp(1.0, exponent - digits + 1);
  return round_to(p.compute, b > a ? a + step : a - step);
};

constexpr Names kSelfOther = {"self", "other"};
constexpr ParamList kAlpha = {Param{"alpha", 1}};
constexpr ParamList kMode = {Param{"rounding_mode", 0}};
constexpr Compute kInResult = Compute::kResult;

constexpr PointwiseRow kRows[] = {
    pointwise<2>("aten.add.Tensor", kSelfOther, kAlpha, kInResult, kAdd, kAdd, kAdd),
    pointwise<2>("aten.add.Scalar", kSelfOther, kAlpha, kInResult, kAdd, kAdd, kAdd),
    pointwise<2>("aten.sub.Tensor", kSelfOther, kAlpha, kInResult, kSub, kSub, kSub),
    pointwise<2>("aten.sub.Scalar", kSelfOther, kAlpha, kInResult, kSub, kSub, kSub),
    pointwise<2>("aten.rsub.Tensor", kSelfOther, kAlpha, kInResult, kReverseSub, kReverseSub,
                 kReverseSub),
    pointwise<2>("aten.rsub.Scalar", kSelfOther, kAlpha, kInResult, kReverseSub, kReverseSub,
                 kReverseSub),
    binary("aten.mul.Tensor", kMul, kMul, kMul),
    binary("aten.mul.Scalar", kMul, kMul, kMul),
    binary("aten.div.Tensor", kDiv, None{}, kDiv),
    binary("aten.div.Scalar", kDiv, None{}, kDiv),
    binary("aten.true_divide.Tensor", kDiv, None{}, kDiv),
    pointwise<2>("aten.div.Tensor_mode", kSelfOther, kMode, kInResult, kDivMode, kDivModeInteger,
                 kDiv),
    pointwise<2>("aten.div.Scalar_mode", kSelfOther, kMode, kInResult, kDivMode, kDivModeInteger,
                 kDiv),
    binary("aten.floor_divide", kFloorDivide, kFloorDivide),
    binary("aten.floor_divide.Scalar", kFloorDivide, kFloorDivide),
    binary("aten.remainder.Tensor", kRemainder, kRemainder),
    binary("aten.remainder.Scalar", kRemainder, kRemainder),
    binary("aten.remainder.Scalar_Tensor", kRemainder, kRemainder),
    binary("aten.fmod.Tensor", kFmod, kFmodInteger),
    binary("aten.fmod.Scalar", kFmod, kFmodInteger),
    pointwise<2>("aten.pow.Tensor_Tensor", {"self", "exponent"}, {}, kInResult, kPow, kPowInteger,
                 kPowComplex),
    pointwise<2>("aten.pow.Tensor_Scalar", {"self", "exponent"}, {}, kInResult, kPowNumber,
                 kPowInteger, kPowComplex),
    pointwise<2>("aten.pow.Scalar", {"self", "exponent"}, {}, kInResult, kPow, kPowInteger,
                 kPowComplex),
    pointwise<2>("aten.float_power.Tensor_Tensor", {"self", "exponent"}, {}, kInResult, kPow,
                 None{}, kPowComplex),
    binary("aten.atan2", [](auto&, double a, double b) { return std::atan2(a, b); }),
    binary("aten.hypot", [](auto&, double a, double b) { return std::hypot(a, b); }),
    binary("aten.maximum", kMaximum, kMaximum),
    binary("aten.minimum", kMinimum, kMinimum),
    binary("aten.fmax", kFmax, kFmax),
    binary("aten.fmin", kFmin, kFmin),
    binary("aten.copysign.Tensor", [](auto&, double a, double b) { return std::copysign(a, b); }),
    binary("aten.copysign.Scalar", [](auto&, double a, double b) { return std::copysign(a, b); }),
    binary("aten.nextafter", kNextafter),
    binary("aten.logaddexp", kLogaddexp, None{}, kLogaddexpComplex),
    binary("aten.logaddexp2", kLogaddexp2),
    binary("aten.xlogy.Tensor", kXlogy),
    binary("aten.xlogy.Scalar_Other", kXlogy),
    binary("aten.xlogy.Scalar_Self", kXlogy),
    binary("aten.special_xlog1py", kXlog1py),
    binary("aten.special_xlog1py.other_scalar", kXlog1py),
    binary("aten.special_xlog1py.self_scalar", kXlog1py),
    pointwise<2>("aten.heaviside", {"self", "values"}, {}, kInResult, kHeaviside, kHeaviside),
    binary("aten.gcd", kNoReal, kGcd),
    binary("aten.lcm", kNoReal, kLcm),
    binary("aten.bitwise_and.Tensor", kNoReal, kAnd),
    binary("aten.bitwise_and.Scalar", kNoReal, kAnd),
    binary("aten.bitwise_and.Scalar_Tensor", kNoReal, kAnd),
    binary("aten.bitwise_or.Tensor", kNoReal, kOr),
    binary("aten.bitwise_or.Scalar", kNoReal, kOr),
    binary("aten.bitwise_or.Scalar_Tensor", kNoReal, kOr),
    binary("aten.bitwise_xor.Tensor", kNoReal, kXor),
    binary("aten.bitwise_xor.Scalar", kNoReal, kXor),
    binary("aten.bitwise_xor.Scalar_Tensor", kNoReal, kXor),
    binary("aten.bitwise_left_shift.Tensor", kNoReal, kLeft),
    binary("aten.bitwise_left_shift.Tensor_Scalar", kNoReal, kLeft),
    binary("aten.bitwise_left_shift.Scalar_Tensor", kNoReal, kLeft),
    binary("aten.bitwise_right_shift.Tensor", kNoReal, kRight),
    binary("aten.bitwise_right_shift.Tensor_Scalar", kNoReal, kRight),
    binary("aten.bitwise_right_shift.Scalar_Tensor", kNoReal, kRight),
    binary("aten.__lshift__.Tensor", kNoReal, kLeft),
    binary("aten.__lshift__.Scalar", kNoReal, kLeft),
    binary("aten.__rshift__.Tensor", kNoReal, kRight),
    binary("aten.__rshift__.Scalar", kNoReal, kRight),
    pointwise<3>("aten.where.self", {"condition", "self", "other"}, {}, kInResult, kWhere, kWhere,
                 kWhere),
    pointwise<3>("aten.where.ScalarSelf", {"condition", "self", "other"}, {}, kInResult, kWhere,
                 kWhere, kWhere),
    pointwise<3>("aten.where.ScalarOther", {"condition", "self", "other"}, {}, kInResult, kWhere,
                 kWhere, kWhere),
    pointwise<3>("aten.where.Scalar", {"condition", "self", "other"}, {}, kInResult, kWhere, kWhere,
                 kWhere),
    pointwise<3>("aten.masked_fill.Scalar", {"self", "mask", "value"}, {}, kInResult, kMaskedFill,
                 kMaskedFill, kMaskedFill),
    pointwise<3>("aten.masked_fill.Tensor", {"self", "mask", "value"}, {}, kInResult, kMaskedFill,
                 kMaskedFill, kMaskedFill),
    pointwise<1>("aten.clamp", {"self"}, {Param{"min", 0}, Param{"max", 0}}, kInResult, kClamp,
                 kClamp),
    pointwise<1>("aten.clamp_min", {"self"}, {Param{"min", 0}}, kInResult, kClamp, kClamp),
    pointwise<2>("aten.clamp_max", {"self", "max"}, {}, kInResult, kMinimum, kMinimum),
    pointwise<2>("aten.clamp_min.Tensor", {"self", "min"}, {}, kInResult, kMaximum, kMaximum),
    pointwise<2>("aten.clamp_max.Tensor", {"self", "max"}, {}, kInResult, kMinimum, kMinimum),
    pointwise<3>("aten.lerp.Scalar", {"self", "end", "weight"}, {}, kInResult, kLerp, None{},
                 kLerp),
    pointwise<3>("aten.lerp.Tensor", {"self", "end", "weight"}, {}, kInResult, kLerp, None{},
                 kLerp),
    pointwise<3>("aten.addcmul", {"self", "tensor1", "tensor2"}, {Param{"value", 1}}, kInResult,
                 kAddcmul, kAddcmul, kAddcmul),
    pointwise<3>("aten.addcdiv", {"self", "tensor1", "tensor2"}, {Param{"value", 1}}, kInResult,
                 kAddcdiv, None{}, kAddcdiv),
    pointwise<2>("aten.polar", {"abs", "angle"}, {}, kInResult, kNoReal, None{},
                 [](auto&, Complex a, Complex b) {
                   return Complex(a.real() * std::cos(b.real()), a.real() * std::sin(b.real()));
                 }),
    pointwise<2>("aten.complex", {"real", "imag"}, {}, kInResult, kNoReal, None{},
                 [](auto&, Complex a, Complex b) { return Complex(a.real(), b.real()); }),
};

}  // namespace

PointwiseRows arithmetic_kernels() { return kRows; }

}  // namespace backplane::reference
