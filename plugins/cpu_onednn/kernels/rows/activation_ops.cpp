// Activations and their gradients.
#include "kernels/rows/emitter.h"

namespace backplane::onednn {
namespace {

using Results = std::vector<Register>;

template <Opcode kOp>
Results one(Emitter& e) {
  return {e.apply(kOp, e.operand(0, e.domain()))};
}
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
// grad, y: g y (1 - y)
Results sigmoid_backward(Emitter& e) {
  const Domain d = e.domain();
  const Register g = e.operand(0, d), y = e.operand(1, d);
  const Register slope = e.apply(Opcode::kMul, e.apply(Opcode::kSub, e.number(1, d), y), y);
  return {e.apply(Opcode::kMul, g, slope)};
}
// grad, y: g (1 - y^2)
Results tanh_backward(Emitter& e) {
  const Domain d = e.domain();
  const Register g = e.operand(0, d), y = e.operand(1, d);
  return {
      e.apply(Opcode::kMul, g, e.apply(Opcode::kSub, e.number(1, d), e.apply(Opcode::kSquare, y)))};
}
Results threshold_backward(Emitter& e) {
  const Domain d = e.domain();
  const Register g = e.operand(0, d), x = e.operand(1, d);
  const Register dead = e.apply(Opcode::kLe, x, e.attribute("threshold", 0, d));
  return {e.apply(Opcode::kWhere, dead, e.number(0, d), g)};
}
Results threshold(Emitter& e) {
  const Domain d = e.domain();
  const Register x = e.operand(0, d);
  const Register dead = e.apply(Opcode::kLe, x, e.attribute("threshold", 0, d));
  return {e.apply(Opcode::kWhere, dead, e.attribute("value", 0, d), x)};
}
Results clipped(Emitter& e, Register x, double low, double high) {
  const Domain d = e.domain();
  // Of equal ones the second is taken: zero keeps its sign.
  return {e.apply(Opcode::kMin, e.number(high, d), e.apply(Opcode::kMax, e.number(low, d), x))};
}
Results hardtanh(Emitter& e) {
  return clipped(e, e.operand(0, e.domain()), e.real("min_val", -1), e.real("max_val", 1));
}
// g where low < x < high
Results hardtanh_backward(Emitter& e) {
  const Domain d = e.domain();
  const Register g = e.operand(0, d), x = e.operand(1, d);
  const Register inside =
      e.apply(Opcode::kAnd, e.apply(Opcode::kGt, x, e.attribute("min_val", -1, d)),
              e.apply(Opcode::kLt, x, e.attribute("max_val", 1, d)));
  return {e.apply(Opcode::kWhere, inside, g, e.number(0, d))};
}
Results relu6(Emitter& e) { return clipped(e, e.operand(0, e.domain()), 0, 6); }
Register sixth_clip(Emitter& e, Register x) {
  const Domain d = e.domain();
  return clipped(e, e.apply(Opcode::kAdd, x, e.number(3, d)), 0, 6)[0];
}
Results hardsigmoid(Emitter& e) {
  const Domain d = e.domain();
  return {e.apply(Opcode::kDiv, sixth_clip(e, e.operand(0, d)), e.number(6, d))};
}
Results hardswish(Emitter& e) {
  const Domain d = e.domain();
  const Register x = e.operand(0, d);
  return {e.apply(Opcode::kDiv, e.apply(Opcode::kMul, x, sixth_clip(e, x)), e.number(6, d))};
}
Results hardsigmoid_backward(Emitter& e) {
  const Domain d = e.domain();
  const Register g = e.operand(0, d), x = e.operand(1, d);
  const Register inside = e.apply(Opcode::kAnd, e.apply(Opcode::kGt, x, e.number(-3, d)),
                                  e.apply(Opcode::kLt, x, e.number(3, d)));
  return {
      e.apply(Opcode::kWhere, inside, e.apply(Opcode::kDiv, g, e.number(6, d)), e.number(0, d))};
}
Results hardswish_backward(Emitter& e) {
  const Domain d = e.domain();
  const Register g = e.operand(0, d), x = e.operand(1, d);
  const Register middle =
      e.apply(Opcode::kMul, g,
              e.apply(Opcode::kAdd, e.apply(Opcode::kDiv, x, e.number(3, d)), e.number(0.5, d)));
  const Register right =  // NaN of NaN
      e.apply(Opcode::kWhere, e.apply(Opcode::kLe, e.number(3, d), x), g, middle);
  return {e.apply(Opcode::kWhere, e.apply(Opcode::kLe, x, e.number(-3, d)), e.number(0, d), right)};
}
Results leaky(Emitter& e, Register x, Register value) {
  const Domain d = e.domain();
  return {e.apply(Opcode::kWhere, e.apply(Opcode::kGt, x, e.number(0, d)), value,
                  e.apply(Opcode::kMul, value, e.attribute("negative_slope", 0.01, d)))};
}
Results leaky_relu(Emitter& e) {
  const Register x = e.operand(0, e.domain());
  return leaky(e, x, x);
}
Results leaky_relu_backward(Emitter& e) {
  const Domain d = e.domain();
  return leaky(e, e.operand(1, d), e.operand(0, d));
}
Results elu(Emitter& e) {
  const Domain d = e.domain();
  const Register x = e.operand(0, d);
  const double alpha = e.real("alpha", 1), scale = e.real("scale", 1);
  const Register scaled = e.apply(Opcode::kMul, x, e.attribute("input_scale", 1, d));
  const Register left =
      e.apply(Opcode::kMul, e.apply(Opcode::kExpm1, scaled), e.number(alpha * scale, d));
  return {e.apply(Opcode::kWhere, e.apply(Opcode::kLt, x, e.number(0, d)), left,
                  e.apply(Opcode::kMul, x, e.number(scale, d)))};
}
Results elu_backward(Emitter& e) {
  const Domain d = e.domain();
  const Register g = e.operand(0, d), v = e.operand(1, d);
  const double alpha = e.real("alpha", 1), scale = e.real("scale", 1),
               input_scale = e.real("input_scale", 1);
  Register slope;
  if (e.node().bool_or("is_result", false)) {
    slope = e.apply(Opcode::kMul, e.apply(Opcode::kAdd, v, e.number(alpha * scale, d)),
                    e.number(input_scale, d));
  } else {
    const Register t = e.apply(Opcode::kMul, v, e.number(input_scale, d));
    slope =
        e.apply(Opcode::kMul, e.apply(Opcode::kExp, t), e.number(alpha * scale * input_scale, d));
  }
  const Register factor =
      e.apply(Opcode::kWhere, e.apply(Opcode::kLe, v, e.number(0, d)), slope, e.number(scale, d));
  return {e.apply(Opcode::kMul, g, factor)};
}
Results prelu(Emitter& e) {
  const Domain d = e.domain();
  const Register x = e.operand(0, d);
  return {e.apply(Opcode::kWhere, e.apply(Opcode::kGt, x, e.number(0, d)), x,
                  e.apply(Opcode::kMul, x, e.operand(1, d)))};
}
Results prelu_backward(Emitter& e) {  // grad, self, weight -> grads of self and weight
  const Domain d = e.domain();
  const Register g = e.operand(0, d), x = e.operand(1, d), w = e.operand(2, d);
  const Register positive = e.apply(Opcode::kGt, x, e.number(0, d));
  return {e.apply(Opcode::kWhere, positive, g, e.apply(Opcode::kMul, w, g)),
          e.apply(Opcode::kWhere, positive, e.number(0, d), e.apply(Opcode::kMul, x, g))};
}
Results softplus(Emitter& e) {
  const Domain d = e.domain();
  const Register x = e.operand(0, d);
  const double beta = e.real("beta", 1);
  const Register t = e.apply(Opcode::kMul, x, e.number(beta, d));
  const Register y =
      e.apply(Opcode::kDiv, e.apply(Opcode::kLog1p, e.apply(Opcode::kExp, t)), e.number(beta, d));
  return {e.apply(Opcode::kWhere, e.apply(Opcode::kGt, t, e.attribute("threshold", 20, d)), x, y)};
}
Results softplus_backward(Emitter& e) {
  const Domain d = e.domain();
  const Register g = e.operand(0, d), x = e.operand(1, d);
  const Register t = e.apply(Opcode::kMul, x, e.number(e.real("beta", 1), d));
  const Register inner = e.apply(Opcode::kMul, g, e.apply(Opcode::kSigmoid, t));
  return {
      e.apply(Opcode::kWhere, e.apply(Opcode::kGt, t, e.attribute("threshold", 20, d)), g, inner)};
}
Results log_sigmoid_backward(Emitter& e) {
  const Domain d = e.domain();
  const Register g = e.operand(0, d), x = e.operand(1, d);
  return {e.apply(Opcode::kMul, g, e.apply(Opcode::kSigmoid, e.apply(Opcode::kNeg, x)))};
}
Results mish_backward(Emitter& e) {
  const Domain d = e.domain();
  const Register g = e.operand(0, d), x = e.operand(1, d);
  const Register t = e.apply(Opcode::kTanh, e.apply(Opcode::kSoftplus, x));
  const Register slope =
      e.apply(Opcode::kMul, e.apply(Opcode::kMul, x, e.apply(Opcode::kSigmoid, x)),
              e.apply(Opcode::kSub, e.number(1, d), e.apply(Opcode::kSquare, t)));
  return {e.apply(Opcode::kMul, g, e.apply(Opcode::kAdd, t, slope))};
}
Results softshrink(Emitter& e) {
  const Domain d = e.domain();
  const Register x = e.operand(0, d), l = e.attribute("lambd", 0.5, d);
  const Register upper = e.apply(Opcode::kWhere, e.apply(Opcode::kGt, x, l),
                                 e.apply(Opcode::kSub, x, l), e.number(0, d));
  const Register both = e.apply(Opcode::kWhere, e.apply(Opcode::kLt, x, e.apply(Opcode::kNeg, l)),
                                e.apply(Opcode::kAdd, x, l), upper);
  return {e.apply(Opcode::kWhere, e.apply(Opcode::kIsNan, x), x, both)};
}
Register is_small(Emitter& e, Register x) {
  const Domain d = e.domain();
  return e.apply(Opcode::kLe, e.apply(Opcode::kAbs, x), e.attribute("lambd", 0.5, d));
}
Results hardshrink(Emitter& e) {
  const Register x = e.operand(0, e.domain());
  return {e.apply(Opcode::kWhere, is_small(e, x), e.number(0, e.domain()), x)};
}
Results shrink_backward(Emitter& e) {
  const Domain d = e.domain();
  const Register g = e.operand(0, d), x = e.operand(1, d);
  return {e.apply(Opcode::kWhere, is_small(e, x), e.number(0, d), g)};
}
// Losses without a reduction are pointwise; the others have kernels of their own.
Register difference(Emitter& e) {
  const Domain d = e.domain();
  return e.apply(Opcode::kSub, e.operand(1, d), e.operand(2, d));
}
Results mse_loss_backward(Emitter& e) {  // grad, self, target
  const Domain d = e.domain();
  const double scale =
      e.node().int_or("reduction", 1) == 1 ? 2.0 / static_cast<double>(e.elements(1)) : 2.0;
  return {e.apply(Opcode::kMul, e.apply(Opcode::kMul, difference(e), e.number(scale, d)),
                  e.operand(0, d))};
}

using K = ProgramOp;
constexpr ProgramOp kOps[] = {
    {"aten.relu", one<Opcode::kRelu>, K::kPointwise},
    {"aten.gelu", gelu, K::kFloatsOnly},
    {"aten.gelu_backward", gelu_backward, K::kFloatsOnly},
    {"aten.silu", one<Opcode::kSilu>, K::kFloatsOnly},
    {"aten.silu_backward", silu_backward, K::kFloatsOnly},
    {"aten.sigmoid_backward", sigmoid_backward, K::kFloatsOnly},
    {"aten.tanh_backward", tanh_backward, K::kFloatsOnly},
    {"aten.threshold", threshold, K::kPointwise},
    {"aten.threshold_backward", threshold_backward, K::kPointwise},
    {"aten.hardtanh", hardtanh, K::kPointwise},
    {"aten.hardtanh_backward", hardtanh_backward, K::kFloatsOnly},
    {"aten.relu6", relu6, K::kPointwise},
    {"aten.hardsigmoid", hardsigmoid, K::kFloatsOnly},
    {"aten.hardsigmoid_backward", hardsigmoid_backward, K::kFloatsOnly},
    {"aten.hardswish", hardswish, K::kFloatsOnly},
    {"aten.hardswish_backward", hardswish_backward, K::kFloatsOnly},
    {"aten.leaky_relu", leaky_relu, K::kFloatsOnly},
    {"aten.leaky_relu_backward", leaky_relu_backward, K::kFloatsOnly},
    {"aten.elu", elu, K::kFloatsOnly},
    {"aten.elu_backward", elu_backward, K::kFloatsOnly},
    {"aten._prelu_kernel", prelu, K::kFloatsOnly},
    {"aten._prelu_kernel_backward", prelu_backward, K::kFloatsOnly},
    {"aten.softplus", softplus, K::kFloatsOnly},
    {"aten.softplus_backward", softplus_backward, K::kFloatsOnly},
    {"aten.log_sigmoid_backward", log_sigmoid_backward, K::kFloatsOnly},
    {"aten.mish", one<Opcode::kMish>, K::kFloatsOnly},
    {"aten.mish_backward", mish_backward, K::kFloatsOnly},
    {"aten.softshrink", softshrink, K::kFloatsOnly},
    {"aten.softshrink_backward", shrink_backward, K::kFloatsOnly},
    {"aten.hardshrink", hardshrink, K::kFloatsOnly},
    {"aten.hardshrink_backward", shrink_backward, K::kFloatsOnly},
    {"aten.mse_loss_backward", mse_loss_backward, K::kFloatsOnly},
};

}  // namespace

std::span<const ProgramOp> activation_program_ops() { return kOps; }

}  // namespace backplane::onednn
