// Arithmetic, comparisons, logic, rounding, conversions.
#include <cmath>
#include <limits>

#include "kernels/rows/emitter.h"

namespace backplane::onednn {
namespace {

using Results = std::vector<Register>;

// Of one operand, in the result's domain.
template <Opcode kOp>
Results one(Emitter& e) {
  return {e.apply(kOp, e.operand(0, e.domain()))};
}
// The identity on integers.
template <Opcode kOp>
Results one_wrapped(Emitter& e) {
  return {e.wrapped(e.apply(kOp, e.operand(0, e.domain())))};
}
// To a truth value, in the operand's domain.
template <Opcode kOp>
Results predicate(Emitter& e) {
  return {e.apply(kOp, e.operand(0, domain_of(e.type(0))))};
}
template <Opcode kOp>
Results two(Emitter& e) {
  const Domain d = e.domain();
  return {e.wrapped(e.apply(kOp, e.operand(0, d, "self"), e.operand(1, d, "other")))};
}
template <Opcode kOp>
Results compare(Emitter& e) {
  const Domain d = e.common_domain(0, 1, "other");
  return {e.apply(kOp, e.operand(0, d, "self"), e.operand(1, d, "other"))};
}
// Overloads whose scalar comes first: the tensor is operand 0.
template <Opcode kOp>
Results reversed(Emitter& e) {
  const Domain d = e.domain();
  return {e.wrapped(e.apply(kOp, e.attribute("self", 0, d), e.operand(0, d)))};
}
template <Opcode kOp>
Results logical(Emitter& e) {
  const Domain d = e.common_domain(0, 1, "other");
  return {e.apply(kOp, e.operand(0, d), e.operand(1, d, "other"))};
}
template <Opcode kInteger, Opcode kBool>
Results bits(Emitter& e) {
  const Domain d = Domain::kI64;
  return {e.wrapped(e.apply(e.out() == Type::kBool ? kBool : kInteger, e.operand(0, d, "self"),
                            e.operand(1, d, "other")))};
}
template <Opcode kInteger, Opcode kBool>
Results bits_reversed(Emitter& e) {
  const Domain d = Domain::kI64;
  return {e.wrapped(e.apply(e.out() == Type::kBool ? kBool : kInteger, e.attribute("self", 0, d),
                            e.operand(0, d)))};
}

Register scaled(Emitter& e, Register r, std::string_view attribute) {
  if (e.real(attribute, 1) == 1) return r;
  return e.apply(Opcode::kMul, r, e.attribute(attribute, 1, e.domain()));
}

Results add(Emitter& e) {
  const Domain d = e.domain();
  const Register a = e.operand(0, d, "self"), b = scaled(e, e.operand(1, d, "other"), "alpha");
  return {e.wrapped(e.apply(e.out() == Type::kBool ? Opcode::kOr : Opcode::kAdd, a, b))};
}
Results sub(Emitter& e) {
  const Domain d = e.domain();
  const Register a = e.operand(0, d, "self"), b = scaled(e, e.operand(1, d, "other"), "alpha");
  return {e.wrapped(e.apply(Opcode::kSub, a, b))};
}
Results rsub(Emitter& e) {
  const Domain d = e.domain();
  const Register a = scaled(e, e.operand(0, d), "alpha"), b = e.operand(1, d, "other");
  return {e.wrapped(e.apply(Opcode::kSub, b, a))};
}
Results mul(Emitter& e) {
  const Domain d = e.domain();
  const Register a = e.operand(0, d, "self"), b = e.operand(1, d, "other");
  return {e.wrapped(e.apply(e.out() == Type::kBool ? Opcode::kAnd : Opcode::kMul, a, b))};
}
Results div(Emitter& e) {
  const Domain d = e.domain();
  return {e.apply(Opcode::kDiv, e.operand(0, d, "self"), e.operand(1, d, "other"))};
}
Results div_mode(Emitter& e) {
  const std::string_view mode = e.node().text_or("rounding_mode", "");
  const Opcode op = mode == "floor"   ? Opcode::kFloorDiv
                    : mode == "trunc" ? Opcode::kTruncDiv
                                      : Opcode::kDiv;
  const Domain d = e.domain();
  return {e.wrapped(e.apply(op, e.operand(0, d, "self"), e.operand(1, d, "other")))};
}
Results reciprocal(Emitter& e) { return one<Opcode::kReciprocal>(e); }

Results pow_scalar(Emitter& e) {
  const Domain d = e.domain();
  const double exponent = e.real("exponent", 1);
  const Register x = e.operand(0, d);
  const bool real = d != Domain::kI64;
  if (exponent == 1) return {e.apply(Opcode::kCopy, x)};
  if (exponent == 2) return {e.wrapped(e.apply(Opcode::kSquare, x))};
  if (exponent == 3) return {e.wrapped(e.apply(Opcode::kMul, e.apply(Opcode::kSquare, x), x))};
  if (real && exponent == 0.5) return {e.apply(Opcode::kSqrt, x)};
  if (real && exponent == -0.5) return {e.apply(Opcode::kRsqrt, x)};
  if (real && exponent == -1) return {e.apply(Opcode::kReciprocal, x)};
  if (real && exponent == -2) return {e.apply(Opcode::kReciprocal, e.apply(Opcode::kSquare, x))};
  return {e.wrapped(e.apply(Opcode::kPow, x, e.attribute("exponent", 1, d)))};
}
Results pow_tensor(Emitter& e) {
  const Domain d = e.domain();
  return {e.wrapped(e.apply(Opcode::kPow, e.operand(0, d), e.operand(1, d)))};
}
Results pow_from_scalar(Emitter& e) {
  const Domain d = e.domain();
  return {e.wrapped(e.apply(Opcode::kPow, e.attribute("self", 1, d), e.operand(0, d)))};
}

Results where(Emitter& e) {
  const Domain d = e.domain();
  const Register condition = e.operand(0, domain_of(e.type(0)));
  // The condition is a truth value in some domain; 0 and 1 convert exactly.
  return {e.apply(Opcode::kWhere, e.program().convert(condition, d), e.operand(1, d, "self"),
                  e.operand(2, d, "other"))};
}
Results where_self_scalar(Emitter& e) {  // where.ScalarSelf: condition, other
  const Domain d = e.domain();
  return {e.apply(Opcode::kWhere, e.operand(0, d), e.attribute("self", 0, d), e.operand(1, d))};
}
Results where_other_scalar(Emitter& e) {
  const Domain d = e.domain();
  return {e.apply(Opcode::kWhere, e.operand(0, d), e.operand(1, d), e.attribute("other", 0, d))};
}
Results where_scalars(Emitter& e) {
  const Domain d = e.domain();
  return {e.apply(Opcode::kWhere, e.operand(0, d), e.attribute("self", 0, d),
                  e.attribute("other", 0, d))};
}
Results masked_fill(Emitter& e) {
  const Domain d = e.domain();
  return {e.apply(Opcode::kWhere, e.operand(1, d), e.operand(2, d, "value"), e.operand(0, d))};
}
Results clamp(Emitter& e) {
  const Domain d = e.domain();
  Register r = e.operand(0, d);
  if (e.present("min")) r = e.apply(Opcode::kMax, r, e.attribute("min", 0, d));
  if (e.present("max")) r = e.apply(Opcode::kMin, r, e.attribute("max", 0, d));
  return {e.apply(Opcode::kCopy, r)};
}
Results clamp_tensor(Emitter& e) {
  const Domain d = e.domain();
  Register r = e.operand(0, d);
  if (e.has(1)) r = e.apply(Opcode::kMax, r, e.operand(1, d));
  if (e.has(2)) r = e.apply(Opcode::kMin, r, e.operand(2, d));
  return {e.apply(Opcode::kCopy, r)};
}
Results clamp_min(Emitter& e) {
  const Domain d = e.domain();
  return {e.apply(Opcode::kMax, e.operand(0, d), e.operand(1, d, "min"))};
}
Results clamp_max(Emitter& e) {
  const Domain d = e.domain();
  return {e.apply(Opcode::kMin, e.operand(0, d), e.operand(1, d, "max"))};
}

Results to_copy(Emitter& e) {
  const Type from = e.type(0), to = e.out();
  Register r = e.operand(0, domain_of(from));
  if (to == Type::kBool)
    return {from == Type::kBool ? e.apply(Opcode::kCopy, r) : e.apply(Opcode::kTruth, r)};
  const Domain d = domain_of(to);
  if (is_integral(to) && is_float(from)) r = e.apply(Opcode::kTrunc, r);
  r = e.program().convert(r, d);
  // Integers of 32 bits and fewer are made from one of 32, which out of range is the most negative.
  if (is_integral(to) && to != Type::kI64 && is_float(from)) r = e.apply(Opcode::kToI32, r);
  if (to == from) return {e.apply(Opcode::kCopy, r)};
  if (to == Type::kBF16) return {e.apply(Opcode::kToBF16, r)};
  if (to == Type::kF16) return {e.apply(Opcode::kToF16, r)};
  return {is_integral(to) ? e.wrapped(r) : e.apply(Opcode::kCopy, r)};
}
Results copy_of(Emitter& e) { return {e.apply(Opcode::kCopy, e.operand(0, e.domain()))}; }
Results copy_source(Emitter& e) {  // aten.copy: self, src
  const Domain d = e.domain();
  if (e.out() == Type::kBool && e.type(1) != Type::kBool)
    return {e.apply(Opcode::kTruth, e.operand(1, domain_of(e.type(1))))};
  return {e.apply(Opcode::kCopy, e.operand(1, d))};
}
Results lerp(Emitter& e) {
  const Domain d = e.domain();
  const Register a = e.operand(0, d), b = e.operand(1, d), w = e.operand(2, d, "weight");
  // From the end that is nearer, so that the weight one gives the other end.
  const Register way = e.apply(Opcode::kSub, b, a), left = e.apply(Opcode::kSub, e.number(1, d), w);
  const Register is_low = e.apply(Opcode::kLt, e.apply(Opcode::kAbs, w), e.number(0.5, d));
  return {e.apply(Opcode::kWhere, is_low, e.apply(Opcode::kFma, w, way, a),
                  e.apply(Opcode::kSub, b, e.apply(Opcode::kMul, way, left)))};
}
Results addcmul(Emitter& e) {
  const Domain d = e.domain();
  const Register product =
      e.apply(Opcode::kMul, scaled(e, e.operand(1, d), "value"), e.operand(2, d));
  return {e.wrapped(e.apply(Opcode::kAdd, e.operand(0, d), product))};
}
Results addcdiv(Emitter& e) {
  const Domain d = e.domain();
  const Register ratio =
      e.apply(Opcode::kDiv, scaled(e, e.operand(1, d), "value"), e.operand(2, d));
  return {e.apply(Opcode::kAdd, e.operand(0, d), ratio)};
}
Results nan_to_num(Emitter& e) {
  const Domain d = e.domain();
  const Register x = e.operand(0, d);
  if (!is_float(e.out())) return {e.apply(Opcode::kCopy, x)};
  const double top = e.out() == Type::kF64    ? std::numeric_limits<double>::max()
                     : e.out() == Type::kF16  ? 65504.0
                     : e.out() == Type::kBF16 ? 0x1.FEp127
                                              : double{std::numeric_limits<float>::max()};
  const double infinity = std::numeric_limits<double>::infinity();
  Register r = e.apply(Opcode::kWhere, e.apply(Opcode::kIsNan, x), e.attribute("nan", 0, d), x);
  r = e.apply(Opcode::kWhere, e.apply(Opcode::kEq, x, e.number(infinity, d)),
              e.attribute("posinf", top, d), r);
  return {e.apply(Opcode::kWhere, e.apply(Opcode::kEq, x, e.number(-infinity, d)),
                  e.attribute("neginf", -top, d), r)};
}
Results bitwise_not(Emitter& e) {
  const Register x = e.operand(0, Domain::kI64);
  return {e.out() == Type::kBool ? e.apply(Opcode::kLogicalNot, x)
                                 : e.wrapped(e.apply(Opcode::kBitNot, x))};
}
Results frac(Emitter& e) {
  const Register x = e.operand(0, e.domain());
  return {e.apply(Opcode::kSub, x, e.apply(Opcode::kTrunc, x))};
}
Results deg2rad(Emitter& e) {
  const Domain d = e.domain();
  return {e.apply(Opcode::kMul, e.operand(0, d), e.number(0.017453292519943295, d))};
}
Results rad2deg(Emitter& e) {
  const Domain d = e.domain();
  return {e.apply(Opcode::kMul, e.operand(0, d), e.number(57.29577951308232, d))};
}
Results infinite(Emitter& e, double sign) {
  const Domain d = domain_of(e.type(0));
  const Register x = e.operand(0, d);
  if (d == Domain::kI64) return {e.apply(Opcode::kIsInf, x)};
  return {e.apply(Opcode::kEq, x, e.number(sign * std::numeric_limits<double>::infinity(), d))};
}
Results isposinf(Emitter& e) { return infinite(e, 1); }
Results isneginf(Emitter& e) { return infinite(e, -1); }
Results logit(Emitter& e) {
  const Domain d = e.domain();
  Register x = e.operand(0, d);
  if (e.present("eps")) {
    // Not a clamp: above one half the bounds change places, and the lower one is asked first.
    const Register low = e.attribute("eps", 0, d),
                   high = e.apply(Opcode::kSub, e.number(1, d), low);
    const Register rest = e.apply(Opcode::kWhere, e.apply(Opcode::kLt, high, x), high, x);
    x = e.apply(Opcode::kWhere, e.apply(Opcode::kLt, x, low), low, rest);
  }
  const Register odds = e.apply(Opcode::kDiv, x, e.apply(Opcode::kSub, e.number(1, d), x));
  return {e.apply(Opcode::kLog, odds)};
}
Results xlog1py(Emitter& e) {
  const Domain d = e.domain();
  const Register a = e.operand(0, d, "self"), b = e.operand(1, d, "other");
  const Register y = e.apply(Opcode::kMul, a, e.apply(Opcode::kLog1p, b));
  const Register zero = e.apply(Opcode::kEq, a, e.number(0, d));
  const Register kept = e.apply(Opcode::kWhere, zero, e.number(0, d), y);
  return {e.apply(Opcode::kWhere, e.apply(Opcode::kIsNan, b), b, kept)};
}
Results sinc(Emitter& e) {
  const Domain d = e.domain();
  const Register x = e.operand(0, d), t = e.apply(Opcode::kMul, x, e.number(M_PI, d));
  return {e.apply(Opcode::kWhere, e.apply(Opcode::kEq, x, e.number(0, d)), e.number(1, d),
                  e.apply(Opcode::kDiv, e.apply(Opcode::kSin, t), t))};
}
Results masked_scale(Emitter& e) {  // native_dropout_backward: grad, mask; scale
  const Domain d = e.domain();
  const Register g = e.apply(Opcode::kMul, e.operand(0, d), e.operand(1, d));
  return {e.apply(Opcode::kMul, g, e.attribute("scale", 1, d))};
}

using K = ProgramOp;
#define BP_FLOAT_ONE(aten, opcode) {"aten." aten, one<Opcode::k##opcode>, K::kFloatsOnly},
constexpr ProgramOp kOps[] = {
    BP_FLOAT_ONE("sqrt", Sqrt) BP_FLOAT_ONE("rsqrt", Rsqrt) BP_FLOAT_ONE("exp", Exp) BP_FLOAT_ONE(
        "exp2", Exp2) BP_FLOAT_ONE("special_exp2", Exp2) BP_FLOAT_ONE("expm1", Expm1)
        BP_FLOAT_ONE("special_expm1", Expm1) BP_FLOAT_ONE("log", Log) BP_FLOAT_ONE("log2", Log2)
            BP_FLOAT_ONE("log10", Log10) BP_FLOAT_ONE("log1p", Log1p) BP_FLOAT_ONE("tanh", Tanh)
                BP_FLOAT_ONE("erf", Erf) BP_FLOAT_ONE("special_erf", Erf) BP_FLOAT_ONE("erfc", Erfc)
                    BP_FLOAT_ONE("special_erfc", Erfc) BP_FLOAT_ONE("erfinv", Erfinv)
                        BP_FLOAT_ONE("sin", Sin) BP_FLOAT_ONE("cos", Cos) BP_FLOAT_ONE("tan", Tan)
                            BP_FLOAT_ONE("asin", Asin) BP_FLOAT_ONE("acos", Acos) BP_FLOAT_ONE(
                                "atan", Atan) BP_FLOAT_ONE("sinh", Sinh) BP_FLOAT_ONE("cosh", Cosh)
                                BP_FLOAT_ONE("asinh", Asinh) BP_FLOAT_ONE("acosh", Acosh)
                                    BP_FLOAT_ONE("atanh", Atanh) BP_FLOAT_ONE("lgamma", Lgamma)
                                        BP_FLOAT_ONE("digamma", Digamma)
                                            BP_FLOAT_ONE("sigmoid", Sigmoid)
                                                BP_FLOAT_ONE("special_expit", Sigmoid){
                                                    "aten.reciprocal", reciprocal, K::kFloatsOnly},
    {"aten.neg", one_wrapped<Opcode::kNeg>, K::kPointwise},
    {"aten.abs", one_wrapped<Opcode::kAbs>, K::kPointwise},
    {"aten.absolute", one_wrapped<Opcode::kAbs>, K::kPointwise},
    {"aten.square", one_wrapped<Opcode::kSquare>, K::kPointwise},
    {"aten.sign", one<Opcode::kSign>, K::kPointwise},
    {"aten.sgn", one<Opcode::kSign>, K::kPointwise},
    {"aten.floor", one<Opcode::kFloor>, K::kPointwise},
    {"aten.ceil", one<Opcode::kCeil>, K::kPointwise},
    {"aten.trunc", one<Opcode::kTrunc>, K::kPointwise},
    {"aten.fix", one<Opcode::kTrunc>, K::kPointwise},
    {"aten.round", one<Opcode::kRound>, K::kPointwise},
    {"aten.frac", frac, K::kFloatsOnly},
    {"aten.positive", copy_of, K::kPointwise},
    {"aten.clone", copy_of, K::kPointwise},
    {"aten.contiguous", copy_of, K::kPointwise},
    {"aten.lift_fresh_copy", copy_of, K::kPointwise},
    {"aten._to_copy", to_copy, K::kPointwise},
    {"aten.copy", copy_source, K::kPointwise},
    {"aten.deg2rad", deg2rad, K::kFloatsOnly},
    {"aten.rad2deg", rad2deg, K::kFloatsOnly},
    {"aten.isnan", predicate<Opcode::kIsNan>, K::kPointwise},
    {"aten.isinf", predicate<Opcode::kIsInf>, K::kPointwise},
    {"aten.isposinf", isposinf, K::kPointwise},
    {"aten.isneginf", isneginf, K::kPointwise},
    {"aten.signbit", predicate<Opcode::kSignbit>, K::kPointwise},
    {"aten.logical_not", predicate<Opcode::kLogicalNot>, K::kPointwise},
    {"aten.bitwise_not", bitwise_not, K::kPointwise},
    {"aten.add.Tensor", add, K::kPointwise},
    {"aten.add.Scalar", add, K::kPointwise},
    {"aten.sub.Tensor", sub, K::kPointwise},
    {"aten.sub.Scalar", sub, K::kPointwise},
    {"aten.rsub.Tensor", rsub, K::kPointwise},
    {"aten.rsub.Scalar", rsub, K::kPointwise},
    {"aten.mul.Tensor", mul, K::kPointwise},
    {"aten.mul.Scalar", mul, K::kPointwise},
    {"aten.div.Tensor", div, K::kFloatsOnly},
    {"aten.div.Scalar", div, K::kFloatsOnly},
    {"aten.true_divide.Tensor", div, K::kFloatsOnly},
    {"aten.div.Tensor_mode", div_mode, K::kPointwise},
    {"aten.div.Scalar_mode", div_mode, K::kPointwise},
    {"aten.floor_divide", two<Opcode::kFloorDiv>, K::kPointwise},
    {"aten.floor_divide.Scalar", two<Opcode::kFloorDiv>, K::kPointwise},
    {"aten.remainder.Tensor", two<Opcode::kRemainder>, K::kPointwise},
    {"aten.remainder.Scalar", two<Opcode::kRemainder>, K::kPointwise},
    {"aten.remainder.Scalar_Tensor", reversed<Opcode::kRemainder>, K::kPointwise},
    {"aten.fmod.Tensor", two<Opcode::kFmod>, K::kPointwise},
    {"aten.fmod.Scalar", two<Opcode::kFmod>, K::kPointwise},
    {"aten.pow.Tensor_Scalar", pow_scalar, K::kPointwise},
    {"aten.pow.Tensor_Tensor", pow_tensor, K::kPointwise},
    {"aten.pow.Scalar", pow_from_scalar, K::kPointwise},
    {"aten.float_power.Tensor_Scalar", pow_scalar, K::kFloatsOnly},
    {"aten.float_power.Tensor_Tensor", pow_tensor, K::kFloatsOnly},
    {"aten.minimum", two<Opcode::kMin>, K::kPointwise},
    {"aten.maximum", two<Opcode::kMax>, K::kPointwise},
    {"aten.min.other", two<Opcode::kMin>, K::kPointwise},
    {"aten.max.other", two<Opcode::kMax>, K::kPointwise},
    {"aten.fmin", two<Opcode::kFmin>, K::kPointwise},
    {"aten.fmax", two<Opcode::kFmax>, K::kPointwise},
    {"aten.atan2", two<Opcode::kAtan2>, K::kFloatsOnly},
    {"aten.hypot", two<Opcode::kHypot>, K::kFloatsOnly},
    {"aten.copysign.Tensor", two<Opcode::kCopysign>, K::kFloatsOnly},
    {"aten.copysign.Scalar", two<Opcode::kCopysign>, K::kFloatsOnly},
    {"aten.nextafter", two<Opcode::kNextafter>, K::kFloatsOnly},
    {"aten.xlogy.Tensor", two<Opcode::kXlogy>, K::kFloatsOnly},
    {"aten.xlogy.Scalar_Other", two<Opcode::kXlogy>, K::kFloatsOnly},
    {"aten.xlogy.Scalar_Self", reversed<Opcode::kXlogy>, K::kFloatsOnly},
    {"aten.special_xlog1py", xlog1py, K::kFloatsOnly},
    {"aten.logaddexp", two<Opcode::kLogaddexp>, K::kFloatsOnly},
    {"aten.logaddexp2", two<Opcode::kLogaddexp2>, K::kFloatsOnly},
    {"aten.heaviside", two<Opcode::kHeaviside>, K::kPointwise},
    {"aten.gcd", two<Opcode::kGcd>, K::kPointwise},
    {"aten.logit", logit, K::kFloatsOnly},
    {"aten.special_logit", logit, K::kFloatsOnly},
    {"aten.sinc", sinc, K::kFloatsOnly},
    {"aten.eq.Tensor", compare<Opcode::kEq>, K::kPointwise},
    {"aten.eq.Scalar", compare<Opcode::kEq>, K::kPointwise},
    {"aten.ne.Tensor", compare<Opcode::kNe>, K::kPointwise},
    {"aten.ne.Scalar", compare<Opcode::kNe>, K::kPointwise},
    {"aten.lt.Tensor", compare<Opcode::kLt>, K::kPointwise},
    {"aten.lt.Scalar", compare<Opcode::kLt>, K::kPointwise},
    {"aten.le.Tensor", compare<Opcode::kLe>, K::kPointwise},
    {"aten.le.Scalar", compare<Opcode::kLe>, K::kPointwise},
    {"aten.gt.Tensor", compare<Opcode::kGt>, K::kPointwise},
    {"aten.gt.Scalar", compare<Opcode::kGt>, K::kPointwise},
    {"aten.ge.Tensor", compare<Opcode::kGe>, K::kPointwise},
    {"aten.ge.Scalar", compare<Opcode::kGe>, K::kPointwise},
    {"aten.logical_and", logical<Opcode::kAnd>, K::kPointwise},
    {"aten.logical_or", logical<Opcode::kOr>, K::kPointwise},
    {"aten.logical_xor", logical<Opcode::kXor>, K::kPointwise},
    {"aten.bitwise_and.Tensor", bits<Opcode::kBitAnd, Opcode::kAnd>, K::kPointwise},
    {"aten.bitwise_and.Scalar", bits<Opcode::kBitAnd, Opcode::kAnd>, K::kPointwise},
    {"aten.bitwise_and.Scalar_Tensor", bits_reversed<Opcode::kBitAnd, Opcode::kAnd>, K::kPointwise},
    {"aten.bitwise_or.Tensor", bits<Opcode::kBitOr, Opcode::kOr>, K::kPointwise},
    {"aten.bitwise_or.Scalar", bits<Opcode::kBitOr, Opcode::kOr>, K::kPointwise},
    {"aten.bitwise_or.Scalar_Tensor", bits_reversed<Opcode::kBitOr, Opcode::kOr>, K::kPointwise},
    {"aten.bitwise_xor.Tensor", bits<Opcode::kBitXor, Opcode::kXor>, K::kPointwise},
    {"aten.bitwise_xor.Scalar", bits<Opcode::kBitXor, Opcode::kXor>, K::kPointwise},
    {"aten.bitwise_xor.Scalar_Tensor", bits_reversed<Opcode::kBitXor, Opcode::kXor>, K::kPointwise},
    {"aten.bitwise_left_shift.Tensor", two<Opcode::kShiftLeft>, K::kPointwise},
    {"aten.bitwise_left_shift.Tensor_Scalar", two<Opcode::kShiftLeft>, K::kPointwise},
    {"aten.bitwise_right_shift.Tensor", two<Opcode::kShiftRight>, K::kPointwise},
    {"aten.bitwise_right_shift.Tensor_Scalar", two<Opcode::kShiftRight>, K::kPointwise},
    {"aten.where.self", where, K::kPointwise},
    {"aten.where.ScalarSelf", where_self_scalar, K::kPointwise},
    {"aten.where.ScalarOther", where_other_scalar, K::kPointwise},
    {"aten.where.Scalar", where_scalars, K::kPointwise},
    {"aten.masked_fill.Scalar", masked_fill, K::kPointwise},
    {"aten.masked_fill.Tensor", masked_fill, K::kPointwise},
    {"aten.clamp", clamp, K::kPointwise},
    {"aten.clamp.Tensor", clamp_tensor, K::kPointwise},
    {"aten.clamp_min", clamp_min, K::kPointwise},
    {"aten.clamp_min.Tensor", clamp_min, K::kPointwise},
    {"aten.clamp_max", clamp_max, K::kPointwise},
    {"aten.clamp_max.Tensor", clamp_max, K::kPointwise},
    {"aten.lerp.Scalar", lerp, K::kFloatsOnly},
    {"aten.lerp.Tensor", lerp, K::kFloatsOnly},
    {"aten.addcmul", addcmul, K::kPointwise},
    {"aten.addcdiv", addcdiv, K::kFloatsOnly},
    {"aten.nan_to_num", nan_to_num, K::kPointwise},
    {"aten.native_dropout_backward", masked_scale, K::kFloatsOnly},
    {"aten._masked_scale", masked_scale, K::kFloatsOnly},
};

}  // namespace

std::span<const ProgramOp> pointwise_program_ops() { return kOps; }

}  // namespace backplane::onednn
