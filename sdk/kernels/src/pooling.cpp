// Pooling over windows, in one to three dims: the last ones of the tensor.
#include <limits>

#include "planes.hpp"
#include "registry.hpp"

namespace backplane::kernels {
namespace {

using kernelgen::Op;
using kernelgen::Reduction;

// Up to so many are written out instead of looped over, so that neighbours share vectors.
constexpr std::int64_t kFewTaps = 9;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Window read_window(const Builder& b, std::size_t rank) {
  Window w;
  w.kernel = per_dim(b.step().ints("kernel_size"), rank, 1);
  w.stride = b.step().ints("stride");
  w.stride = w.stride.empty() ? w.kernel : per_dim(w.stride, rank, 1);
  w.padding = per_dim(b.step().ints("padding"), rank, 0);
  w.dilation = per_dim(b.step().ints("dilation"), rank, 1);
  return w;
}
Indices lead(const Indices& axes, std::size_t dims) {
  return {axes.begin(), axes.end() - static_cast<std::ptrdiff_t>(dims)};
}

// Input positions of the window's taps; the truth of their being inside.
Expr taps(Draft& d, const Window& w, const TensorView& in, const Indices& axes, const Indices& loop,
          Indices& out_at) {
  Expressions& e = d.e();
  out_at = lead(axes, w.rank());
  Expr inside = e.integer(kernelgen::Type::kBool, 1);
  for (std::size_t i = 0; i < w.rank(); ++i) {
    const std::size_t k = axes.size() - w.rank() + i;
    const Expr start = e.sub(e.mul(axes[k], d.index(w.stride[i])), d.index(w.padding[i]));
    const Expr at = e.add(start, e.mul(loop[i], d.index(w.dilation[i])));
    inside = e.both(inside, e.inside(at, in.dims[k]));
    out_at.push_back(e.clamped(at, in.dims[k]));
  }
  return inside;
}
// Output positions whose windows hold the input position with tap `loop`.
Expr holders(Draft& d, const Window& w, const Shape& out_dims, const Indices& axes,
             const Indices& loop, Indices& out_at) {
  Expressions& e = d.e();
  out_at = lead(axes, w.rank());
  Expr inside = e.integer(kernelgen::Type::kBool, 1);
  for (std::size_t i = 0; i < w.rank(); ++i) {
    const std::size_t k = axes.size() - w.rank() + i;
    const Expr at =
        e.sub(e.add(axes[k], d.index(w.padding[i])), e.mul(loop[i], d.index(w.dilation[i])));
    const Expr o = e.div(at, d.index(w.stride[i]));
    const Expr whole = e.binary(Op::kEq, e.binary(Op::kMod, at, d.index(w.stride[i])), d.index(0));
    inside = e.both(inside, e.both(e.both(e.binary(Op::kLe, d.index(0), at), whole),
                                   e.binary(Op::kLt, o, d.index(out_dims[k]))));
    out_at.push_back(e.clamped(o, out_dims[k]));
  }
  return inside;
}

// A walk over `sizes`, the last dim first.
template <class Visit>
void for_each(const Shape& sizes, Visit&& visit) {
  Shape at(sizes.size(), 0);
  for (std::int64_t i = 0; i < product(sizes); ++i) {
    visit(at);
    for (std::size_t k = at.size(); k-- > 0;) {
      if (++at[k] < sizes[k]) break;
      at[k] = 0;
    }
  }
}
Indices constants(Draft& d, const Shape& values) {
  Indices out;
  for (const std::int64_t v : values) out.push_back(d.index(v));
  return out;
}
// The position `at` among the last dims of `in`, row by row.
Expr flat_position(Draft& d, const Shape& in, const Indices& at, std::size_t dims) {
  Expressions& e = d.e();
  Expr flat = e.integer(kernelgen::Type::kI64, 0);
  for (std::size_t k = in.size() - dims; k < in.size(); ++k)
    flat = e.add(e.mul(flat, e.integer(kernelgen::Type::kI64, in[k])),
                 e.cast(at[k], kernelgen::Type::kI64));
  return flat;
}

// Whether a window between its dilated taps holds none of the input.
bool has_bare_windows(const Window& w, const Shape& in, const Shape& out) {
  for (std::size_t i = 0; i < w.rank(); ++i) {
    const std::int64_t size = in[in.size() - w.rank() + i];
    for (std::int64_t o = 0; o < out[out.size() - w.rank() + i]; ++o) {
      const std::int64_t start = o * w.stride[i] - w.padding[i],
                         outside = start < 0 ? (w.dilation[i] - 1 - start) / w.dilation[i] : 0;
      if (outside >= w.kernel[i] || start + outside * w.dilation[i] >= size) return true;
    }
  }
  return false;
}
// The position of a window's first tap at or behind the input's start: that of one with no tap
// inside, in PyTorch.
template <std::size_t kDims>
Expr first_position(Draft& d, const Window& w, const Shape& in, const Indices& axes) {
  Expressions& e = d.e();
  Indices at = lead(axes, kDims);
  for (std::size_t i = 0; i < kDims; ++i) {
    const Expr dilation = d.index(w.dilation[i]);
    const Expr start =
        e.sub(e.mul(axes[axes.size() - kDims + i], d.index(w.stride[i])), d.index(w.padding[i]));
    const Expr before = e.binary(Op::kMax, e.sub(d.index(0), start), d.index(0));
    const Expr skipped = e.div(e.add(before, d.index(w.dilation[i] - 1)), dilation);
    at.push_back(e.add(start, e.mul(skipped, dilation)));
  }
  return flat_position(d, in, at, kDims);
}

// Taps one after the other: the first that is largest, or the last NaN.
template <std::size_t kDims>
void max_of_few(Draft& d, const Window& w, const TensorView& in, const Shape& out, Expr& out_value,
                Expr& out_place) {
  Expressions& e = d.e();
  const Expr none = e.constant(kernelgen::compute_type(in.storage), -kInfinity);
  Expr found = e.integer(kernelgen::Type::kBool, 0);
  out_value = none;
  out_place = e.integer(kernelgen::Type::kI64, 0);
  for_each(w.kernel, [&](const Shape& tap) {
    Indices at;
    const Expr inside = taps(d, w, in, d.outer(), constants(d, tap), at);
    const Expr value = d.load(in, at);
    Expr better =
        e.binary(Op::kOr, e.binary(Op::kLt, out_value, value), e.binary(Op::kNe, value, value));
    better = e.both(inside, e.binary(Op::kOr, better, e.unary(Op::kNot, found)));
    out_value = e.select(better, value, out_value);
    out_place = e.select(better, flat_position(d, in.dims, at, kDims), out_place);
    found = e.binary(Op::kOr, found, inside);
  });
  if (has_bare_windows(w, in.dims, out))
    out_place = e.select(found, out_place, first_position<kDims>(d, w, in.dims, d.outer()));
}

template <std::size_t kDims>
Status max_pool(Builder& b) {
  auto in = b.operand(0);
  if (!in.ok()) return in.status();
  const TensorView out = b.result();
  const Window w = read_window(b, kDims);
  if (product(w.kernel) <= kFewTaps) {
    Draft d(b, out.dims);
    Expr value = kernelgen::kNoExpr, place = kernelgen::kNoExpr;
    max_of_few<kDims>(d, w, *in, out.dims, value, place);
    d.store(out, d.outer(), value);
    if (b.wants(1)) d.store(b.result(1), d.outer(), place);
    return d.finish();
  }
  Draft d(b, out.dims, w.kernel);
  Expressions& e = d.e();
  const kernelgen::Type t = kernelgen::compute_type(in->storage);
  Indices at;
  const Expr inside = taps(d, w, *in, d.outer(), d.loop(), at);
  const Expr value = e.select(inside, d.load(*in, at), e.constant(t, -kInfinity));
  d.store(out, d.outer(), e.reduce(Reduction::kMax, value));
  BP_SDK_RETURN_IF_ERROR(d.finish());
  if (!b.wants(1)) return {};
  Draft p(b, out.dims, w.kernel);
  Expressions& pe = p.e();
  const Expr also = taps(p, w, *in, p.outer(), p.loop(), at);
  const Expr one = p.load(*in, at), best = p.load(out, p.outer()),
             place = flat_position(p, in->dims, at, kDims);
  const auto whole = [&](std::int64_t v) { return pe.integer(kernelgen::Type::kI64, v); };
  const Expr is_nan = pe.both(also, pe.binary(Op::kNe, one, one)),
             is_best = pe.both(also, pe.binary(Op::kEq, one, best));
  const Expr last_nan = pe.reduce(Reduction::kMax, pe.select(is_nan, place, whole(-1))),
             first = pe.reduce(Reduction::kMin, pe.select(is_best, place, whole(INT64_MAX)));
  Expr chosen = first;
  if (has_bare_windows(w, in->dims, out.dims))
    chosen = pe.select(pe.binary(Op::kEq, first, whole(INT64_MAX)),
                       first_position<kDims>(p, w, in->dims, p.outer()), first);
  p.store(b.result(1), p.outer(),
          pe.select(pe.binary(Op::kLe, whole(0), last_nan), last_nan, chosen));
  return p.finish();
}

template <std::size_t kDims>
Status max_pool_backward(Builder& b) {  // grad, self, indices
  auto grad = b.operand(0), indices = b.operand(2);
  if (!grad.ok()) return grad.status();
  if (!indices.ok()) return indices.status();
  const TensorView out = b.result();
  const Window w = read_window(b, kDims);
  Shape holders_of_one;  // windows that hold a position, by dim
  for (std::size_t i = 0; i < kDims; ++i)
    holders_of_one.push_back((w.kernel[i] + w.stride[i] - 1) / w.stride[i]);
  const bool few = w.dilation == Shape(kDims, 1) && product(holders_of_one) <= kFewTaps;
  Draft d(b, out.dims, few ? Shape() : w.kernel);
  Expressions& e = d.e();
  const Expr flat = flat_position(d, out.dims, d.outer(), kDims);
  const auto share = [&](Expr inside, const Indices& at) {
    const Expr chosen = e.both(inside, e.binary(Op::kEq, d.load(*indices, at), flat));
    const Expr value = d.load(*grad, at);
    return e.select(chosen, value, e.constant(e.type(value), 0));
  };
  if (!few) {
    Indices at;
    const Expr inside = holders(d, w, grad->dims, d.outer(), d.loop(), at);
    d.store(out, d.outer(), e.reduce(Reduction::kSum, share(inside, at)));
    return d.finish();
  }
  Expr sum = kernelgen::kNoExpr;
  for_each(holders_of_one, [&](const Shape& back) {
    Indices at = lead(d.outer(), kDims);
    Expr inside = e.integer(kernelgen::Type::kBool, 1);
    for (std::size_t i = 0; i < kDims; ++i) {
      const std::size_t k = out.dims.size() - kDims + i;
      const Expr last = e.div(e.add(d.outer()[k], d.index(w.padding[i])), d.index(w.stride[i]));
      const Expr o = e.sub(last, d.index(holders_of_one[i] - 1 - back[i]));
      inside = e.both(inside, e.inside(o, grad->dims[k]));
      at.push_back(e.clamped(o, grad->dims[k]));
    }
    const Expr one = share(inside, at);
    sum = sum == kernelgen::kNoExpr ? one : e.add(sum, one);
  });
  d.store(out, d.outer(), sum);
  return d.finish();
}

// What the sum over the window at `axes` is divided by.
Expr divisor(Builder& b, Draft& d, const Window& w, const Shape& in_dims, const Indices& axes,
             kernelgen::Type t) {
  Expressions& e = d.e();
  if (b.step().node().attribute("divisor_override") != nullptr)
    return e.constant(t, static_cast<double>(b.step().int_or("divisor_override", 1)));
  const bool padded = b.step().node().bool_or("count_include_pad", true);
  Expr count = d.index(1);
  for (std::size_t i = 0; i < w.rank(); ++i) {
    const std::size_t k = axes.size() - w.rank() + i;
    Expr start = e.sub(e.mul(axes[k], d.index(w.stride[i])), d.index(w.padding[i]));
    Expr end =
        e.binary(Op::kMin, e.add(start, d.index(w.kernel[i])), d.index(in_dims[k] + w.padding[i]));
    if (!padded) {
      start = e.binary(Op::kMax, start, d.index(0));
      end = e.binary(Op::kMin, end, d.index(in_dims[k]));
    }
    count = e.mul(count, e.sub(end, start));
  }
  return e.cast(count, t);
}
template <std::size_t kDims>
Status avg_pool(Builder& b) {
  auto in = b.operand(0);
  if (!in.ok()) return in.status();
  const TensorView out = b.result();
  const Window w = read_window(b, kDims);
  Draft d(b, out.dims, w.kernel);
  Expressions& e = d.e();
  const kernelgen::Type t = kernelgen::compute_type(in->storage);
  Indices at;
  const Expr inside = taps(d, w, *in, d.outer(), d.loop(), at);
  const Expr sum = e.reduce(Reduction::kSum, e.select(inside, d.load(*in, at), e.constant(t, 0)));
  d.store(out, d.outer(), e.div(sum, divisor(b, d, w, in->dims, d.outer(), t)));
  return d.finish();
}
template <std::size_t kDims>
Status avg_pool_backward(Builder& b) {  // grad, self
  auto grad = b.operand(0);
  if (!grad.ok()) return grad.status();
  const TensorView out = b.result();
  const Window w = read_window(b, kDims);
  Draft d(b, out.dims, w.kernel);
  Expressions& e = d.e();
  const kernelgen::Type t = kernelgen::compute_type(out.storage);
  Indices at;
  const Expr inside = holders(d, w, grad->dims, d.outer(), d.loop(), at);
  const Expr share = e.div(d.load(*grad, at), divisor(b, d, w, out.dims, at, t));
  d.store(out, d.outer(), e.reduce(Reduction::kSum, e.select(inside, share, e.constant(t, 0))));
  return d.finish();
}

// Windows from floor(o I / O) to ceil((o + 1) I / O).
Expr adaptive_start(Draft& d, Expr o, std::int64_t in, std::int64_t out) {
  return d.e().div(d.e().mul(o, d.index(in)), d.index(out));
}
Expr adaptive_end(Draft& d, Expr o, std::int64_t in, std::int64_t out) {
  return d.e().div(d.e().add(d.e().mul(d.e().add(o, d.index(1)), d.index(in)), d.index(out - 1)),
                   d.index(out));
}
template <std::size_t kDims>
Status adaptive_avg(Builder& b) {
  auto in = b.operand(0);
  if (!in.ok()) return in.status();
  const TensorView out = b.result();
  const std::size_t first = out.dims.size() - kDims;
  Shape widest;
  for (std::size_t k = first; k < out.dims.size(); ++k)
    widest.push_back(in->dims[k] % out.dims[k] == 0 ? in->dims[k] / out.dims[k]
                                                    : in->dims[k] / out.dims[k] + 2);
  Draft d(b, out.dims, widest);
  Expressions& e = d.e();
  const kernelgen::Type t = kernelgen::compute_type(in->storage);
  Indices at = lead(d.outer(), kDims);
  Expr inside = e.integer(kernelgen::Type::kBool, 1), count = d.index(1);
  for (std::size_t i = 0; i < kDims; ++i) {
    const std::size_t k = first + i;
    const Expr start = adaptive_start(d, d.outer()[k], in->dims[k], out.dims[k]);
    const Expr end = adaptive_end(d, d.outer()[k], in->dims[k], out.dims[k]);
    const Expr place = e.add(start, d.loop()[i]);
    inside = e.both(inside, e.binary(Op::kLt, place, end));
    at.push_back(e.clamped(place, in->dims[k]));
    count = e.mul(count, e.sub(end, start));
  }
  const Expr sum = e.reduce(Reduction::kSum, e.select(inside, d.load(*in, at), e.constant(t, 0)));
  d.store(out, d.outer(), e.div(sum, e.cast(count, t)));
  return d.finish();
}
template <std::size_t kDims>
Status adaptive_avg_backward(Builder& b) {  // grad, self
  auto grad = b.operand(0);
  if (!grad.ok()) return grad.status();
  const TensorView out = b.result();
  const std::size_t first = out.dims.size() - kDims;
  const Shape windows(grad->dims.begin() + static_cast<std::ptrdiff_t>(first), grad->dims.end());
  Draft d(b, out.dims, windows);
  Expressions& e = d.e();
  const kernelgen::Type t = kernelgen::compute_type(out.storage);
  Indices at = lead(d.outer(), kDims);
  Expr inside = e.integer(kernelgen::Type::kBool, 1), count = d.index(1);
  for (std::size_t i = 0; i < kDims; ++i) {
    const std::size_t k = first + i;
    const Expr start = adaptive_start(d, d.loop()[i], out.dims[k], windows[i]);
    const Expr end = adaptive_end(d, d.loop()[i], out.dims[k], windows[i]);
    inside = e.both(inside, e.both(e.binary(Op::kLe, start, d.outer()[k]),
                                   e.binary(Op::kLt, d.outer()[k], end)));
    at.push_back(d.loop()[i]);
    count = e.mul(count, e.sub(end, start));
  }
  const Expr share = e.div(d.load(*grad, at), e.cast(count, t));
  d.store(out, d.outer(), e.reduce(Reduction::kSum, e.select(inside, share, e.constant(t, 0))));
  return d.finish();
}

std::optional<sdk::Refusal> refuse_pool(const sdk::NodeView& node) {
  if (!kernelgen::is_float(*storage_of(node.operand(0).dtype())))
    return refusal(BP_REFUSED_DTYPE, "floats only");
  if (node.operand(0).hint_elements() == 0) return refusal(BP_REFUSED_SHAPE, "nothing to pool");
  return std::nullopt;
}

constexpr KernelRow kRows[] = {
    {"aten.max_pool2d_with_indices", max_pool<2>, refuse_pool},
    {"aten.max_pool3d_with_indices", max_pool<3>, refuse_pool},
    {"aten.max_pool2d_with_indices_backward", max_pool_backward<2>, refuse_pool},
    {"aten.max_pool3d_with_indices_backward", max_pool_backward<3>, refuse_pool},
    {"aten.avg_pool1d", avg_pool<1>, refuse_pool},
    {"aten.avg_pool2d", avg_pool<2>, refuse_pool},
    {"aten.avg_pool3d", avg_pool<3>, refuse_pool},
    {"aten.avg_pool2d_backward", avg_pool_backward<2>, refuse_pool},
    {"aten.avg_pool3d_backward", avg_pool_backward<3>, refuse_pool},
    {"aten._adaptive_avg_pool2d", adaptive_avg<2>, refuse_pool},
    {"aten._adaptive_avg_pool3d", adaptive_avg<3>, refuse_pool},
    {"aten._adaptive_avg_pool2d_backward", adaptive_avg_backward<2>, refuse_pool},
    {"aten._adaptive_avg_pool3d_backward", adaptive_avg_backward<3>, refuse_pool},
};

}  // namespace

std::span<const KernelRow> pooling_kernels() { return kRows; }

}  // namespace backplane::kernels
