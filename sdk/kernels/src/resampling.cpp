// Nearest and linear resampling of the last one to three dims, and gradients. Positions and weights
// are computed on the host, by the framework's rules, and lie in tables.
#include <backplane/sdk/resampling.hpp>

#include <algorithm>

#include "registry.hpp"

namespace backplane::kernels {
namespace {

using kernelgen::Op;
using kernelgen::Reduction;
using sdk::ResampledFrom;
using sdk::ResampledInto;
using sdk::Resampling;
using sdk::ResamplingReaders;

Result<TensorView> table(Builder& b, Storage storage, const void* data, std::size_t count) {
  auto memory = b.target().constant(
      data, count * static_cast<std::size_t>(kernelgen::storage_bytes(storage)));
  if (!memory.ok()) return memory.status();
  TensorView view;
  view.argument.kind = Argument::kConstant;
  view.argument.constant = std::move(*memory);
  view.storage = storage;
  view.dims = {static_cast<std::int64_t>(count)};
  view.strides = {1};
  return view;
}
Result<TensorView> table(Builder& b, const std::vector<float>& values) {
  return table(b, Storage::kF32, values.data(), values.size());
}
Result<TensorView> table(Builder& b, const std::vector<std::int32_t>& values) {
  return table(b, Storage::kI32, values.data(), values.size());
}

// Without gaps: the channels side by side, then the dims behind them in their order.
bool lies_channels_last(const TensorView& view, std::size_t channel) {
  std::int64_t expected = view.dims[channel];
  if (expected != 1 && view.strides[channel] != 1) return false;
  for (std::size_t d = view.dims.size(); d-- > channel + 1;) {
    if (view.dims[d] != 1 && view.strides[d] != expected) return false;
    expected *= view.dims[d];
  }
  return true;
}

template <std::size_t kDims>
std::vector<ResampledFrom> resampled(Builder& b, Resampling method, std::size_t dim,
                                     const Shape& in, const Shape& out, bool by_size) {
  static constexpr const char* kNames[] = {"scales_d", "scales_h", "scales_w"};
  const sdk::NodeView node = b.step().node();
  const std::size_t k = in.size() - kDims + dim;
  return sdk::resample(method, in[k], out[k], node.bool_or("align_corners", false),
                       node.real_or(kDims == 1 ? "scales" : kNames[3 - kDims + dim], 0), by_size);
}

template <std::size_t kDims, Resampling kMethod>
Status resample(Builder& b) {
  constexpr bool kLinear = kMethod == Resampling::kLinear;
  auto in = b.operand(0);
  if (!in.ok()) return in.status();
  const TensorView out = b.result();
  if (product(out.dims) == 0) return {};
  Draft d(b, out.dims);
  Expressions& e = d.e();
  const std::size_t channel = out.dims.size() - kDims - 1;
  const bool by_size =
      sdk::is_nearest_by_size(kDims, out.dims[channel], lies_channels_last(*in, channel));
  // Of each dim the first and the second point, and their weights.
  std::array<std::array<Expr, kDims>, 2> at{}, weight{};
  for (std::size_t i = 0; i < kDims; ++i) {
    const std::size_t k = out.dims.size() - kDims + i;
    std::array<std::vector<std::int32_t>, 2> points;
    std::array<std::vector<float>, 2> weights;
    for (const ResampledFrom& from : resampled<kDims>(b, kMethod, i, in->dims, out.dims, by_size)) {
      points[0].push_back(static_cast<std::int32_t>(from.first));
      points[1].push_back(static_cast<std::int32_t>(from.second));
      weights[0].push_back(from.first_weight);
      weights[1].push_back(from.second_weight);
    }
    for (std::size_t s = 0; s < (kLinear ? 2 : 1); ++s) {
      auto position = table(b, points[s]);
      if (!position.ok()) return position.status();
      at[s][i] = e.cast(d.load_at(*position, d.outer()[k]), e.index_type());
      if (!kLinear) continue;
      auto share = table(b, weights[s]);
      if (!share.ok()) return share.status();
      weight[s][i] = d.load_at(*share, d.outer()[k]);
    }
  }
  // Innermost first, as the framework sums.
  const auto sum = [&](const auto& self, Indices index) -> Expr {
    const std::size_t i = index.size() - (out.dims.size() - kDims);
    if (i == kDims) return d.load(*in, index);
    Expr total = kernelgen::kNoExpr;
    for (std::size_t s = 0; s < (kLinear ? 2 : 1); ++s) {
      index.push_back(at[s][i]);
      const Expr value = self(self, index);
      index.pop_back();
      if (!kLinear) return value;
      const Expr part = e.mul(weight[s][i], value);
      total = s == 0 ? part : e.add(total, part);
    }
    return total;
  };
  d.store(out, d.outer(), sum(sum, {d.outer().begin(), d.outer().end() - kDims}));
  return d.finish();
}

template <std::size_t kDims, Resampling kMethod>
Status resample_backward(Builder& b) {
  auto grad = b.operand(0);
  if (!grad.ok()) return grad.status();
  const TensorView out = b.result();
  if (product(out.dims) == 0) return {};
  const std::size_t lead = out.dims.size() - kDims;
  std::array<ResamplingReaders, kDims> readers;
  Shape most(kDims, 1);
  for (std::size_t i = 0; i < kDims; ++i) {
    readers[i] = sdk::transposed(resampled<kDims>(b, kMethod, i, out.dims, grad->dims, true),
                                 out.dims[lead + i]);
    for (const ResampledInto& into : readers[i].points) most[i] = std::max(most[i], into.count);
  }
  Draft d(b, out.dims, most);
  Expressions& e = d.e();
  Indices at(d.outer().begin(), d.outer().end() - kDims);
  Expr inside = e.integer(kernelgen::Type::kBool, 1), weight = e.constant(kernelgen::Type::kF32, 1);
  for (std::size_t i = 0; i < kDims; ++i) {
    std::vector<std::int32_t> first, count, weights_at;
    for (const ResampledInto& into : readers[i].points) {
      first.push_back(static_cast<std::int32_t>(into.first));
      count.push_back(static_cast<std::int32_t>(into.count));
      weights_at.push_back(static_cast<std::int32_t>(into.weights_at));
    }
    auto starts = table(b, first), counts = table(b, count), places = table(b, weights_at),
         weights = table(b, readers[i].weights);
    for (auto* made : {&starts, &counts, &places, &weights})
      if (!made->ok()) return made->status();
    const auto read = [&](const TensorView& t) {
      return e.cast(d.load_at(t, d.outer()[lead + i]), e.index_type());
    };
    const Expr here = e.binary(Op::kLt, d.loop()[i], read(*counts));
    // Beyond the last reader, the first is read and not counted.
    const Expr step = e.select(here, d.loop()[i], d.index(0));
    inside = e.both(inside, here);
    at.push_back(e.clamped(e.add(read(*starts), step), grad->dims[lead + i]));
    const Expr place =
        e.clamped(e.add(read(*places), step), static_cast<std::int64_t>(readers[i].weights.size()));
    weight = e.mul(weight, d.load_at(*weights, place));
  }
  const Expr value = e.mul(weight, d.load(*grad, at));
  d.store(out, d.outer(),
          e.reduce(Reduction::kSum, e.select(inside, value, e.constant(e.type(value), 0))));
  return d.finish();
}

std::optional<sdk::Refusal> refuse_wide(const sdk::NodeView& node) {
  const Storage storage = *storage_of(node.operand(0).dtype());
  if (!kernelgen::is_float(storage) || storage == Storage::kF64)
    return refusal(BP_REFUSED_DTYPE, "floats of up to 32 bits only");
  return std::nullopt;
}

template <Resampling kMethod, std::size_t kDims>
constexpr KernelRow forward_row(std::string_view name) {
  return {name, resample<kDims, kMethod>, kMethod == Resampling::kLinear ? refuse_wide : nullptr};
}
template <Resampling kMethod, std::size_t kDims>
constexpr KernelRow backward_row(std::string_view name) {
  return {name, resample_backward<kDims, kMethod>, refuse_wide};
}
constexpr auto kNearest = Resampling::kNearest;
constexpr auto kNearestExact = Resampling::kNearestExact;
constexpr auto kLinear = Resampling::kLinear;

constexpr KernelRow kRows[] = {
    forward_row<kNearest, 1>("aten.upsample_nearest1d"),
    forward_row<kNearest, 2>("aten.upsample_nearest2d"),
    forward_row<kNearest, 3>("aten.upsample_nearest3d"),
    forward_row<kNearestExact, 1>("aten._upsample_nearest_exact1d"),
    forward_row<kNearestExact, 2>("aten._upsample_nearest_exact2d"),
    forward_row<kNearestExact, 3>("aten._upsample_nearest_exact3d"),
    forward_row<kLinear, 1>("aten.upsample_linear1d"),
    forward_row<kLinear, 2>("aten.upsample_bilinear2d"),
    forward_row<kLinear, 3>("aten.upsample_trilinear3d"),
    backward_row<kNearest, 1>("aten.upsample_nearest1d_backward"),
    backward_row<kNearest, 2>("aten.upsample_nearest2d_backward"),
    backward_row<kNearest, 3>("aten.upsample_nearest3d_backward"),
    backward_row<kNearestExact, 1>("aten._upsample_nearest_exact1d_backward"),
    backward_row<kNearestExact, 2>("aten._upsample_nearest_exact2d_backward"),
    backward_row<kNearestExact, 3>("aten._upsample_nearest_exact3d_backward"),
    backward_row<kLinear, 1>("aten.upsample_linear1d_backward"),
    backward_row<kLinear, 2>("aten.upsample_bilinear2d_backward"),
    backward_row<kLinear, 3>("aten.upsample_trilinear3d_backward"),
};

}  // namespace

std::span<const KernelRow> resampling_kernels() { return kRows; }

}  // namespace backplane::kernels
