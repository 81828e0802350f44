// Upsampling and its gradients: along each dimension a result is a weighted sum of a few points.
#include <cmath>

#include "kernel_registry.h"
#include "kernels/pooling.h"

namespace backplane::reference {
namespace {

struct Tap {
  int64_t at;
  double weight;
};
using Taps = std::vector<std::vector<Tap>>;  // per result position

enum class Method { kNearest, kNearestExact, kLinear, kCubic, kLinearSmooth, kCubicSmooth };

// R is the type the framework computes positions in; they decide which points are taken.
template <class R>
Taps taps_of(Method method, int64_t in, int64_t out, bool align, double given_scale, bool by_size) {
  const auto in_size = static_cast<R>(in);
  Taps taps(out);
  R scale = given_scale > 0 ? static_cast<R>(1.0 / given_scale) : in_size / static_cast<R>(out);
  const bool nearest = method == Method::kNearest || method == Method::kNearestExact;
  if (align && !nearest) scale = out > 1 ? static_cast<R>(in - 1) / static_cast<R>(out - 1) : R(0);
  for (int64_t i = 0; i < out; ++i) {
    const auto at = static_cast<R>(i);
    std::vector<Tap>& to = taps[i];
    if (nearest) {
      int64_t x = 0;
      if (method == Method::kNearestExact)
        x = static_cast<int64_t>(std::floor((at + R(0.5)) * scale));
      else if (by_size && in == out)
        x = i;
      else if (by_size && out == 2 * in)
        x = i / 2;
      else
        x = static_cast<int64_t>(std::floor(at * scale));
      to.push_back({std::min(x, in - 1), 1});
    } else if (method == Method::kLinear) {
      if (in == out) {
        to = {{i, 1}, {i, 0}};
        continue;
      }
      R x = align ? scale * at : scale * (at + R(0.5)) - R(0.5);
      if (x < 0) x = 0;
      const int64_t low = std::min(static_cast<int64_t>(x), in - 1);
      const R part = std::min(std::max(x - static_cast<R>(low), R(0)), R(1));
      to.push_back({low, static_cast<double>(R(1) - part)});
      to.push_back({std::min(low + 1, in - 1), static_cast<double>(part)});
    } else if (method == Method::kCubic) {
      const R x = align ? scale * at : scale * (at + R(0.5)) - R(0.5);
      const auto low = static_cast<int64_t>(std::floor(x));
      const auto t = static_cast<double>(x - std::floor(x));
      const auto near = [](double d) { return ((1.25 * d) - 2.25) * d * d + 1; };
      const auto far = [](double d) { return ((-0.75 * d + 3.75) * d - 6) * d + 3; };
      const double weights[] = {far(t + 1), near(t), near(1 - t), far(2 - t)};
      for (int k = 0; k < 4; ++k)
        to.push_back({std::clamp<int64_t>(low - 1 + k, 0, in - 1), weights[k]});
    } else {
      const bool cubic = method == Method::kCubicSmooth;
      const R reach = (cubic ? R(2) : R(1)) * std::max(scale, R(1));
      const R inverse = scale >= 1 ? R(1) / scale : R(1), center = scale * (at + R(0.5));
      const int64_t first = std::max<int64_t>(static_cast<int64_t>(center - reach + R(0.5)), 0);
      const int64_t last = std::min<int64_t>(static_cast<int64_t>(center + reach + R(0.5)), in);
      double sum = 0;
      for (int64_t x = first; x < last; ++x) {
        const double d =
            std::abs(static_cast<double>((static_cast<R>(x) - center + R(0.5)) * inverse));
        double w = 0;
        if (!cubic)
          w = d < 1 ? 1 - d : 0;
        else if (d < 1)
          w = (1.5 * d - 2.5) * d * d + 1;
        else if (d < 2)
          w = ((-0.5 * d + 2.5) * d - 4) * d + 2;
        to.push_back({x, w});
        sum += w;
      }
      if (sum != 0)
        for (Tap& tap : to) tap.weight /= sum;
    }
  }
  return taps;
}

// One dimension of [outer, size, inner]; transposed: from results back to points.
std::vector<double> apply(const std::vector<double>& x, const Taps& taps, int64_t size,
                          int64_t inner, bool transposed) {
  const auto count = static_cast<int64_t>(taps.size());
  const int64_t from = transposed ? count : size, to = transposed ? size : count;
  const int64_t block = from * inner;
  const int64_t outer = block != 0 ? static_cast<int64_t>(x.size()) / block : 0;
  std::vector<double> y(outer * to * inner);
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t i = 0; i < count; ++i)
      for (const Tap& tap : taps[i]) {
        const double* source = x.data() + (o * from + (transposed ? i : tap.at)) * inner;
        double* target = y.data() + (o * to + (transposed ? tap.at : i)) * inner;
        for (int64_t k = 0; k < inner; ++k) target[k] += tap.weight * source[k];
      }
  return y;
}

// More than three channels, side by side, and the dims behind them in their order.
bool lies_channels_last(const Tensor& volume) {
  const int64_t channels = volume.dims[1];
  if (channels <= 3 || volume.strides[1] != 1) return false;
  int64_t expected = channels;
  for (int64_t d = volume.rank(); d-- > 2;) {
    if (volume.dims[d] != 1 && volume.strides[d] != expected) return false;
    expected *= volume.dims[d];
  }
  return true;
}

template <Method kMethod, int64_t kSpatial, bool kBackward>
void run_upsample(const Frame& f) {
  const Tensor from = f.in(0), to = f.out();
  const Tensor& small = kBackward ? to : from;
  const Tensor& large = kBackward ? from : to;
  const bool align = f.flag("align_corners", false);
  std::vector<double> x = load<double>(from);
  // PyTorch copies these, and multiplies nothing by a weight of zero.
  if (kBackward && kMethod == Method::kCubic && small.dims == large.dims) return store(to, x);
  const std::vector<double> factors = f.reals("scale_factors");
  static constexpr std::string_view kNames[] = {"scales_d", "scales_h", "scales_w"};
  // PyTorch's kernels of nearest points look at sizes first, but for these.
  const bool by_size = kBackward || kSpatial == 2 || (kSpatial == 3 && lies_channels_last(from));
  for (int64_t s = 0; s < kSpatial; ++s) {
    const int64_t dim = small.rank() - kSpatial + s;
    double scale = 0;
    if (!factors.empty())
      scale = factors[s];
    else
      scale = kSpatial == 1 ? f.real("scales", 0) : f.real(kNames[3 - kSpatial + s], 0);
    const bool nearest = kMethod == Method::kNearest || kMethod == Method::kNearestExact;
    const int64_t in = small.dims[dim], out = large.dims[dim];
    const Taps taps = small.type == Type::kF64 && !nearest
                          ? taps_of<double>(kMethod, in, out, align, scale, by_size)
                          : taps_of<float>(kMethod, in, out, align, scale, by_size);
    int64_t inner = 1;  // dims before are done already
    for (int64_t d = dim + 1; d < small.rank(); ++d) inner *= from.dims[d];
    x = apply(x, taps, small.dims[dim], inner, kBackward);
  }
  if (is_integral(to.type))
    for (double& v : x) v = std::fmin(std::fmax(std::nearbyint(v), 0), 255);
  store(to, x);
}

std::optional<sdk::Refusal> refuse_fixed_point(const sdk::NodeView& node) {
  if (!is_integral(type_of(node.result().dtype()))) return std::nullopt;
  return sdk::Refusal{0, BP_REFUSED_DTYPE, "PyTorch resamples 8-bit images in fixed point"};
}

constexpr KernelRow kRows[] = {
    {"aten.upsample_nearest1d", run_upsample<Method::kNearest, 1, false>},
    {"aten.upsample_nearest2d", run_upsample<Method::kNearest, 2, false>},
    {"aten.upsample_nearest3d", run_upsample<Method::kNearest, 3, false>},
    {"aten.upsample_nearest1d.vec", run_upsample<Method::kNearest, 1, false>},
    {"aten.upsample_nearest2d.vec", run_upsample<Method::kNearest, 2, false>},
    {"aten.upsample_nearest3d.vec", run_upsample<Method::kNearest, 3, false>},
    {"aten._upsample_nearest_exact1d", run_upsample<Method::kNearestExact, 1, false>},
    {"aten._upsample_nearest_exact2d", run_upsample<Method::kNearestExact, 2, false>},
    {"aten._upsample_nearest_exact3d", run_upsample<Method::kNearestExact, 3, false>},
    {"aten.upsample_linear1d", run_upsample<Method::kLinear, 1, false>},
    {"aten.upsample_bilinear2d", run_upsample<Method::kLinear, 2, false>},
    {"aten.upsample_bilinear2d.vec", run_upsample<Method::kLinear, 2, false>},
    {"aten.upsample_trilinear3d", run_upsample<Method::kLinear, 3, false>},
    {"aten.upsample_bicubic2d", run_upsample<Method::kCubic, 2, false>, false, nullptr,
     refuse_fixed_point},
    {"aten._upsample_bilinear2d_aa", run_upsample<Method::kLinearSmooth, 2, false>},
    {"aten._upsample_bicubic2d_aa", run_upsample<Method::kCubicSmooth, 2, false>},
    {"aten.upsample_nearest1d_backward", run_upsample<Method::kNearest, 1, true>},
    {"aten.upsample_nearest2d_backward", run_upsample<Method::kNearest, 2, true>},
    {"aten.upsample_nearest3d_backward", run_upsample<Method::kNearest, 3, true>},
    {"aten._upsample_nearest_exact1d_backward", run_upsample<Method::kNearestExact, 1, true>},
    {"aten._upsample_nearest_exact2d_backward", run_upsample<Method::kNearestExact, 2, true>},
    {"aten._upsample_nearest_exact3d_backward", run_upsample<Method::kNearestExact, 3, true>},
    {"aten.upsample_linear1d_backward", run_upsample<Method::kLinear, 1, true>},
    {"aten.upsample_bilinear2d_backward", run_upsample<Method::kLinear, 2, true>},
    {"aten.upsample_trilinear3d_backward", run_upsample<Method::kLinear, 3, true>},
    {"aten.upsample_bicubic2d_backward", run_upsample<Method::kCubic, 2, true>},
    {"aten._upsample_bilinear2d_aa_backward", run_upsample<Method::kLinearSmooth, 2, true>},
    {"aten._upsample_bicubic2d_aa_backward", run_upsample<Method::kCubicSmooth, 2, true>},
};

}  // namespace

KernelRows resampling_kernels() { return kRows; }

}  // namespace backplane::reference
