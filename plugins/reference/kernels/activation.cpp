// Activations and their gradients.
#include "kernels/pointwise.h"

namespace backplane::reference {
namespace {

using I = std::int64_t;

constexpr double kSqrtHalf = 0.70710678118654752440;
constexpr double kInvSqrtTwoPi = 0.39894228040143267794;
constexpr double kSqrtTwoOverPi = 0.79788456080286535588;
constexpr double kGeluCubic = 0.044715;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return x > 30 ? x : std::log1p(std::exp(x)); }

constexpr auto kRelu = [](auto&, auto a) { return a < decltype(a)(0) ? decltype(a)(0) : a; };
constexpr auto kRelu6 = [](auto&, auto a) {
  using T = decltype(a);
  return a != a ? a : a < T(0) ? T(0) : a > T(6) ? T(6) : a;
};
constexpr auto kLeaky = [](auto& p, double a) { return a > 0 ? a : a * p[0]; };
constexpr auto kLeakyBackward = [](auto& p, double g, double a) { return a > 0 ? g : g * p[0]; };
constexpr auto kElu = [](auto& p, double a) {
  return a < 0 ? p[0] * p[1] * std::expm1(a * p[2]) : a * p[1];
};
constexpr auto kEluBackward = [](auto& p, double g, double a) {
  const double negative = p[0] * p[1];
  if (p[3] != 0) return a <= 0 ? g * p[2] * (a + negative) : g * p[1];
  return a <= 0 ? g * p[2] * negative * std::exp(a * p[2]) : g * p[1];
};
constexpr auto kCelu = [](auto& p, double a) { return a < 0 ? p[0] * std::expm1(a / p[0]) : a; };
constexpr auto kSelu = [](auto&, double a) {
  const double alpha = 1.6732632423543772848170429916717, scale = 1.0507009873554804934193349852946;
  return a < 0 ? alpha * scale * std::expm1(a) : a * scale;
};
constexpr auto kGelu = [](auto& p, double x) {
  if (p[0] == 1) return 0.5 * x * (1 + std::tanh(kSqrtTwoOverPi * (x + kGeluCubic * x * x * x)));
  return x * 0.5 * (1 + std::erf(x * kSqrtHalf));
};
constexpr auto kGeluBackward = [](auto& p, double g, double x) {
  if (p[0] == 1) {
    const double t = std::tanh(kSqrtTwoOverPi * (x + kGeluCubic * x * x * x));
    const double inner = kSqrtTwoOverPi * (1 + 3 * kGeluCubic * x * x);
    return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner);
  }
  const double cdf = 0.5 * (1 + std::erf(x * kSqrtHalf));
  return g * (cdf + x * kInvSqrtTwoPi * std::exp(-0.5 * x * x));
};
constexpr auto kSilu = [](auto&, auto x) {
  using T = decltype(x);
  return x / (T(1) + std::exp(-x));
};
constexpr auto kSiluBackward = [](auto&, double g, double x) {
  const double s = sigmoid(x);
  return g * s * (1 + x * (1 - s));
};
constexpr auto kMish = [](auto&, double x) { return x * std::tanh(softplus(x)); };
constexpr auto kMishBackward = [](auto&, double g, double x) {
  const double t = std::tanh(softplus(x));
  return g * (t + x * sigmoid(x) * (1 - t * t));
};
constexpr auto kSoftplus = [](auto& p, double x) {
  return x * p[0] > p[1] ? x : std::log1p(std::exp(x * p[0])) / p[0];
};
constexpr auto kSoftplusBackward = [](auto& p, double g, double x) {
  if (x * p[0] > p[1]) return g;
  const double z = std::exp(x * p[0]);
  return g * z / (z + 1);
};
constexpr auto kHardtanh = [](auto& p, auto a) {
  if (p[0] != p[0] || p[1] != p[1]) return decltype(a < p[0] ? p[0] : a)(p[0] + p[1]);
  const auto low = a < p[0] ? p[0] : a;
  return low > p[1] ? p[1] : low;
};
constexpr auto kHardtanhBackward = [](auto& p, double g, double a) {
  return a <= p[0] || a >= p[1] ? 0 : g;
};
constexpr auto kHardsigmoid = [](auto&, double x) {
  return std::fmin(std::fmax(x + 3, 0.0), 6.0) / 6 + (std::isnan(x) ? x : 0);
};
constexpr auto kHardsigmoidBackward = [](auto&, double g, double x) {
  return x > -3 && x < 3 ? g / 6 : 0;
};
constexpr auto kHardswish = [](auto&, double x) {
  return x * std::fmin(std::fmax(x + 3, 0.0), 6.0) / 6;
};
constexpr auto kHardswishBackward = [](auto&, double g, double x) {
  return x <= -3 ? 0 : x >= 3 ? g : g * (x / 3 + 0.5);  // NaN of NaN
};
constexpr auto kSoftshrink = [](auto& p, double x) {
  const double bound = as_computed(p.compute, p[0]);
  return x > bound ? x - bound : x < -bound ? x + bound : x * 0;
};
constexpr auto kHardshrink = [](auto& p, double x) {
  return std::abs(x) <= as_computed(p.compute, p[0]) ? 0 : x;
};
constexpr auto kShrinkBackward = [](auto& p, double g, double x) {
  return std::abs(x) <= as_computed(p.compute, p[0]) ? 0 : g;
};
constexpr auto kThreshold = [](auto& p, auto a) { return a <= p[0] ? p[1] : a; };
constexpr auto kThresholdBackward = [](auto& p, auto g, auto a) {
  return a <= p[0] ? decltype(g)(0) : g;
};
constexpr auto kSigmoidBackward = [](auto&, double g, double y) { return g * (1 - y) * y; };
constexpr auto kSigmoidBackwardComplex = [](auto&, Complex g, Complex y) {
  return g * std::conj((1.0 - y) * y);
};
constexpr auto kTanhBackward = [](auto&, double g, double y) { return g * (1 - y * y); };
constexpr auto kTanhBackwardComplex = [](auto&, Complex g, Complex y) {
  return g * std::conj(1.0 - y * y);
};
constexpr auto kLogitBackward = [](auto& p, double g, double x) {
  if (p.has[0] && p[0] >= 0) return x < p[0] || x > 1 - p[0] ? 0 : g / (x * (1 - x));
  return x < 0 || x > 1 ? std::nan("") : g / (x * (1 - x));
};
constexpr auto kPrelu = [](auto&, double a, double w) { return a > 0 ? a : a * w; };
constexpr auto kRreluBackward = [](auto& p, double g, double x, double noise) {
  if (p[2] != 0 && p[1] - p[0] > 1e-6) return g * noise;
  return x > 0 ? g : g * (p[0] + p[1]) / 2;
};
constexpr auto kLogSigmoidBackward = [](auto&, double g, double x, double) {
  return g * sigmoid(-x);
};

constexpr Names kGradSelf = {"grad_output", "self"};
constexpr Compute kInResult = Compute::kResult;
constexpr ParamList kApproximate = {Param{"approximate", 0}};

constexpr PointwiseRow kRows[] = {
    unary("aten.relu", kRelu, kRelu),
    unary("aten.relu6", kRelu6, kRelu6),
    pointwise<1>("aten.leaky_relu", {"self"}, {Param{"negative_slope", 0.01}}, kInResult, kLeaky),
    pointwise<2>("aten.leaky_relu_backward", kGradSelf, {Param{"negative_slope", 0.01}}, kInResult,
                 kLeakyBackward),
    pointwise<1>("aten.elu", {"self"},
                 {Param{"alpha", 1}, Param{"scale", 1}, Param{"input_scale", 1}}, kInResult, kElu),
    pointwise<2>(
        "aten.elu_backward", {"grad_output", "self_or_result"},
        {Param{"alpha", 1}, Param{"scale", 1}, Param{"input_scale", 1}, Param{"is_result", 0}},
        kInResult, kEluBackward),
    pointwise<1>("aten.celu", {"self"}, {Param{"alpha", 1}}, kInResult, kCelu),
    unary("aten.selu", kSelu),
    pointwise<1>("aten.gelu", {"self"}, kApproximate, kInResult, kGelu),
    pointwise<2>("aten.gelu_backward", kGradSelf, kApproximate, kInResult, kGeluBackward),
    unary("aten.silu", kSilu, None{}, kSilu),
    pointwise<2>("aten.silu_backward", kGradSelf, {}, kInResult, kSiluBackward),
    unary("aten.mish", kMish),
    pointwise<2>("aten.mish_backward", kGradSelf, {}, kInResult, kMishBackward),
    pointwise<1>("aten.softplus", {"self"}, {Param{"beta", 1}, Param{"threshold", 20}}, kInResult,
                 kSoftplus),
    pointwise<2>("aten.softplus_backward", kGradSelf, {Param{"beta", 1}, Param{"threshold", 20}},
                 kInResult, kSoftplusBackward),
    pointwise<1>("aten.hardtanh", {"self"}, {Param{"min_val", -1}, Param{"max_val", 1}}, kInResult,
                 kHardtanh, kHardtanh),
    pointwise<2>("aten.hardtanh_backward", kGradSelf, {Param{"min_val", -1}, Param{"max_val", 1}},
                 kInResult, kHardtanhBackward),
    unary("aten.hardsigmoid", kHardsigmoid),
    pointwise<2>("aten.hardsigmoid_backward", kGradSelf, {}, kInResult, kHardsigmoidBackward),
    unary("aten.hardswish", kHardswish),
    pointwise<2>("aten.hardswish_backward", kGradSelf, {}, kInResult, kHardswishBackward),
    pointwise<1>("aten.softshrink", {"self"}, {Param{"lambd", 0.5}}, kInResult, kSoftshrink),
    pointwise<2>("aten.softshrink_backward", kGradSelf, {Param{"lambd", 0.5}}, kInResult,
                 kShrinkBackward),
    pointwise<1>("aten.hardshrink", {"self"}, {Param{"lambd", 0.5}}, kInResult, kHardshrink),
    pointwise<2>("aten.hardshrink_backward", {"grad_out", "self"}, {Param{"lambd", 0.5}}, kInResult,
                 kShrinkBackward),
    pointwise<1>("aten.threshold", {"self"}, {Param{"threshold", 0}, Param{"value", 0}}, kInResult,
                 kThreshold, kThreshold),
    pointwise<2>("aten.threshold_backward", kGradSelf, {Param{"threshold", 0}}, kInResult,
                 kThresholdBackward, kThresholdBackward),
    pointwise<2>("aten.sigmoid_backward", {"grad_output", "output"}, {}, kInResult,
                 kSigmoidBackward, None{}, kSigmoidBackwardComplex),
    pointwise<2>("aten.tanh_backward", {"grad_output", "output"}, {}, kInResult, kTanhBackward,
                 None{}, kTanhBackwardComplex),
    pointwise<2>("aten.logit_backward", kGradSelf, {Param{"eps", 0}}, kInResult, kLogitBackward),
    pointwise<2>("aten._prelu_kernel", {"self", "weight"}, {}, kInResult, kPrelu),
    pointwise<3>("aten.rrelu_with_noise_backward", {"grad_output", "self", "noise"},
                 {Param{"lower", 0.125}, Param{"upper", 1.0 / 3}, Param{"training", 0}}, kInResult,
                 kRreluBackward),
    pointwise<3>("aten.log_sigmoid_backward", {"grad_output", "self", "buffer"}, {}, kInResult,
                 kLogSigmoidBackward),
};

}  // namespace

PointwiseRows activation_kernels() { return kRows; }

}  // namespace backplane::reference
