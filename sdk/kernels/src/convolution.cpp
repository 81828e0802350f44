// Convolutions as products: one factor is read through the window (im2col) while it is packed.
#include "gemm.hpp"
#include "products.hpp"
#include "registry.hpp"
#include "window_gradient.hpp"
#include "window_product.hpp"

namespace backplane::kernels {
namespace {

using kernelgen::Op;

Window read_window(const Builder& b, const TensorView& weight) {
  Window w;
  w.kernel.assign(weight.dims.begin() + 2, weight.dims.end());
  w.stride = per_dim(b.step().ints("stride"), w.rank(), 1);
  w.padding = per_dim(b.step().ints("padding"), w.rank(), 0);
  w.dilation = per_dim(b.step().ints("dilation"), w.rank(), 1);
  return w;
}

Indices unflatten(Draft& d, Expr flat, const Shape& dims) {
  Indices index(dims.size());
  for (std::size_t i = dims.size(); i-- > 0;) {
    index[i] = i == 0 ? flat : d.e().binary(Op::kMod, flat, d.index(dims[i]));
    flat = d.e().div(flat, d.index(dims[i]));
  }
  return index;
}
// Splits off the leading index: flat = lead * product(dims) + rest.
std::pair<Expr, Expr> split(Draft& d, Expr flat, std::int64_t size) {
  return {d.e().div(flat, d.index(size)), d.e().binary(Op::kMod, flat, d.index(size))};
}

// t[n, channel, position…] or zero outside.
Expr guarded(Draft& d, const TensorView& t, Expr n, Expr channel, const Indices& position,
             Expr inside) {
  Expressions& e = d.e();
  Indices at = {n, channel};
  for (std::size_t i = 0; i < position.size(); ++i) {
    inside = e.both(inside, e.inside(position[i], t.dims[2 + i]));
    at.push_back(e.clamped(position[i], t.dims[2 + i]));
  }
  const Expr value = d.load(t, at);
  return e.select(inside, value, e.constant(e.type(value), 0));
}
// Where tap `k` of the window at `o` reads.
Expr read_at(Draft& d, const Window& w, const TensorView& t, Expr n, Expr channel, const Indices& o,
             const Indices& k) {
  Indices position;
  for (std::size_t i = 0; i < w.rank(); ++i) {
    const Expr start = d.e().sub(d.e().mul(o[i], d.index(w.stride[i])), d.index(w.padding[i]));
    position.push_back(d.e().add(start, d.e().mul(k[i], d.index(w.dilation[i]))));
  }
  return guarded(d, t, n, channel, position, d.e().integer(kernelgen::Type::kBool, 1));
}
// Which window reads `i` with tap `k`: (i + padding - k * dilation) / stride, where that is whole.
Expr written_from(Draft& d, const Window& w, const TensorView& t, Expr n, Expr channel,
                  const Indices& i, const Indices& k) {
  Expressions& e = d.e();
  Expr inside = e.integer(kernelgen::Type::kBool, 1);
  Indices position;
  for (std::size_t a = 0; a < w.rank(); ++a) {
    const Expr at = e.sub(e.add(i[a], d.index(w.padding[a])), e.mul(k[a], d.index(w.dilation[a])));
    inside =
        e.both(inside,
               e.both(e.binary(Op::kLe, d.index(0), at),
                      e.binary(Op::kEq, e.binary(Op::kMod, at, d.index(w.stride[a])), d.index(0))));
    position.push_back(e.div(at, d.index(w.stride[a])));
  }
  return guarded(d, t, n, channel, position, inside);
}

// A tensor [N, C, …] as axes (n, group, channel of the group, flat position), for stores.
struct Columns {
  Columns(const TensorView& t, std::int64_t groups) : tensor(t), width(t.dims[1] / groups) {
    std::int64_t expected = t.strides.back();
    for (std::size_t i = t.dims.size(); i-- > 2;) {
      if (t.dims[i] == 1) continue;
      flat = flat && t.strides[i] == expected;
      expected = t.strides[i] * t.dims[i];
    }
    for (std::size_t i = t.dims.size(); i-- > 2;)
      if (t.dims[i] != 1) {
        step = t.strides[i];
        break;
      }
    flat = flat && (step == t.strides.back() || product(spatial(t)) == 1);
  }
  void store(Draft& d, const Indices& axes, Expr value) const {
    const Expr channel = d.e().add(d.e().mul(axes[1], d.index(width)), axes[2]);
    if (flat) {
      TensorView view = tensor;
      view.dims = {tensor.dims[0], tensor.dims[1], product(spatial(tensor))};
      view.strides = {tensor.strides[0], tensor.strides[1], step};
      return d.store(view, {axes[0], channel, axes[3]}, value);
    }
    Indices at = unflatten(d, axes[3], spatial(tensor));
    at.insert(at.begin(), {axes[0], channel});
    d.store(tensor, at, value);
  }
  TensorView tensor;
  std::int64_t width, step = 0;
  bool flat = true;
};

// The image as right factor of its product with a weight: [image, group] of matrices [channel and
// tap, place]. `at` is read_at or written_from; `w` and `x` outlive the factor.
Factor image_factor(const Window& w, const TensorView& x, std::int64_t groups, const Shape& places,
                    decltype(read_at)& at) {
  const std::int64_t width = x.dims[1] / groups, taps = product(w.kernel);
  bool is_matrix = taps == 1 && places == spatial(x);
  for (std::size_t i = 0; i < w.rank(); ++i)
    is_matrix = is_matrix && w.stride[i] == 1 && w.padding[i] == 0;
  if (const Columns columns(x, groups); is_matrix && columns.flat) {
    TensorView view = x;
    view.dims = {x.dims[0], groups, width, product(places)};
    view.strides = {x.strides[0], x.strides[1] * width, x.strides[1], columns.step};
    return Factor::matrix(view);
  }
  Factor f;
  f.batched = {true, groups > 1};
  f.element = [&w, &x, &at, places, width, taps](Draft& d, std::span<const Expr> batch, Expr row,
                                                 Expr column) {
    const auto [channel, tap] = split(d, row, taps);
    const Expr own = d.e().add(d.e().mul(batch[1], d.index(width)), channel);
    return at(d, w, x, batch[0], own, unflatten(d, column, places), unflatten(d, tap, w.kernel));
  };
  return f;
}

// Whether kernels of the step go on with nodes after the convolution.
bool has_epilogue(const Builder& b) { return b.step().step().nodes.size() > 1; }

Gemm::Epilogue store_with_bias(Builder& b, const TensorView& out, std::int64_t groups,
                               const std::optional<TensorView>& bias) {
  return [&b, target = Columns(out, groups), bias](Draft& d, Expr value,
                                                   const Indices& axes) -> Status {
    const Expr channel = d.e().add(d.e().mul(axes[1], d.index(target.width)), axes[2]);
    if (bias) value = d.e().add(value, d.load(*bias, {channel}));
    if (has_epilogue(b)) return finish_product(b, d, value, {axes[0], channel, axes[3]});
    target.store(d, axes, value);
    return {};
  };
}

// The result as matrices of a product, where that is all there is to store.
std::optional<TensorView> matrices_of(const Builder& b, const TensorView& out, std::int64_t groups,
                                      const std::optional<TensorView>& bias) {
  const Columns columns(out, groups);
  if (bias || has_epilogue(b) || !columns.flat) return std::nullopt;
  TensorView view = out;
  view.dims = {out.dims[0], groups, columns.width, product(spatial(out))};
  view.strides = {out.strides[0], out.strides[1] * columns.width, out.strides[1], columns.step};
  return view;
}

// The weight of a convolution, or that of its transpose, tap by tap.
Taps taps_of(const TensorView& weight, std::int64_t out_width, std::int64_t in_width,
             bool is_transposed) {
  const std::int64_t rows = weight.strides[is_transposed ? 1 : 0],
                     channels = weight.strides[is_transposed ? 0 : 1];
  return {weight,   is_transposed ? channels * in_width : rows * out_width, rows,
          channels, {weight.strides.begin() + 2, weight.strides.end()},     0};
}

// The product that reads the image where it lies, for results at `first` + i * `step` of `out`. Of
// `p` there are the window, the image, the groups and the weight.
Result<bool> try_window_product(Builder& b, WindowProduct p, const std::optional<TensorView>& bias,
                                const TensorView& out, const Shape& step, const Shape& first) {
  for (std::size_t i = 0; i < step.size(); ++i)
    p.out.push_back((out.dims[2 + i] - first[i] + step[i] - 1) / step[i]);
  if (!can_be_window_product(b, p)) return false;
  p.store = [&](Draft& d, Expr value, const Indices& axes) -> Status {
    const Expr channel = d.e().add(d.e().mul(axes[1], d.index(p.out_width)), axes[2]);
    if (bias) value = d.e().add(value, d.load(*bias, {channel}));
    Indices at = {axes[0], channel};
    for (std::size_t i = 0; i < 2; ++i)
      at.push_back(d.e().add(d.e().mul(axes[3 + i], d.index(step[i])), d.index(first[i])));
    if (has_epilogue(b)) return finish_product(b, d, value, at);
    d.store(out, at, value);
    return {};
  };
  BP_SDK_RETURN_IF_ERROR(add_window_product(b, p));
  return true;
}

Status forward(Builder& b, const Window& w, const TensorView& x, const TensorView& weight,
               const std::optional<TensorView>& bias, std::int64_t groups, const TensorView& out) {
  const std::int64_t in_width = weight.dims[1], out_width = out.dims[1] / groups,
                     taps = product(w.kernel);
  const Shape places = spatial(out);
  TensorView flat = weight;
  flat.dims = {groups, out_width, in_width * taps};
  flat.strides = {weight.strides[0] * out_width, weight.strides[0], 1};
  const bool dense = TensorSpec{sdk::kFloat32, weight.dims, weight.strides, {}}.contiguous();
  // One tap reads every column once: panels of them stay closer together than rows of the image.
  if (w.rank() == 2 && taps > 1) {
    auto direct = try_window_product(
        b, {w, x, groups, out_width, taps_of(weight, out_width, in_width, false)}, bias, out,
        {1, 1}, {0, 0});
    if (!direct.ok()) return direct.status();
    if (*direct) return {};
  }
  Gemm g;
  g.batch = {x.dims[0], groups};
  g.rows = {out_width};
  g.columns = product(places);
  g.depth = in_width * taps;
  if (dense) {
    g.a = Factor::matrix(flat);
    g.a.batched.insert(g.a.batched.begin(), false);
    g.a.batch_strides.insert(g.a.batch_strides.begin(), 0);
  }
  // Used where the weight is packed, or where the product is too small for tiles.
  g.a.batched = {false, groups > 1};
  g.a.element = [&](Draft& d, std::span<const Expr> batch, Expr row, Expr column) {
    const auto [channel, tap] = split(d, column, taps);
    Indices at = unflatten(d, tap, w.kernel);
    at.insert(at.begin(), {d.e().add(d.e().mul(batch[1], d.index(out_width)), row), channel});
    return d.load(weight, at);
  };
  g.b = image_factor(w, x, groups, places, read_at);
  g.epilogue = store_with_bias(b, out, groups, bias);
  g.result = matrices_of(b, out, groups, bias);
  return add_gemm(b, g);
}

// What no tap reaches: zero, or the bias.
Status store_bias(Builder& b, const std::optional<TensorView>& bias, const TensorView& out,
                  const Shape& step, const Shape& first) {
  Shape dims = out.dims;
  for (std::size_t i = 0; i < 2; ++i)
    dims[2 + i] = (out.dims[2 + i] - first[i] + step[i] - 1) / step[i];
  Draft d(b, dims);
  Indices at = d.outer();
  for (std::size_t i = 0; i < 2; ++i)
    at[2 + i] = d.e().add(d.e().mul(at[2 + i], d.index(step[i])), d.index(first[i]));
  d.store(out, at,
          bias ? d.load(*bias, {at[1]}) : d.e().constant(kernelgen::compute_type(out.storage), 0));
  return d.finish();
}

// A transposed convolution as convolutions without a stride: results at one phase of the stride
// meet every so many-th tap only, the other way round.
Result<bool> transposed_in_phases(Builder& b, const Window& w, const TensorView& x,
                                  const TensorView& weight, const std::optional<TensorView>& bias,
                                  std::int64_t groups, const TensorView& out) {
  if (w.rank() != 2) return false;
  const bool has_stride = w.stride != Shape{1, 1};
  if (has_stride && (w.dilation != Shape{1, 1} || has_epilogue(b))) return false;
  if (!has_stride && product(w.kernel) == 1) return false;
  const std::int64_t in_width = x.dims[1] / groups, out_width = weight.dims[1];
  for (std::int64_t phase = 0; phase < product(w.stride); ++phase) {
    const Shape first = {phase / w.stride[1], phase % w.stride[1]};
    Window turned{{}, {1, 1}, {}, w.dilation};
    Taps taps = taps_of(weight, out_width, in_width, true);
    for (std::size_t i = 0; i < 2; ++i) {
      const std::int64_t least = (first[i] + w.padding[i]) % w.stride[i];
      const std::int64_t count =
          std::max<std::int64_t>(w.kernel[i] - least + w.stride[i] - 1, 0) / w.stride[i];
      turned.kernel.push_back(count);
      turned.padding.push_back((count - 1) * w.dilation[i] -
                               (first[i] + w.padding[i] - least) / w.stride[i]);
      taps.first += (least + w.stride[i] * (count - 1)) * taps.tap[i];
      taps.tap[i] *= -w.stride[i];
    }
    if (out.dims[2] <= first[0] || out.dims[3] <= first[1]) continue;
    if (product(turned.kernel) == 0) {
      BP_SDK_RETURN_IF_ERROR(store_bias(b, bias, out, w.stride, first));
      continue;
    }
    auto direct = try_window_product(b, {turned, x, groups, out_width, std::move(taps)}, bias, out,
                                     w.stride, first);
    if (!direct.ok() || !*direct) return direct;
  }
  return true;
}

// sum over channels of `x` and taps: what a transposed convolution computes, and the gradient of a
// convolution's input. weight [channels of x, channels of out / groups, taps…].
Status transposed(Builder& b, const Window& w, const TensorView& x, const TensorView& weight,
                  const std::optional<TensorView>& bias, std::int64_t groups,
                  const TensorView& out) {
  const std::int64_t in_width = x.dims[1] / groups, out_width = weight.dims[1],
                     taps = product(w.kernel);
  const Shape places = spatial(out);
  auto direct = transposed_in_phases(b, w, x, weight, bias, groups, out);
  if (!direct.ok()) return direct.status();
  if (*direct) return {};
  Gemm g;
  g.batch = {x.dims[0], groups};
  g.rows = {out_width};
  g.columns = product(places);
  g.depth = in_width * taps;
  g.a.batched = {false, groups > 1};
  g.a.element = [&](Draft& d, std::span<const Expr> batch, Expr row, Expr column) {
    const auto [channel, tap] = split(d, column, taps);
    Indices at = unflatten(d, tap, w.kernel);
    at.insert(at.begin(), {d.e().add(d.e().mul(batch[1], d.index(in_width)), channel), row});
    return d.load(weight, at);
  };
  g.b = image_factor(w, x, groups, places, written_from);
  g.epilogue = store_with_bias(b, out, groups, bias);
  g.result = matrices_of(b, out, groups, bias);
  return add_gemm(b, g);
}

Status convolution(Builder& b) {  // input, weight, bias
  auto x = b.operand(0), weight = b.operand(1);
  if (!x.ok()) return x.status();
  if (!weight.ok()) return weight.status();
  std::optional<TensorView> bias;
  if (b.step().has_operand(2)) {
    auto view = b.operand(2);
    if (!view.ok()) return view.status();
    bias = std::move(*view);
  }
  const Window w = read_window(b, *weight);
  const std::int64_t groups = b.step().int_or("groups", 1);
  if (b.step().node().bool_or("transposed", false))
    return transposed(b, w, *x, *weight, bias, groups, b.result());
  return forward(b, w, *x, *weight, bias, groups, b.result());
}

Status weight_gradient(Builder& b, const Window& w, const TensorView& grad, const TensorView& x,
                       const TensorView& out, std::int64_t groups) {
  const std::int64_t in_width = out.dims[1], out_width = grad.dims[1] / groups,
                     taps = product(w.kernel);
  const auto store = [&](Draft& d, Expr value, Expr group, Expr row, Expr column) {
    const Expr channel = d.e().add(d.e().mul(group, d.index(out_width)), row);
    if (TensorSpec{sdk::kFloat32, out.dims, out.strides, {}}.contiguous()) {
      TensorView view = out;
      view.dims = {out.dims[0], in_width * taps};
      view.strides = {in_width * taps, 1};
      return d.store(view, {channel, column}, value);
    }
    const auto [own, tap] = split(d, column, taps);
    Indices at = unflatten(d, tap, w.kernel);
    at.insert(at.begin(), {channel, own});
    d.store(out, at, value);
  };
  WindowGradient direct{
      w, x, grad, groups, [&](Draft& d, Expr value, const Indices& axes) -> Status {
        store(d, value, axes[0], axes[1], d.e().add(d.e().mul(axes[2], d.index(taps)), axes[3]));
        return {};
      }};
  if (suits_window_gradient(b, direct)) return add_window_gradient(b, direct);
  const Shape places = spatial(grad);
  const std::int64_t count = product(places);
  Gemm g;
  g.batch = {groups};
  g.rows = {out_width};
  g.columns = in_width * taps;
  g.depth = grad.dims[0] * count;
  g.a.batched = g.b.batched = {groups > 1};
  g.a.element = [&](Draft& d, std::span<const Expr> batch, Expr row, Expr column) {
    const auto [n, place] = split(d, column, count);
    Indices at = unflatten(d, place, places);
    at.insert(at.begin(), {n, d.e().add(d.e().mul(batch[0], d.index(out_width)), row)});
    return d.load(grad, at);
  };
  g.b.element = [&](Draft& d, std::span<const Expr> batch, Expr row, Expr column) {
    const auto [n, place] = split(d, row, count);
    const auto [channel, tap] = split(d, column, taps);
    const Expr own = d.e().add(d.e().mul(batch[0], d.index(in_width)), channel);
    return read_at(d, w, x, n, own, unflatten(d, place, places), unflatten(d, tap, w.kernel));
  };
  g.epilogue = [&](Draft& d, Expr value, const Indices& axes) -> Status {
    store(d, value, axes[0], axes[1], axes[2]);
    return {};
  };
  return add_gemm(b, g);
}

Status convolution_backward(Builder& b) {  // grad, input, weight
  auto grad = b.operand(0), x = b.operand(1), weight = b.operand(2);
  for (auto* view : {&grad, &x, &weight})
    if (!view->ok()) return view->status();
  const Window w = read_window(b, *weight);
  const std::int64_t groups = b.step().int_or("groups", 1);
  // A transposed convolution's gradients are a convolution's, the other way round.
  const bool is_transposed = b.step().node().bool_or("transposed", false);
  if (b.wants(0) && is_transposed)
    BP_SDK_RETURN_IF_ERROR(forward(b, w, *grad, *weight, std::nullopt, groups, b.result(0)));
  if (b.wants(0) && !is_transposed)
    BP_SDK_RETURN_IF_ERROR(transposed(b, w, *grad, *weight, std::nullopt, groups, b.result(0)));
  if (b.wants(1))
    BP_SDK_RETURN_IF_ERROR(weight_gradient(b, w, is_transposed ? *x : *grad,
                                           is_transposed ? *grad : *x, b.result(1), groups));
  if (!b.wants(2)) return {};
  Shape others = spatial(*grad);
  others.insert(others.begin(), grad->dims[0]);
  Draft d(b, {grad->dims[1]}, others);
  Indices at = d.loop();
  at.insert(at.begin() + 1, d.outer()[0]);
  d.store(b.result(2), d.outer(), d.e().reduce(kernelgen::Reduction::kSum, d.load(*grad, at)));
  return d.finish();
}

std::optional<sdk::Refusal> refuse_convolution(const sdk::NodeView& node) {
  const bool backward = node.op() == "aten.convolution_backward";
  const sdk::ValueView x = node.operand(backward ? 1 : 0), weight = node.operand(backward ? 2 : 1);
  if (!kernelgen::is_float(*storage_of(x.dtype()))) return refusal(BP_REFUSED_DTYPE, "floats only");
  if (x.rank() < 3 || x.rank() != weight.rank())
    return refusal(BP_REFUSED_SHAPE, "a batch and one to three dims");
  if (x.hint_elements() == 0 || weight.hint_elements() == 0)
    return refusal(BP_REFUSED_SHAPE, "nothing to convolve");
  return std::nullopt;
}

constexpr KernelRow kRows[] = {
    {"aten.convolution", convolution, refuse_convolution},
    {"aten.convolution_backward", convolution_backward, refuse_convolution},
};

}  // namespace

std::span<const KernelRow> convolution_kernels() { return kRows; }

}  // namespace backplane::kernels
