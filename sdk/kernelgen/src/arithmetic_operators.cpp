// Arithmetic, comparisons, logic, rounding, conversions, elementary functions.
#include <cmath>
#include <limits>
#include <numbers>

#include "operator_support.hpp"

namespace backplane::kernelgen {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Of one operand, in the result's type.
template <Op kOp>
Results one(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {m.wrap(e.unary(kOp, m.in(0, m.type())))};
}
template <Op kOp>
Results two(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {m.wrap(e.binary(kOp, m.in(0, m.type(), "self"), m.in(1, m.type(), "other")))};
}
// Overloads whose scalar comes first: the tensor is operand 0.
template <Op kOp>
Results reversed(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {m.wrap(e.binary(kOp, m.attribute("self", 0, m.type()), m.in(0, m.type())))};
}
template <Op kOp, bool kSwapped>
Results compare(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Type t = m.common(0, 1, "other");
  const auto read = [&](std::size_t i, std::string_view name) {
    if (!s.has(i)) return m.attribute(name, 0, t);
    return s.has(1 - i) ? m.promoted(i, t, s.operand_storage(1 - i)) : m.unpromoted(i, t);
  };
  const Expr a = read(0, "self"), b = read(1, "other");
  return {kSwapped ? e.binary(kOp, b, a) : e.binary(kOp, a, b)};
}
template <Op kOp>
Results logical(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {e.binary(kOp, m.in(0, Type::kBool), m.in(1, Type::kBool))};
}

Expr scaled(Emitter& m, Expr x, std::string_view attribute) {
  return m.real(attribute, 1) == 1 ? x : m.e.mul(x, m.attribute(attribute, 1, m.type()));
}
Results add(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr a = m.in(0, m.type(), "self"), b = scaled(m, m.in(1, m.type(), "other"), "alpha");
  return {m.wrap(e.binary(m.type() == Type::kBool ? Op::kOr : Op::kAdd, a, b))};
}
Results sub(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr a = m.in(0, m.type(), "self"), b = scaled(m, m.in(1, m.type(), "other"), "alpha");
  return {m.wrap(e.sub(a, b))};
}
Results rsub(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr a = scaled(m, m.in(0, m.type()), "alpha"), b = m.in(1, m.type(), "other");
  return {m.wrap(e.sub(b, a))};
}
Results mul(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr a = m.in(0, m.type(), "self"), b = m.scale(1, m.type(), "other");
  return {m.wrap(e.binary(m.type() == Type::kBool ? Op::kAnd : Op::kMul, a, b))};
}

// Rounded towards minus infinity; floats as Python's divmod, so that the quotient matches the
// remainder.
Expr floor_quotient(Emitter& m, Expr a, Expr b) {
  Expressions& e = m.e;
  const Type t = m.type();
  if (!is_float(t)) {
    const Expr q = e.div(a, b), r = e.sub(a, e.mul(q, b)), zero = e.integer(t, 0);
    const Expr low =
        e.both(e.binary(Op::kNe, r, zero),
               e.binary(Op::kNe, e.binary(Op::kLt, r, zero), e.binary(Op::kLt, b, zero)));
    return e.sub(q, e.cast(low, t));
  }
  const Expr zero = e.constant(t, 0);
  const Expr mod = e.binary(Op::kFmod, a, b);
  Expr div = e.div(e.sub(a, mod), b);
  const Expr adjust =
      e.both(e.binary(Op::kNe, mod, zero),
             e.binary(Op::kNe, e.binary(Op::kLt, b, zero), e.binary(Op::kLt, mod, zero)));
  div = e.select(adjust, e.sub(div, e.constant(t, 1)), div);
  const Expr floored = e.unary(Op::kFloor, div);
  const Expr nearest = e.select(e.binary(Op::kLt, e.constant(t, 0.5), e.sub(div, floored)),
                                e.add(floored, e.constant(t, 1)), floored);
  const Expr y = e.select(e.binary(Op::kEq, div, zero), e.mul(e.div(a, b), zero), nearest);
  return e.select(e.binary(Op::kEq, b, zero), e.div(a, b), y);
}
Results div(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Type t = m.type();
  const Expr a = m.in(0, t, "self"), b = m.scale(1, t, "other");
  const std::string_view mode = s.text("rounding_mode");
  if (mode == "floor") return {m.wrap(floor_quotient(m, a, b))};
  const Expr q = e.div(a, b);
  return {m.wrap(mode == "trunc" ? e.unary(Op::kTrunc, q) : q)};
}
Results floor_divide(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {m.wrap(floor_quotient(m, m.in(0, m.type()), m.scale(1, m.type(), "other")))};
}
Expr remainder_of(Emitter& m, Expr a, Expr b) {
  Expressions& e = m.e;
  const Type t = m.type();
  const Expr zero = e.constant(t, 0);
  const Expr r = e.binary(is_float(t) ? Op::kFmod : Op::kMod, a, b);
  const Expr other_sign =
      e.both(e.binary(Op::kNe, r, zero),
             e.binary(Op::kNe, e.binary(Op::kLt, r, zero), e.binary(Op::kLt, b, zero)));
  return m.wrap(e.select(other_sign, e.add(r, b), r));
}
Results remainder(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {remainder_of(m, m.in(0, m.type(), "self"), m.in(1, m.type(), "other"))};
}
Results remainder_from(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {remainder_of(m, m.attribute("self", 0, m.type()), m.in(0, m.type()))};
}
Results fmod(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {m.wrap(e.binary(is_float(m.type()) ? Op::kFmod : Op::kMod, m.in(0, m.type()),
                          m.in(1, m.type(), "other")))};
}
Results reciprocal(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {e.div(m.number(1), m.in(0, m.type()))};
}
Results square(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr x = m.in(0, m.type());
  return {m.wrap(e.mul(x, x))};
}
Results pow_scalar(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Type t = m.type();
  const double p = m.real("exponent", 1);
  const Expr x = m.in(0, t);
  if (p == 0) return {m.number(1)};
  if (p == std::floor(p) && p > 0 && p <= (is_float(t) ? 3 : 64)) {
    Expr y = x;
    for (int i = 1; i < static_cast<int>(p); ++i) y = e.mul(y, x);
    return {m.wrap(y)};
  }
  if (is_float(t)) {
    const bool takes_roots = s.result_storage(0) != Storage::kF16;  // in PyTorch
    if (p == 0.5 && takes_roots) return {e.unary(Op::kSqrt, x)};
    if (p == -0.5 && takes_roots) return {e.unary(Op::kRsqrt, x)};
    if (p == -1) return {e.div(m.number(1), x)};
    if (p == -2) return {e.div(m.number(1), e.mul(x, x))};
  }
  return {m.wrap(e.binary(Op::kPow, x, e.constant(t, p)))};
}
Results pow_tensor(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {e.binary(Op::kPow, m.in(0, m.type()), m.in(1, m.type()))};
}
Results pow_from(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {e.binary(Op::kPow, m.attribute("self", 1, m.type()), m.in(0, m.type()))};
}

Results where(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {e.select(m.in(0, Type::kBool), m.in(1, m.type(), "self"), m.in(2, m.type(), "other"))};
}
Results where_self(Expressions& e, OperatorSource& s) {  // condition, other
  Emitter m{e, s};
  return {e.select(m.in(0, Type::kBool), m.attribute("self", 0, m.type()), m.in(1, m.type()))};
}
Results masked_fill(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {e.select(m.in(1, Type::kBool), m.in(2, m.type(), "value"), m.in(0, m.type()))};
}
Results clamp(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  Expr x = m.in(0, m.type());
  if (s.has(1) || s.number("min")) x = m.at_least(m.in(1, m.type(), "min"), x);
  if (s.has(2) || s.number("max")) x = m.at_most(m.in(2, m.type(), "max"), x);
  return {x};
}
Results clamp_min(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {m.at_least(m.in(1, m.type(), "min"), m.in(0, m.type()))};
}
Results clamp_max(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {m.at_most(m.in(1, m.type(), "max"), m.in(0, m.type()))};
}
// The number where one operand is NaN, the first of two zeros.
template <Op kOp>
Results number_of(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr a = m.in(0, m.type()), b = m.in(1, m.type());
  const Expr both =
      e.select(kOp == Op::kMax ? e.binary(Op::kLe, b, a) : e.binary(Op::kLe, a, b), a, b);
  if (!is_float(m.type())) return {both};
  return {e.select(e.binary(Op::kNe, a, a), b, e.select(e.binary(Op::kNe, b, b), a, both))};
}
Results convert(Expressions& e, OperatorSource& s) { return {Emitter{e, s}.converted(0)}; }
Results copy(Expressions& e, OperatorSource& s) {  // self, src
  return {Emitter{e, s}.converted(1)};
}
Results sign(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Type t = m.type();
  if (t == Type::kBool) return {m.in(0, t)};
  const Expr x = m.in(0, t), zero = e.constant(t, 0);
  // Some compilers take the difference of both comparisons for that of values that never wrapped.
  if (!is_float(t))
    return {e.binary(Op::kMin, e.binary(Op::kMax, x, e.constant(t, -1)), e.constant(t, 1))};
  return {e.sub(e.cast(e.binary(Op::kLt, zero, x), t), e.cast(e.binary(Op::kLt, x, zero), t))};
}
Results signbit(Expressions& e, OperatorSource& s) { return {e.unary(Op::kSignbit, s.operand(0))}; }
Results logical_not(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {e.unary(Op::kNot, m.in(0, Type::kBool))};
}
Results bitwise_not(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr x = m.in(0, m.type());
  return {m.type() == Type::kBool ? e.unary(Op::kNot, x) : m.wrap(e.unary(Op::kBitNot, x))};
}
// A count below zero, or of all bits and more, leaves nothing but the sign to the right.
template <bool kLeft>
Expr shifted(Emitter& m, Expr a, Expr count) {
  Expressions& e = m.e;
  const Type t = m.type();
  const Expr width = e.integer(t, 8 * storage_bytes(m.s.result_storage(0)));
  const Expr zero = e.integer(t, 0);
  const Expr fits = e.both(e.binary(Op::kLe, zero, count), e.binary(Op::kLt, count, width));
  if (kLeft)
    return e.select(fits, m.wrap(e.binary(Op::kShl, a, e.select(fits, count, zero))), zero);
  const Expr all = e.integer(t, t == Type::kI64 ? 63 : 31);
  return e.binary(Op::kShr, a, e.select(fits, count, all));
}
template <bool kLeft>
Results shift(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {shifted<kLeft>(m, m.in(0, m.type()), m.in(1, m.type(), "other"))};
}
template <bool kLeft>
Results shift_of_number(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {shifted<kLeft>(m, m.attribute("self", 0, m.type()), m.in(0, m.type()))};
}
Results isnan(Expressions& e, OperatorSource& s) {
  const Expr x = s.operand(0);
  return {e.binary(Op::kNe, x, x)};
}
Expr is_infinite(Expressions& e, Expr x) {
  return e.binary(Op::kEq, e.unary(Op::kAbs, x), e.constant(e.type(x), kInfinity));
}
Results isinf(Expressions& e, OperatorSource& s) {
  const Expr x = s.operand(0);
  return {is_float(e.type(x)) ? is_infinite(e, x) : e.integer(Type::kBool, 0)};
}
Results isfinite(Expressions& e, OperatorSource& s) {
  const Expr x = s.operand(0);
  if (!is_float(e.type(x))) return {e.integer(Type::kBool, 1)};
  return {e.binary(Op::kLt, e.unary(Op::kAbs, x), e.constant(e.type(x), kInfinity))};
}
template <bool kNegative>
Results is_signed_infinity(Expressions& e, OperatorSource& s) {
  const Expr x = s.operand(0);
  if (!is_float(e.type(x))) return {e.integer(Type::kBool, 0)};
  return {e.binary(Op::kEq, x, e.constant(e.type(x), kNegative ? -kInfinity : kInfinity))};
}
Results nan_to_num(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Type t = m.type();
  const Expr x = m.in(0, t);
  if (!is_float(t)) return {x};
  const Storage out = s.result_storage(0);
  const double largest = out == Storage::kF64    ? std::numeric_limits<double>::max()
                         : out == Storage::kF16  ? 65504.0
                         : out == Storage::kBF16 ? 3.3895313892515355e38
                                                 : double{std::numeric_limits<float>::max()};
  Expr y = e.select(e.binary(Op::kNe, x, x), m.attribute("nan", 0, t), x);
  y = e.select(e.binary(Op::kEq, x, m.number(kInfinity)), m.attribute("posinf", largest, t), y);
  return {
      e.select(e.binary(Op::kEq, x, m.number(-kInfinity)), m.attribute("neginf", -largest, t), y)};
}
Results frac(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr x = m.in(0, m.type());
  return {e.sub(x, e.unary(Op::kTrunc, x))};
}
Results lerp(Expressions& e, OperatorSource& s) {  // start, end, weight
  Emitter m{e, s};
  const Expr a = m.in(0, m.type()), b = m.in(1, m.type()), w = m.in(2, m.type(), "weight");
  const Expr d = e.sub(b, a), one = m.number(1);
  const Expr low = e.add(a, e.mul(w, d)), high = e.sub(b, e.mul(d, e.sub(one, w)));
  return {e.select(e.binary(Op::kLt, e.unary(Op::kAbs, w), m.number(0.5)), low, high)};
}
Results addcmul(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr product = e.mul(scaled(m, m.in(1, m.type()), "value"), m.in(2, m.type()));
  return {m.wrap(e.add(m.in(0, m.type()), product))};
}
Results addcdiv(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr ratio = e.div(scaled(m, m.in(1, m.type()), "value"), m.in(2, m.type()));
  return {e.add(m.in(0, m.type()), ratio)};
}
template <int kMillionths>
Results times(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {e.mul(m.in(0, m.type()),
                m.number(kMillionths == 0 ? std::numbers::pi / 180 : 180 / std::numbers::pi))};
}
Results hypot(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr a = e.unary(Op::kAbs, m.in(0, m.type())), b = e.unary(Op::kAbs, m.in(1, m.type()));
  const Expr high = e.binary(Op::kMax, a, b), low = e.binary(Op::kMin, a, b);
  const Expr q = e.div(low, high);
  const Expr y = e.mul(high, e.unary(Op::kSqrt, e.add(m.number(1), e.mul(q, q))));
  // Infinite beside NaN, too.
  const Expr endless = e.binary(Op::kOr, is_infinite(e, a), is_infinite(e, b));
  return {e.select(endless, m.number(kInfinity),
                   e.select(e.binary(Op::kEq, high, m.number(0)), high, y))};
}
Results logaddexp(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr a = m.in(0, m.type()), b = m.in(1, m.type());
  const Expr high = e.binary(Op::kMax, a, b), low = e.binary(Op::kMin, a, b);
  const Expr y = e.add(high, e.unary(Op::kLog1p, e.unary(Op::kExp, e.sub(low, high))));
  return {e.select(e.both(is_infinite(e, a), e.binary(Op::kEq, a, b)), a, y)};
}
Results xlogy(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr a = m.in(0, m.type(), "self"), b = m.in(s.has(1) ? 1 : 9, m.type(), "other");
  const Expr y =
      e.select(e.binary(Op::kEq, a, m.number(0)), m.number(0), e.mul(a, e.unary(Op::kLog, b)));
  return {e.select(e.binary(Op::kNe, b, b), m.number(kNan), y)};
}
Results xlog1py(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr a = m.in(0, m.type(), "self"), b = m.in(1, m.type(), "other");
  const Expr y =
      e.select(e.binary(Op::kEq, a, m.number(0)), m.number(0), e.mul(a, e.unary(Op::kLog1p, b)));
  return {e.select(e.binary(Op::kNe, b, b), m.number(kNan), y)};
}
Results copysign(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr a = e.unary(Op::kAbs, m.in(0, m.type())), b = m.in(1, m.type(), "other");
  return {e.select(e.unary(Op::kSignbit, b), e.unary(Op::kNeg, a), a)};
}
Results heaviside(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Type t = m.type();
  const Expr x = m.in(0, t), zero = e.constant(t, 0);
  return {e.select(e.binary(Op::kEq, x, zero), m.in(1, t), e.cast(e.binary(Op::kLt, zero, x), t))};
}
Results zero(Expressions& e, OperatorSource& s) { return {Emitter{e, s}.number(0)}; }
Results fill(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {e.narrow(m.in(1, m.type(), "value"), s.result_storage(0))};
}
Results logit(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  Expr x = m.in(0, m.type());
  if (s.number("eps")) {
    // Not a clamp: above one half the bounds change places, and the lower one is asked first.
    const Expr low = m.attribute("eps", 0, m.type()), high = e.sub(m.number(1), low);
    const Expr rest = e.select(e.binary(Op::kLt, high, x), high, x);
    x = e.select(e.binary(Op::kLt, x, low), low, rest);
  }
  return {e.unary(Op::kLog, e.div(x, e.sub(m.number(1), x)))};
}
Results sinc(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr x = m.in(0, m.type()), p = e.mul(x, m.number(std::numbers::pi));
  return {e.select(e.binary(Op::kEq, x, m.number(0)), m.number(1), e.div(e.unary(Op::kSin, p), p))};
}
Results masked_scale(Expressions& e, OperatorSource& s) {  // self, mask
  Emitter m{e, s};
  return {e.mul(e.mul(m.in(0, m.type()), m.in(1, m.type())), m.attribute("scale", 1, m.type()))};
}
// In the operands' type, whatever the result's.
template <Op kBool, Op kInteger>
Results bits(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  constexpr Op kOps[] = {kInteger, kBool};
  const Type t = m.type();
  return {m.wrap(e.binary(kOps[t == Type::kBool], m.in(0, t), m.in(1, t, "other")))};
}

using K = Operator;
constexpr Operator kOps[] = {
    {"aten.add.Tensor", K::kPointwise, add},
    {"aten.add.Scalar", K::kPointwise, add},
    {"aten.add_.Tensor", K::kPointwise, add},
    {"aten.sub.Tensor", K::kPointwise, sub},
    {"aten.sub.Scalar", K::kPointwise, sub},
    {"aten.rsub.Tensor", K::kPointwise, rsub},
    {"aten.rsub.Scalar", K::kPointwise, rsub},
    {"aten.mul.Tensor", K::kPointwise, mul},
    {"aten.mul.Scalar", K::kPointwise, mul},
    {"aten.mul_.Tensor", K::kPointwise, mul},
    {"aten.div.Tensor", K::kPointwise, div},
    {"aten.div.Scalar", K::kPointwise, div},
    {"aten.div.Tensor_mode", K::kPointwise, div},
    {"aten.div.Scalar_mode", K::kPointwise, div},
    {"aten.divide.Tensor", K::kPointwise, div},
    {"aten.true_divide.Tensor", K::kPointwise, div},
    {"aten.floor_divide", K::kPointwise, floor_divide},
    {"aten.floor_divide.Scalar", K::kPointwise, floor_divide},
    {"aten.remainder.Tensor", K::kPointwise, remainder},
    {"aten.remainder.Scalar", K::kPointwise, remainder},
    {"aten.remainder.Scalar_Tensor", K::kPointwise, remainder_from},
    {"aten.fmod.Tensor", K::kPointwise, fmod},
    {"aten.fmod.Scalar", K::kPointwise, fmod},
    {"aten.reciprocal", K::kFloatsOnly, reciprocal},
    {"aten.square", K::kPointwise, square},
    {"aten.pow.Tensor_Scalar", K::kFloatsOnly, pow_scalar},
    {"aten.pow.Tensor_Tensor", K::kFloatsOnly, pow_tensor},
    {"aten.pow.Scalar", K::kFloatsOnly, pow_from},
    {"aten.neg", K::kPointwise, one<Op::kNeg>},
    {"aten.negative", K::kPointwise, one<Op::kNeg>},
    {"aten.abs", K::kPointwise, one<Op::kAbs>},
    {"aten.absolute", K::kPointwise, one<Op::kAbs>},
    {"aten.exp", K::kFloatsOnly, one<Op::kExp>},
    {"aten.exp2", K::kFloatsOnly, one<Op::kExp2>},
    {"aten.expm1", K::kFloatsOnly, one<Op::kExpm1>},
    {"aten.log", K::kFloatsOnly, one<Op::kLog>},
    {"aten.log2", K::kFloatsOnly, one<Op::kLog2>},
    {"aten.log10", K::kFloatsOnly, one<Op::kLog10>},
    {"aten.log1p", K::kFloatsOnly, one<Op::kLog1p>},
    {"aten.tanh", K::kFloatsOnly, one<Op::kTanh>},
    {"aten.erf", K::kFloatsOnly, one<Op::kErf>},
    {"aten.erfc", K::kFloatsOnly, one<Op::kErfc>},
    {"aten.sigmoid", K::kFloatsOnly, one<Op::kSigmoid>},
    {"aten.special_expit", K::kFloatsOnly, one<Op::kSigmoid>},
    {"aten.sqrt", K::kFloatsOnly, one<Op::kSqrt>},
    {"aten.rsqrt", K::kFloatsOnly, one<Op::kRsqrt>},
    {"aten.sin", K::kFloatsOnly, one<Op::kSin>},
    {"aten.cos", K::kFloatsOnly, one<Op::kCos>},
    {"aten.tan", K::kFloatsOnly, one<Op::kTan>},
    {"aten.asin", K::kFloatsOnly, one<Op::kAsin>},
    {"aten.acos", K::kFloatsOnly, one<Op::kAcos>},
    {"aten.atan", K::kFloatsOnly, one<Op::kAtan>},
    {"aten.sinh", K::kFloatsOnly, one<Op::kSinh>},
    {"aten.cosh", K::kFloatsOnly, one<Op::kCosh>},
    {"aten.asinh", K::kFloatsOnly, one<Op::kAsinh>},
    {"aten.acosh", K::kFloatsOnly, one<Op::kAcosh>},
    {"aten.atanh", K::kFloatsOnly, one<Op::kAtanh>},
    {"aten.lgamma", K::kFloatsOnly, one<Op::kLgamma>},
    {"aten.floor", K::kPointwise, one<Op::kFloor>},
    {"aten.ceil", K::kPointwise, one<Op::kCeil>},
    {"aten.trunc", K::kPointwise, one<Op::kTrunc>},
    {"aten.round", K::kPointwise, one<Op::kRound>},
    {"aten.frac", K::kFloatsOnly, frac},
    {"aten.atan2", K::kFloatsOnly, two<Op::kAtan2>},
    {"aten.maximum", K::kPointwise, two<Op::kMax>},
    {"aten.minimum", K::kPointwise, two<Op::kMin>},
    {"aten.max.other", K::kPointwise, two<Op::kMax>},
    {"aten.min.other", K::kPointwise, two<Op::kMin>},
    {"aten.fmax", K::kPointwise, number_of<Op::kMax>},
    {"aten.fmin", K::kPointwise, number_of<Op::kMin>},
    {"aten.lt.Tensor", K::kPointwise, compare<Op::kLt, false>},
    {"aten.lt.Scalar", K::kPointwise, compare<Op::kLt, false>},
    {"aten.le.Tensor", K::kPointwise, compare<Op::kLe, false>},
    {"aten.le.Scalar", K::kPointwise, compare<Op::kLe, false>},
    {"aten.gt.Tensor", K::kPointwise, compare<Op::kLt, true>},
    {"aten.gt.Scalar", K::kPointwise, compare<Op::kLt, true>},
    {"aten.ge.Tensor", K::kPointwise, compare<Op::kLe, true>},
    {"aten.ge.Scalar", K::kPointwise, compare<Op::kLe, true>},
    {"aten.eq.Tensor", K::kPointwise, compare<Op::kEq, false>},
    {"aten.eq.Scalar", K::kPointwise, compare<Op::kEq, false>},
    {"aten.ne.Tensor", K::kPointwise, compare<Op::kNe, false>},
    {"aten.ne.Scalar", K::kPointwise, compare<Op::kNe, false>},
    {"aten.logical_and", K::kPointwise, logical<Op::kAnd>},
    {"aten.logical_or", K::kPointwise, logical<Op::kOr>},
    {"aten.logical_xor", K::kPointwise, logical<Op::kXor>},
    {"aten.logical_not", K::kPointwise, logical_not},
    {"aten.bitwise_and.Tensor", K::kPointwise, bits<Op::kAnd, Op::kAnd>},
    {"aten.bitwise_and.Scalar", K::kPointwise, bits<Op::kAnd, Op::kAnd>},
    {"aten.bitwise_and.Scalar_Tensor", K::kPointwise, reversed<Op::kAnd>},
    {"aten.bitwise_or.Tensor", K::kPointwise, bits<Op::kOr, Op::kOr>},
    {"aten.bitwise_or.Scalar", K::kPointwise, bits<Op::kOr, Op::kOr>},
    {"aten.bitwise_or.Scalar_Tensor", K::kPointwise, reversed<Op::kOr>},
    {"aten.bitwise_xor.Tensor", K::kPointwise, bits<Op::kXor, Op::kXor>},
    {"aten.bitwise_xor.Scalar", K::kPointwise, bits<Op::kXor, Op::kXor>},
    {"aten.bitwise_xor.Scalar_Tensor", K::kPointwise, reversed<Op::kXor>},
    {"aten.bitwise_not", K::kPointwise, bitwise_not},
    {"aten.bitwise_left_shift.Tensor", K::kPointwise, shift<true>},
    {"aten.bitwise_left_shift.Tensor_Scalar", K::kPointwise, shift<true>},
    {"aten.bitwise_left_shift.Scalar_Tensor", K::kPointwise, shift_of_number<true>},
    {"aten.bitwise_right_shift.Tensor", K::kPointwise, shift<false>},
    {"aten.bitwise_right_shift.Tensor_Scalar", K::kPointwise, shift<false>},
    {"aten.bitwise_right_shift.Scalar_Tensor", K::kPointwise, shift_of_number<false>},
    {"aten.__lshift__.Tensor", K::kPointwise, shift<true>},
    {"aten.__lshift__.Scalar", K::kPointwise, shift<true>},
    {"aten.__rshift__.Tensor", K::kPointwise, shift<false>},
    {"aten.__rshift__.Scalar", K::kPointwise, shift<false>},
    {"aten.isnan", K::kPointwise, isnan},
    {"aten.isinf", K::kPointwise, isinf},
    {"aten.isfinite", K::kPointwise, isfinite},
    {"aten.isposinf", K::kPointwise, is_signed_infinity<false>},
    {"aten.isneginf", K::kPointwise, is_signed_infinity<true>},
    {"aten.nan_to_num", K::kPointwise, nan_to_num},
    {"aten.sign", K::kPointwise, sign},
    {"aten.sgn", K::kPointwise, sign},
    {"aten.signbit", K::kPointwise, signbit},
    {"aten.where.self", K::kPointwise, where},
    {"aten.where.ScalarOther", K::kPointwise, where},
    {"aten.where.Scalar", K::kPointwise, where},
    {"aten.where.ScalarSelf", K::kPointwise, where_self},
    {"aten.masked_fill.Scalar", K::kPointwise, masked_fill},
    {"aten.masked_fill.Tensor", K::kPointwise, masked_fill},
    {"aten.clamp", K::kPointwise, clamp},
    {"aten.clamp.Tensor", K::kPointwise, clamp},
    {"aten.clip", K::kPointwise, clamp},
    {"aten.clip.Tensor", K::kPointwise, clamp},
    {"aten.clamp_min", K::kPointwise, clamp_min},
    {"aten.clamp_min.Tensor", K::kPointwise, clamp_min},
    {"aten.clamp_max", K::kPointwise, clamp_max},
    {"aten.clamp_max.Tensor", K::kPointwise, clamp_max},
    {"aten._to_copy", K::kPointwise, convert},
    {"aten.to.dtype", K::kPointwise, convert},
    {"aten.type_as", K::kPointwise, convert},
    {"aten.clone", K::kPointwise, convert},
    {"aten.contiguous", K::kPointwise, convert},
    {"aten.lift_fresh_copy", K::kPointwise, convert},
    {"aten.detach_copy", K::kPointwise, convert},
    {"aten.alias_copy", K::kPointwise, convert},
    {"aten.resolve_conj", K::kPointwise, convert},
    {"aten.resolve_neg", K::kPointwise, convert},
    {"aten.expand_copy", K::kPointwise, convert},
    {"aten.copy", K::kPointwise, copy},
    {"aten.lerp.Tensor", K::kFloatsOnly, lerp},
    {"aten.lerp.Scalar", K::kFloatsOnly, lerp},
    {"aten.addcmul", K::kPointwise, addcmul},
    {"aten.addcdiv", K::kFloatsOnly, addcdiv},
    {"aten.deg2rad", K::kFloatsOnly, times<0>},
    {"aten.rad2deg", K::kFloatsOnly, times<1>},
    {"aten.hypot", K::kFloatsOnly, hypot},
    {"aten.logaddexp", K::kFloatsOnly, logaddexp},
    {"aten.xlogy.Tensor", K::kFloatsOnly, xlogy},
    {"aten.xlogy.Scalar_Other", K::kFloatsOnly, xlogy},
    {"aten.copysign.Tensor", K::kFloatsOnly, copysign},
    {"aten.copysign.Scalar", K::kFloatsOnly, copysign},
    {"aten.heaviside", K::kPointwise, heaviside},
    {"aten.zeros_like", K::kPointwise, zero},
    {"aten.zero", K::kPointwise, zero},
    {"aten.fill.Scalar", K::kPointwise, fill},
    {"aten.fill.Tensor", K::kPointwise, fill},
    {"aten.special_xlog1py", K::kFloatsOnly, xlog1py},
    {"aten.logit", K::kFloatsOnly, logit},
    {"aten.special_logit", K::kFloatsOnly, logit},
    {"aten.sinc", K::kFloatsOnly, sinc},
    {"aten._masked_scale", K::kFloatsOnly, masked_scale},
    {"aten.native_dropout_backward", K::kFloatsOnly, masked_scale},
};

}  // namespace

std::span<const Operator> arithmetic_operators() { return kOps; }

}  // namespace backplane::kernelgen
