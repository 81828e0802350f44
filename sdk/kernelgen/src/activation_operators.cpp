// Activations, losses without a reduction, and their gradients.
#include <numbers>

#include "operator_support.hpp"

namespace backplane::kernelgen {
namespace {

constexpr double kRootHalf = 0.70710678118654752440, kRootTwoOverPi = 0.79788456080286535588;

Results relu(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {m.at_least(m.number(0), m.in(0, m.type()))};
}
bool is_tanh(OperatorSource& s) { return s.text("approximate") == "tanh"; }
// 0.5 (1 + tanh u) = sigmoid(2u)
Expr gelu_gate(Emitter& m, Expr x) {
  Expressions& e = m.e;
  const Expr cubic = e.mul(m.number(kRootTwoOverPi * 0.044715), e.mul(x, x));
  const Expr u = e.mul(x, e.add(m.number(kRootTwoOverPi), cubic));
  return e.unary(Op::kSigmoid, e.add(u, u));
}
Expr normal_cdf(Emitter& m, Expr x) {
  Expressions& e = m.e;
  if (m.type() == Type::kF32) return e.unary(Op::kNormalCdf, x);
  return e.mul(m.number(0.5), e.add(m.number(1), e.unary(Op::kErf, e.mul(x, m.number(kRootHalf)))));
}
Results gelu(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr x = m.in(0, m.type());
  return {e.mul(x, is_tanh(s) ? gelu_gate(m, x) : normal_cdf(m, x))};
}
Results gelu_backward(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr g = m.in(0, m.type()), x = m.in(1, m.type());
  if (!is_tanh(s)) {
    const Expr pdf = e.mul(m.number(0.5 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi),
                           e.unary(Op::kExp, e.mul(m.number(-0.5), e.mul(x, x))));
    return {e.mul(g, e.add(normal_cdf(m, x), e.mul(x, pdf)))};
  }
  const Expr gate = gelu_gate(m, x);
  const Expr slope =
      e.add(m.number(kRootTwoOverPi), e.mul(m.number(3 * kRootTwoOverPi * 0.044715), e.mul(x, x)));
  const Expr bell = e.mul(e.mul(m.number(2), x), e.mul(gate, e.sub(m.number(1), gate)));
  return {e.mul(g, e.add(gate, e.mul(bell, slope)))};
}
Results silu(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr x = m.in(0, m.type());
  return {e.mul(x, e.unary(Op::kSigmoid, x))};
}
Results silu_backward(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr g = m.in(0, m.type()), x = m.in(1, m.type()), y = e.unary(Op::kSigmoid, x);
  return {e.mul(e.mul(g, y), e.add(m.number(1), e.mul(x, e.sub(m.number(1), y))))};
}
Results sigmoid_backward(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr g = m.in(0, m.type()), y = m.in(1, m.type());
  return {e.mul(e.mul(g, e.sub(m.number(1), y)), y)};
}
Results tanh_backward(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr g = m.in(0, m.type()), y = m.in(1, m.type());
  return {e.mul(g, e.sub(m.number(1), e.mul(y, y)))};
}
Results threshold(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr x = m.in(0, m.type());
  return {e.select(e.binary(Op::kLe, x, m.attribute("threshold", 0, m.type())),
                   m.attribute("value", 0, m.type()), x)};
}
Results threshold_backward(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr g = m.in(0, m.type()), x = m.in(1, m.type());
  return {e.select(e.binary(Op::kLe, x, m.attribute("threshold", 0, m.type())), m.number(0), g)};
}
Expr clip(Emitter& m, Expr x, Expr low, Expr high) { return m.at_most(high, m.at_least(low, x)); }
Expr clip_to_six(Emitter& m, Expr x) { return clip(m, x, m.number(0), m.number(6)); }
Results hardtanh(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr low = m.attribute("min_val", -1, m.type()), high = m.attribute("max_val", 1, m.type());
  return {clip(m, m.in(0, m.type()), low, high)};
}
Results relu6(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {clip_to_six(m, m.in(0, m.type()))};
}
Expr inside(Emitter& m, Expr x, double low, double high) {
  return m.e.both(m.e.binary(Op::kLt, m.number(low), x), m.e.binary(Op::kLt, x, m.number(high)));
}
Results hardtanh_backward(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr g = m.in(0, m.type()), x = m.in(1, m.type());
  return {e.select(inside(m, x, m.real("min_val", -1), m.real("max_val", 1)), g, m.number(0))};
}
Expr sixth(Emitter& m, Expr x) {
  return m.e.div(clip_to_six(m, m.e.add(x, m.number(3))), m.number(6));
}
Results hardsigmoid(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {sixth(m, m.in(0, m.type()))};
}
Results hardswish(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr x = m.in(0, m.type());
  return {e.div(e.mul(x, clip_to_six(m, e.add(x, m.number(3)))), m.number(6))};
}
Results hardsigmoid_backward(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr g = m.in(0, m.type()), x = m.in(1, m.type());
  return {e.select(inside(m, x, -3, 3), e.div(g, m.number(6)), m.number(0))};
}
Results hardswish_backward(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr g = m.in(0, m.type()), x = m.in(1, m.type());
  const Expr middle = e.mul(g, e.add(e.div(x, m.number(3)), m.number(0.5)));
  const Expr right = e.select(e.binary(Op::kLe, m.number(3), x), g, middle);  // NaN of NaN
  return {e.select(e.binary(Op::kLe, x, m.number(-3)), m.number(0), right)};
}
Expr leak(Emitter& m, Expr x, Expr value) {
  return m.e.select(m.e.binary(Op::kLt, m.number(0), x), value,
                    m.e.mul(value, m.attribute("negative_slope", 0.01, m.type())));
}
Results leaky_relu(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr x = m.in(0, m.type());
  return {leak(m, x, x)};
}
Results leaky_relu_backward(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {leak(m, m.in(1, m.type()), m.in(0, m.type()))};
}
Results elu(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr x = m.in(0, m.type());
  const double alpha = m.real("alpha", 1), scale = m.real("scale", 1);
  const Expr left = e.mul(e.unary(Op::kExpm1, e.mul(x, m.attribute("input_scale", 1, m.type()))),
                          m.number(alpha * scale));
  return {e.select(e.binary(Op::kLt, x, m.number(0)), left, e.mul(x, m.number(scale)))};
}
Results selu(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const double alpha = 1.6732632423543772848170429916717, scale = 1.0507009873554804934193349852946;
  const Expr x = m.in(0, m.type());
  const Expr left = e.mul(e.unary(Op::kExpm1, x), m.number(alpha * scale));
  return {e.select(e.binary(Op::kLt, x, m.number(0)), left, e.mul(x, m.number(scale)))};
}
Results celu(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const double alpha = m.real("alpha", 1);
  const Expr x = m.in(0, m.type());
  const Expr left = e.mul(e.unary(Op::kExpm1, e.mul(x, m.number(1 / alpha))), m.number(alpha));
  return {e.select(e.binary(Op::kLt, x, m.number(0)), left, x)};
}
Results elu_backward(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr g = m.in(0, m.type()), v = m.in(1, m.type());
  const double alpha = m.real("alpha", 1), scale = m.real("scale", 1),
               in = m.real("input_scale", 1);
  const Expr slope =
      m.real("is_result", 0) != 0
          ? e.mul(e.add(v, m.number(alpha * scale)), m.number(in))
          : e.mul(e.unary(Op::kExp, e.mul(v, m.number(in))), m.number(alpha * scale * in));
  return {e.mul(g, e.select(e.binary(Op::kLe, v, m.number(0)), slope, m.number(scale)))};
}
Results prelu(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr x = m.in(0, m.type());
  return {e.select(e.binary(Op::kLt, m.number(0), x), x, e.mul(x, m.in(1, m.type())))};
}
Results prelu_backward(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr g = m.in(0, m.type()), x = m.in(1, m.type()), w = m.in(2, m.type());
  const Expr positive = e.binary(Op::kLt, m.number(0), x);
  return {e.select(positive, g, e.mul(w, g)), e.select(positive, m.number(0), e.mul(x, g))};
}
Expr soft_plus(Emitter& m, Expr x, double beta, double limit) {
  Expressions& e = m.e;
  const Expr t = e.mul(x, m.number(beta));
  const Expr y = e.div(e.unary(Op::kLog1p, e.unary(Op::kExp, t)), m.number(beta));
  return e.select(e.binary(Op::kLt, m.number(limit), t), x, y);
}
Results softplus(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  return {soft_plus(m, m.in(0, m.type()), m.real("beta", 1), m.real("threshold", 20))};
}
Results softplus_backward(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr g = m.in(0, m.type()), t = e.mul(m.in(1, m.type()), m.number(m.real("beta", 1)));
  return {e.select(e.binary(Op::kLt, m.number(m.real("threshold", 20)), t), g,
                   e.mul(g, e.unary(Op::kSigmoid, t)))};
}
Results log_sigmoid_backward(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr g = m.in(0, m.type()), x = m.in(1, m.type());
  return {e.mul(g, e.unary(Op::kSigmoid, e.unary(Op::kNeg, x)))};
}
Results mish(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr x = m.in(0, m.type());
  return {e.mul(x, e.unary(Op::kTanh, soft_plus(m, x, 1, 20)))};
}
Results mish_backward(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr g = m.in(0, m.type()), x = m.in(1, m.type());
  const Expr t = e.unary(Op::kTanh, soft_plus(m, x, 1, 20));
  const Expr slope = e.mul(e.mul(x, e.unary(Op::kSigmoid, x)), e.sub(m.number(1), e.mul(t, t)));
  return {e.mul(g, e.add(t, slope))};
}
Results softshrink(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr x = m.in(0, m.type()), l = m.attribute("lambd", 0.5, m.type());
  const Expr upper = e.select(e.binary(Op::kLt, l, x), e.sub(x, l), m.number(0));
  const Expr y = e.select(e.binary(Op::kLt, x, e.unary(Op::kNeg, l)), e.add(x, l), upper);
  return {e.select(e.binary(Op::kNe, x, x), x, y)};
}
Expr is_small(Emitter& m, Expr x) {
  return m.e.binary(Op::kLe, m.e.unary(Op::kAbs, x), m.attribute("lambd", 0.5, m.type()));
}
Results hardshrink(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr x = m.in(0, m.type());
  return {e.select(is_small(m, x), m.number(0), x)};
}
Results shrink_backward(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr g = m.in(0, m.type()), x = m.in(1, m.type());
  return {e.select(is_small(m, x), m.number(0), g)};
}
// Reductions: 0 none, 1 mean, 2 sum.
Expr loss_scale(Emitter& m, double factor) {
  const bool mean = m.real("reduction", 1) == 1;
  return m.number(mean ? factor / static_cast<double>(m.s.operand_elements(1)) : factor);
}
Results mse_loss_backward(Expressions& e, OperatorSource& s) {  // grad, self, target
  Emitter m{e, s};
  const Expr d = e.sub(m.in(1, m.type()), m.in(2, m.type()));
  return {e.mul(e.mul(d, loss_scale(m, 2)), m.in(0, m.type()))};
}
Results smooth_l1_loss_backward(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr d = e.sub(m.in(1, m.type()), m.in(2, m.type()));
  const double beta = m.real("beta", 1);
  // Not a number is on neither side, and stays what it is.
  const Expr between = beta == 0 ? d : e.div(d, m.number(beta));
  const Expr slope = e.select(e.binary(Op::kLe, d, m.number(-beta)), m.number(-1),
                              e.select(e.binary(Op::kLe, m.number(beta), d), m.number(1), between));
  return {e.mul(e.mul(slope, loss_scale(m, 1)), m.in(0, m.type()))};
}
Results binary_cross_entropy_backward(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr g = m.in(0, m.type()), x = m.in(1, m.type()), t = m.in(2, m.type());
  const Expr span = e.binary(Op::kMax, e.mul(e.sub(m.number(1), x), x), m.number(1e-12));
  Expr y = e.mul(g, e.div(e.sub(x, t), span));
  if (s.has(3)) y = e.mul(y, m.in(3, m.type()));
  return {e.mul(y, loss_scale(m, 1))};
}

using K = Operator;
constexpr Operator kOps[] = {
    {"aten.relu", K::kPointwise, relu},
    {"aten.relu6", K::kPointwise, relu6},
    {"aten.gelu", K::kFloatsOnly, gelu},
    {"aten.gelu_backward", K::kFloatsOnly, gelu_backward},
    {"aten.silu", K::kFloatsOnly, silu},
    {"aten.silu_backward", K::kFloatsOnly, silu_backward},
    {"aten.sigmoid_backward", K::kFloatsOnly, sigmoid_backward},
    {"aten.tanh_backward", K::kFloatsOnly, tanh_backward},
    {"aten.threshold", K::kPointwise, threshold},
    {"aten.threshold_backward", K::kPointwise, threshold_backward},
    {"aten.hardtanh", K::kPointwise, hardtanh},
    {"aten.hardtanh_backward", K::kFloatsOnly, hardtanh_backward},
    {"aten.hardsigmoid", K::kFloatsOnly, hardsigmoid},
    {"aten.hardsigmoid_backward", K::kFloatsOnly, hardsigmoid_backward},
    {"aten.hardswish", K::kFloatsOnly, hardswish},
    {"aten.hardswish_backward", K::kFloatsOnly, hardswish_backward},
    {"aten.leaky_relu", K::kFloatsOnly, leaky_relu},
    {"aten.leaky_relu_backward", K::kFloatsOnly, leaky_relu_backward},
    {"aten.elu", K::kFloatsOnly, elu},
    {"aten.selu", K::kFloatsOnly, selu},
    {"aten.celu", K::kFloatsOnly, celu},
    {"aten.elu_backward", K::kFloatsOnly, elu_backward},
    {"aten._prelu_kernel", K::kFloatsOnly, prelu},
    {"aten._prelu_kernel_backward", K::kFloatsOnly, prelu_backward},
    {"aten.softplus", K::kFloatsOnly, softplus},
    {"aten.softplus_backward", K::kFloatsOnly, softplus_backward},
    {"aten.log_sigmoid_backward", K::kFloatsOnly, log_sigmoid_backward},
    {"aten.mish", K::kFloatsOnly, mish},
    {"aten.mish_backward", K::kFloatsOnly, mish_backward},
    {"aten.softshrink", K::kFloatsOnly, softshrink},
    {"aten.softshrink_backward", K::kFloatsOnly, shrink_backward},
    {"aten.hardshrink", K::kFloatsOnly, hardshrink},
    {"aten.hardshrink_backward", K::kFloatsOnly, shrink_backward},
    {"aten.mse_loss_backward", K::kFloatsOnly, mse_loss_backward},
    {"aten.smooth_l1_loss_backward", K::kFloatsOnly, smooth_l1_loss_backward},
    {"aten.binary_cross_entropy_backward", K::kFloatsOnly, binary_cross_entropy_backward},
};

}  // namespace

std::span<const Operator> activation_operators() { return kOps; }

}  // namespace backplane::kernelgen
