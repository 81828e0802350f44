// Pointwise operators that are one instruction, or need one that kernelgen's expressions have not.
// All others are lowered from those (formula.h).
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
  const Type t = e.out();
  return {e.wrapped(e.apply(kOp, e.promoted(0, t, "self"), e.promoted(1, t, "other")))};
}
template <Opcode kOp>
Results compare(Emitter& e) {
  const Type t = e.common_type(0, 1, "other");
  return {e.apply(kOp, e.promoted(0, t, "self"), e.promoted(1, t, "other"))};
}
template <Opcode kOp>
Results quotient(Emitter& e) {
  return {e.wrapped(e.apply(kOp, e.promoted(0, e.out(), "self"), e.scale(1, "other")))};
}
// Overloads whose scalar comes first: the tensor is operand 0.
template <Opcode kOp>
Results reversed(Emitter& e) {
  const Domain d = e.domain();
  return {e.wrapped(e.apply(kOp, e.attribute("self", 0, d), e.operand(0, d)))};
}

Results div_mode(Emitter& e) {
  const std::string_view mode = e.node().text_or("rounding_mode", "");
  if (mode == "floor") return quotient<Opcode::kFloorDiv>(e);
  return mode == "trunc" ? quotient<Opcode::kTruncDiv>(e) : quotient<Opcode::kDiv>(e);
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
  const bool takes_roots = real && e.out() != Type::kF16;  // in PyTorch
  if (takes_roots && exponent == 0.5) return {e.apply(Opcode::kSqrt, x)};
  if (takes_roots && exponent == -0.5) return {e.apply(Opcode::kRsqrt, x)};
  if (real && exponent == -1) return {e.apply(Opcode::kReciprocal, x)};
  if (real && exponent == -2) return {e.apply(Opcode::kReciprocal, e.apply(Opcode::kSquare, x))};
  return {e.wrapped(e.apply(Opcode::kPow, x, e.attribute("exponent", 1, d)))};
}
Results pow_tensor(Emitter& e) {
  return {e.wrapped(e.apply(Opcode::kPow, e.promoted(0, e.out()), e.promoted(1, e.out())))};
}
Results pow_from_scalar(Emitter& e) {
  const Domain d = e.domain();
  return {e.wrapped(e.apply(Opcode::kPow, e.attribute("self", 1, d), e.operand(0, d)))};
}

// Never the operand's register.
template <std::size_t kOperand>
Results conversion(Emitter& e) {
  const Type from = e.type(kOperand), to = e.out();
  const Register r = e.converted(kOperand);
  return {holds(to, from) && r == e.operand(kOperand, e.domain()) ? e.apply(Opcode::kCopy, r) : r};
}
Results copy_of(Emitter& e) { return {e.apply(Opcode::kCopy, e.operand(0, e.domain()))}; }
Results gelu(Emitter& e) {
  const bool tanh = e.node().text_or("approximate", "none") == "tanh";
  return {e.apply(tanh ? Opcode::kGeluTanh : Opcode::kGelu, e.operand(0, e.domain()))};
}
Results gelu_backward(Emitter& e) {
  const bool tanh = e.node().text_or("approximate", "none") == "tanh";
  const Domain d = e.domain();
  return {e.apply(tanh ? Opcode::kGeluTanhBackward : Opcode::kGeluBackward, e.operand(0, d),
                  e.operand(1, d))};
}
Results silu_backward(Emitter& e) {
  const Domain d = e.domain();
  return {e.apply(Opcode::kSiluBackward, e.operand(0, d), e.operand(1, d))};
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
    {"aten.relu", one<Opcode::kRelu>, K::kPointwise},
    {"aten.gelu", gelu, K::kFloatsOnly},
    {"aten.gelu_backward", gelu_backward, K::kFloatsOnly},
    {"aten.silu", one<Opcode::kSilu>, K::kFloatsOnly},
    {"aten.silu_backward", silu_backward, K::kFloatsOnly},
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
    {"aten.positive", copy_of, K::kPointwise},
    {"aten.clone", copy_of, K::kPointwise},
    {"aten.contiguous", copy_of, K::kPointwise},
    {"aten.lift_fresh_copy", copy_of, K::kPointwise},
    {"aten._to_copy", conversion<0>, K::kPointwise},
    {"aten.copy", conversion<1>, K::kPointwise},
    {"aten.isnan", predicate<Opcode::kIsNan>, K::kPointwise},
    {"aten.isinf", predicate<Opcode::kIsInf>, K::kPointwise},
    {"aten.signbit", predicate<Opcode::kSignbit>, K::kPointwise},
    {"aten.div.Tensor", quotient<Opcode::kDiv>, K::kFloatsOnly},
    {"aten.div.Scalar", quotient<Opcode::kDiv>, K::kFloatsOnly},
    {"aten.true_divide.Tensor", quotient<Opcode::kDiv>, K::kFloatsOnly},
    {"aten.div.Tensor_mode", div_mode, K::kPointwise},
    {"aten.div.Scalar_mode", div_mode, K::kPointwise},
    {"aten.floor_divide", quotient<Opcode::kFloorDiv>, K::kPointwise},
    {"aten.floor_divide.Scalar", quotient<Opcode::kFloorDiv>, K::kPointwise},
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
    {"aten.logaddexp", two<Opcode::kLogaddexp>, K::kFloatsOnly},
    {"aten.logaddexp2", two<Opcode::kLogaddexp2>, K::kFloatsOnly},
    {"aten.heaviside", two<Opcode::kHeaviside>, K::kPointwise},
    {"aten.gcd", two<Opcode::kGcd>, K::kPointwise},
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
    {"aten.bitwise_left_shift.Tensor", two<Opcode::kShiftLeft>, K::kPointwise},
    {"aten.bitwise_left_shift.Tensor_Scalar", two<Opcode::kShiftLeft>, K::kPointwise},
    {"aten.bitwise_right_shift.Tensor", two<Opcode::kShiftRight>, K::kPointwise},
    {"aten.bitwise_left_shift.Scalar_Tensor", reversed<Opcode::kShiftLeft>, K::kPointwise},
    {"aten.bitwise_right_shift.Tensor_Scalar", two<Opcode::kShiftRight>, K::kPointwise},
    {"aten.bitwise_right_shift.Scalar_Tensor", reversed<Opcode::kShiftRight>, K::kPointwise},
    {"aten.__lshift__.Tensor", two<Opcode::kShiftLeft>, K::kPointwise},
    {"aten.__lshift__.Scalar", two<Opcode::kShiftLeft>, K::kPointwise},
    {"aten.__rshift__.Tensor", two<Opcode::kShiftRight>, K::kPointwise},
    {"aten.__rshift__.Scalar", two<Opcode::kShiftRight>, K::kPointwise},
};

}  // namespace

std::span<const ProgramOp> pointwise_program_ops() { return kOps; }

}  // namespace backplane::onednn
