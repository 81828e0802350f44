// Operators over rows and by channel: softmaxes, norms and their gradients, sums.
#include <cmath>
#include <limits>

#include "operator_support.hpp"

namespace backplane::kernelgen {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Expr sum(Emitter& m, Expr x) { return m.e.reduce(Reduction::kSum, x); }
Expr mean(Emitter& m, Expr x) {
  return m.e.mul(sum(m, x), m.e.constant(m.e.type(x), 1.0 / static_cast<double>(m.s.row_length())));
}

Results softmax(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr x = m.in(0, m.type());
  const Expr power = e.unary(Op::kExpNormal, e.sub(x, e.reduce(Reduction::kTop, x)));
  return {e.mul(power, e.div(m.number(1), sum(m, power)))};
}
// Rows of minus infinity give zeros.
Results safe_softmax(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr x = m.in(0, m.type()), top = e.reduce(Reduction::kMax, x);
  const Expr masked = e.binary(Op::kEq, top, m.number(-kInfinity));
  const Expr power = e.unary(Op::kExpNormal, e.sub(x, e.select(masked, m.number(0), top)));
  return {e.mul(power, e.select(masked, m.number(0), e.div(m.number(1), sum(m, power))))};
}
Results log_softmax(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr x = m.in(0, m.type()), top = e.reduce(Reduction::kTop, x);
  const Expr total = sum(m, e.unary(Op::kExpNormal, e.sub(x, top)));
  return {e.sub(e.sub(x, top), e.unary(Op::kLog, total))};
}
Results softmax_backward(Expressions& e, OperatorSource& s) {  // grad, output
  Emitter m{e, s};
  const Expr g = m.in(0, m.type()), y = m.in(1, m.type());
  return {e.mul(e.sub(g, sum(m, e.mul(g, y))), y)};
}
Results log_softmax_backward(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr g = m.in(0, m.type()), y = m.in(1, m.type());
  return {e.sub(g, e.mul(e.unary(Op::kExp, y), sum(m, g)))};
}
Results layer_norm(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr x = m.in(0, m.type());
  const Moments of = moments(e, x, s.row_length());
  const Expr rstd = e.unary(Op::kRsqrt, e.add(of.variance, m.number(m.real("eps", 1e-5))));
  Expr y = e.mul(e.sub(x, of.mean), rstd);
  if (s.has(1)) y = e.mul(y, m.in(1, m.type()));
  if (s.has(2)) y = e.add(y, m.in(2, m.type()));
  return {y, of.mean, rstd};
}
// grad, input, mean, rstd, weight, bias: the input's gradient. Those of weight and bias sum over
// the other axes, in kernels of their own.
Results layer_norm_backward(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Type t = compute_type(s.operand_storage(0));
  const Expr mu = m.in(2, t), rstd = m.in(3, t);
  const Expr hat = e.mul(e.sub(m.in(1, t), mu), rstd);
  Expr g = m.in(0, t);
  if (s.has(4)) g = e.mul(g, m.in(4, t));
  const Expr inner = e.add(mean(m, g), e.mul(hat, mean(m, e.mul(g, hat))));
  return {e.mul(rstd, e.sub(g, inner)), kNoExpr, kNoExpr};
}
// input, weight, bias, mean, variance
Results batch_norm_inference(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Type t = m.type();
  const Expr rstd = e.unary(Op::kRsqrt, e.add(m.in(4, t), e.constant(t, m.real("eps", 1e-5))));
  Expr y = e.mul(e.sub(m.in(0, t), m.in(3, t)), rstd);
  if (s.has(1)) y = e.mul(y, m.in(1, t));
  if (s.has(2)) y = e.add(y, m.in(2, t));
  return {y, kNoExpr, kNoExpr, kNoExpr};
}
Results rms_norm(Expressions& e, OperatorSource& s) {  // output, rstd
  Emitter m{e, s};
  const Expr x = m.in(0, m.type());
  const double fallback = m.type() == Type::kF64 ? std::numeric_limits<double>::epsilon()
                                                 : double{std::numeric_limits<float>::epsilon()};
  const Expr rstd =
      e.unary(Op::kRsqrt, e.add(mean(m, e.mul(x, x)), m.number(m.real("eps", fallback))));
  Expr y = e.mul(x, rstd);
  if (s.has(1)) y = e.mul(y, m.in(1, m.type()));
  return {y, rstd};
}

template <Reduction kHow>
Results fold(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const bool position = kHow == Reduction::kArgMax || kHow == Reduction::kArgMin;
  const Expr x = position ? s.operand(0) : m.converted(0);
  return {m.wrap(e.reduce(kHow, x))};
}
Results mean_fold(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr x = m.unpromoted(0, m.type());  // PyTorch rounds the mean alone to a half
  return {e.div(sum(m, x), m.number(static_cast<double>(s.row_length())))};
}
template <Reduction kHow>
Results truth(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr found = e.reduce(kHow, e.cast(m.in(0, Type::kBool), Type::kI32));
  // Over nothing the largest is below 0, and nothing is true.
  return {e.cast(e.binary(Op::kMax, found, e.integer(Type::kI32, 0)), m.type())};
}
// Values and positions along one dim.
template <Reduction kValue, Reduction kPosition>
Results extreme(Expressions& e, OperatorSource& s) {
  const Expr x = s.operand(0);
  return {e.cast(e.reduce(kValue, x), compute_type(s.result_storage(0))), e.reduce(kPosition, x)};
}
double correction(Emitter& m) {
  if (m.s.number("correction")) return m.real("correction", 1);
  return m.real("unbiased", 1) != 0 ? 1 : 0;
}
Expr variance(Emitter& m, Expr x, Expr center) {
  Expressions& e = m.e;
  const Expr d = e.sub(x, center);
  const double length = static_cast<double>(m.s.row_length());
  const double n = length > 0 ? length - correction(m) : 0;  // of nothing: NaN
  return e.div(sum(m, e.mul(d, d)), m.number(n > 0 ? n : 0));
}
template <bool kRoot, bool kMean>
Results spread(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr x = m.in(0, m.type()), center = mean(m, x);
  // What rounding leaves of the mean is taken off: equal values have no variance.
  Expr v = variance(m, x, e.add(center, mean(m, e.sub(x, center))));
  if (kRoot) v = e.unary(Op::kSqrt, v);
  if (kMean) return {v, center};
  return {v};
}
Results log_sum_exp(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const Expr x = m.in(0, m.type()), top = e.reduce(Reduction::kTop, x);
  const Expr infinite = e.binary(Op::kEq, e.unary(Op::kAbs, top), m.number(kInfinity));
  const Expr shift = e.select(infinite, m.number(0), top);
  return {e.add(e.unary(Op::kLog, sum(m, e.unary(Op::kExpNormal, e.sub(x, shift)))), shift)};
}
Results vector_norm(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  const double p = m.s.number("ord") ? m.real("ord", 2) : m.real("p", 2);
  const Expr a = e.unary(Op::kAbs, m.in(0, m.type()));
  if (p == kInfinity) return {e.reduce(Reduction::kMax, a)};
  if (p == -kInfinity) return {e.reduce(Reduction::kMin, a)};
  if (p == 0) return {sum(m, e.cast(e.binary(Op::kNe, a, m.number(0)), m.type()))};
  if (m.s.row_length() == 1) return {sum(m, a)};              // no power of it overflows
  if (std::isnan(p)) return {sum(m, e.mul(a, m.number(p)))};  // that of nothing is 0
  if (p == 1) return {sum(m, a)};
  if (p == 2) return {e.unary(Op::kSqrt, sum(m, e.mul(a, a)))};
  return {e.binary(Op::kPow, sum(m, e.binary(Op::kPow, a, m.number(p))), m.number(1 / p))};
}
// Losses with a reduction over everything: self, target.
template <int kPower>
Expr loss_of(Emitter& m) {
  const Expr d = m.e.sub(m.in(0, m.type()), m.in(1, m.type()));
  return kPower == 2 ? m.e.mul(d, d) : m.e.unary(Op::kAbs, d);
}
template <int kPower>
Results loss(Expressions& e, OperatorSource& s) {
  Emitter m{e, s};
  (void)e;
  const Expr x = loss_of<kPower>(m);
  return {m.real("reduction", 1) == 1 ? mean(m, x) : sum(m, x)};
}

using K = Operator;
constexpr Operator kOps[] = {
    {"aten._softmax", K::kRow, softmax},
    {"aten._safe_softmax", K::kRow, safe_softmax},
    {"aten._log_softmax", K::kRow, log_softmax},
    {"aten._softmax_backward_data", K::kRow, softmax_backward},
    {"aten._log_softmax_backward_data", K::kRow, log_softmax_backward},
    {"aten.native_layer_norm", K::kRow, layer_norm},
    {"aten.native_layer_norm_backward", K::kRow, layer_norm_backward},
    {"aten._fused_rms_norm", K::kRow, rms_norm},
    {"aten._native_batch_norm_legit_no_training", K::kChannel, batch_norm_inference},
    {"aten._batch_norm_no_update", K::kChannel, batch_norm_inference},
    {"aten.sum", K::kFold, fold<Reduction::kSum>},
    {"aten.sum.dim_IntList", K::kFold, fold<Reduction::kSum>},
    {"aten.mean", K::kFold, mean_fold},
    {"aten.mean.dim", K::kFold, mean_fold},
    {"aten.prod", K::kFold, fold<Reduction::kProduct>},
    {"aten.prod.dim_int", K::kFold, fold<Reduction::kProduct>},
    {"aten.amax", K::kFold, fold<Reduction::kMax>},
    {"aten.amin", K::kFold, fold<Reduction::kMin>},
    {"aten.max", K::kFold, fold<Reduction::kMax>},
    {"aten.min", K::kFold, fold<Reduction::kMin>},
    {"aten.argmax", K::kFold, fold<Reduction::kArgMax>},
    {"aten.argmin", K::kFold, fold<Reduction::kArgMin>},
    {"aten.max.dim", K::kFold, extreme<Reduction::kMax, Reduction::kArgMax>},
    {"aten.min.dim", K::kFold, extreme<Reduction::kMin, Reduction::kArgMin>},
    {"aten.any", K::kFold, truth<Reduction::kMax>},
    {"aten.any.dim", K::kFold, truth<Reduction::kMax>},
    {"aten.any.dims", K::kFold, truth<Reduction::kMax>},
    {"aten.all", K::kFold, truth<Reduction::kMin>},
    {"aten.all.dim", K::kFold, truth<Reduction::kMin>},
    {"aten.all.dims", K::kFold, truth<Reduction::kMin>},
    {"aten.var.correction", K::kFold, spread<false, false>},
    {"aten.std.correction", K::kFold, spread<true, false>},
    {"aten.var_mean.correction", K::kFold, spread<false, true>},
    {"aten.std_mean.correction", K::kFold, spread<true, true>},
    {"aten.logsumexp", K::kFold, log_sum_exp},
    {"aten.linalg_vector_norm", K::kFold, vector_norm},
    {"aten.mse_loss", K::kFold, loss<2>},
    {"aten.l1_loss", K::kFold, loss<1>},
};

}  // namespace

std::span<const Operator> row_operators() { return kOps; }

// What rounding leaves of the mean is taken off: equal values have their own as mean, and no
// variance. Both come of one pass behind the first.
Moments moments(Expressions& e, Expr x, std::int64_t count) {
  const Type t = e.type(x);
  const Expr part = e.constant(t, 1.0 / static_cast<double>(count));
  const auto mean = [&](Expr of) { return e.mul(e.reduce(Reduction::kSum, of), part); };
  const Expr center = mean(x), d = e.sub(x, center), squares = mean(e.mul(d, d)),
             none = e.constant(t, 0);
  // Beside a small mean the distances are rounded all the same way, by more than is left of it.
  const Expr is_large = e.binary(Op::kLt, squares, e.mul(center, center)),
             rest = e.select(is_large, mean(d), none);
  return {e.add(center, rest), e.binary(Op::kMax, none, e.sub(squares, e.mul(rest, rest)))};
}

}  // namespace backplane::kernelgen
