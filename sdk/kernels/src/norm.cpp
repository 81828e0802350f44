// Norms whose statistics are not one row's: their gradients, batch norms, group norms.
#include <backplane/kernelgen/operators.hpp>

#include <algorithm>
#include <limits>

#include "point_group.hpp"
#include "registry.hpp"

namespace backplane::kernels {
namespace {

using kernelgen::Op;
using kernelgen::Reduction;
using kernelgen::Type;

struct Operands {
  std::vector<std::optional<TensorView>> views;
  Status status;
};
// At least `count` of them, those that a node lacks are absent. They stay where they are.
Operands read_operands(Builder& b, std::size_t count) {
  Operands all;
  all.views.resize(std::max(count, b.step().step().operands.size()));
  for (std::size_t i = 0; i < b.step().step().operands.size(); ++i) {
    if (!b.step().has_operand(i)) continue;
    auto view = b.operand(i);
    if (!view.ok()) {
      all.status = view.status();
      return all;
    }
    all.views[i] = std::move(*view);
  }
  return all;
}
Shape at_least_one(Shape dims) {
  if (dims.empty()) dims.push_back(1);
  return dims;
}

Status layer_norm_backward(Builder& b) {  // grad, input, mean, rstd, weight, bias
  if (b.wants(0)) BP_SDK_RETURN_IF_ERROR(add_points(b));
  Operands in = read_operands(b, 6);
  BP_SDK_RETURN_IF_ERROR(std::move(in.status));
  const TensorView &grad = *in.views[0], &input = *in.views[1], &mean = *in.views[2],
                   &rstd = *in.views[3];
  const std::size_t kept = b.step().ints("normalized_shape").size(),
                    lead = input.dims.size() - kept;
  const Shape row(input.dims.begin() + static_cast<std::ptrdiff_t>(lead), input.dims.end());
  const Shape rows(input.dims.begin(), input.dims.begin() + static_cast<std::ptrdiff_t>(lead));
  if (!b.wants(1) && !b.wants(2)) return {};
  Draft d(b, row, at_least_one(rows));
  Expressions& e = d.e();
  Indices at(d.loop().begin(), d.loop().begin() + static_cast<std::ptrdiff_t>(lead));
  at.insert(at.end(), d.outer().begin(), d.outer().end());
  const Expr g = d.load(grad, at);
  if (b.wants(1)) {
    const Expr hat = e.mul(e.sub(d.load(input, at), d.load(mean, at)), d.load(rstd, at));
    d.store(b.result(1), d.outer(), e.reduce(Reduction::kSum, e.mul(g, hat)));
  }
  if (b.wants(2)) d.store(b.result(2), d.outer(), e.reduce(Reduction::kSum, g));
  return d.finish();
}

// Axes of one channel's elements: all dims but 1.
struct Channels {
  explicit Channels(const Shape& dims) : channels(dims.size() > 1 ? dims[1] : 1) {
    for (std::size_t i = 0; i < dims.size(); ++i)
      if (i != 1) others.push_back(dims[i]);
    count = product(others);
  }
  static Indices at(const Indices& loop, Expr channel) {
    Indices index = loop;
    index.insert(index.begin() + 1, channel);
    return index;
  }
  std::int64_t channels, count = 1;
  Shape others;
};
// Per channel: the product of a factor and a term, or a number where an operand is absent.
Expr channel_value(Draft& d, const std::optional<TensorView>& view, Expr channel, Type t,
                   double fallback) {
  return view ? d.e().cast(d.load(*view, {channel}), t) : d.e().constant(t, fallback);
}

Status batch_norm(Builder& b, bool training, bool functional) {
  Operands in = read_operands(b, 5);
  BP_SDK_RETURN_IF_ERROR(std::move(in.status));
  const TensorView& x = *in.views[0];
  const Channels c(x.dims);
  const double eps = b.step().node().real_or("eps", 1e-5),
               momentum = b.step().node().real_or("momentum", 0.1);
  const Type t = kernelgen::compute_type(b.result(0).storage);
  const TensorView mean = b.scratch(t == Type::kF64 ? Storage::kF64 : Storage::kF32, {c.channels});
  const TensorView rstd = b.scratch(mean.storage, {c.channels});
  if (training) {
    Draft d(b, {c.channels}, c.others);
    Expressions& e = d.e();
    const Expr v = e.cast(d.load(x, Channels::at(d.loop(), d.outer()[0])), t);
    const auto [mu, var] = kernelgen::moments(e, v, c.count);
    Expr inverse = e.unary(Op::kRsqrt, e.add(var, e.constant(t, eps)));
    const Expr nothing = e.constant(t, 0);  // becomes of a channel of one value
    if (eps == 0) inverse = e.select(e.binary(Op::kEq, var, nothing), nothing, inverse);
    d.store(mean, d.outer(), mu);
    d.store(rstd, d.outer(), inverse);
    if (b.wants(1)) d.store(b.result(1), d.outer(), mu);
    if (b.wants(2)) d.store(b.result(2), d.outer(), inverse);
    const auto moved = [&](std::size_t operand, std::size_t result, Expr now) {
      if (!functional || !b.wants(result) || !in.views[operand]) return;
      const Expr old = e.cast(d.load(*in.views[operand], d.outer()), t);
      d.store(b.result(result), d.outer(),
              e.add(e.mul(old, e.constant(t, 1 - momentum)), e.mul(now, e.constant(t, momentum))));
    };
    moved(3, 3, mu);
    const auto n = static_cast<double>(c.count);
    const double unbiased = n > 1 ? n / (n - 1) : std::numeric_limits<double>::quiet_NaN();
    moved(4, 4, e.mul(var, e.constant(t, unbiased)));
    BP_SDK_RETURN_IF_ERROR(d.finish());
  } else {
    Draft d(b, {c.channels});
    Expressions& e = d.e();
    d.store(mean, d.outer(), d.load(*in.views[3], d.outer()));
    const Expr var = e.cast(d.load(*in.views[4], d.outer()), t);
    d.store(rstd, d.outer(), e.unary(Op::kRsqrt, e.add(var, e.constant(t, eps))));
    if (functional)
      for (const std::size_t i : {3, 4})
        if (b.wants(i)) d.store(b.result(i), d.outer(), d.load(*in.views[i], d.outer()));
    BP_SDK_RETURN_IF_ERROR(d.finish());
  }
  Draft d(b, x.dims);
  Expressions& e = d.e();
  const Expr channel = d.outer()[1];
  const Expr w = channel_value(d, in.views[1], channel, t, 1),
             bias = channel_value(d, in.views[2], channel, t, 0);
  const Expr hat = e.mul(e.sub(e.cast(d.load(x, d.outer()), t), d.load(mean, {channel})),
                         d.load(rstd, {channel}));
  d.store(b.result(0), d.outer(), e.add(e.mul(hat, w), bias));
  return d.finish();
}
Status batch_norm_functional(Builder& b) {
  return batch_norm(b, b.step().node().bool_or("training", false), true);
}
Status batch_norm_no_stats(Builder& b) {  // the operands end with bias
  return batch_norm(b, true, false);
}

// grad, input, weight, running_mean, running_var, save_mean, save_invstd
Status batch_norm_backward(Builder& b) {
  Operands in = read_operands(b, 7);
  BP_SDK_RETURN_IF_ERROR(std::move(in.status));
  const TensorView &grad = *in.views[0], &x = *in.views[1];
  const bool training = b.step().node().bool_or("train", true);
  const double eps = b.step().node().real_or("eps", 1e-5);
  const Channels c(x.dims);
  const Type t = kernelgen::compute_type(x.storage);
  const Storage kept = t == Type::kF64 ? Storage::kF64 : Storage::kF32;
  const TensorView sum = b.scratch(kept, {c.channels}), dot = b.scratch(kept, {c.channels});
  const auto statistics = [&](Draft& d, Expr channel) -> std::pair<Expr, Expr> {
    Expressions& e = d.e();
    if (training) return {d.load(*in.views[5], {channel}), d.load(*in.views[6], {channel})};
    const Expr var = e.cast(d.load(*in.views[4], {channel}), t);
    return {e.cast(d.load(*in.views[3], {channel}), t),
            e.unary(Op::kRsqrt, e.add(var, e.constant(t, eps)))};
  };
  {
    Draft d(b, {c.channels}, c.others);
    Expressions& e = d.e();
    const Expr channel = d.outer()[0];
    const Indices at = Channels::at(d.loop(), channel);
    const auto [mu, rstd] = statistics(d, channel);
    const Expr g = d.load(grad, at), centered = e.sub(d.load(x, at), mu);
    const Expr total = e.reduce(Reduction::kSum, g),
               product = e.mul(e.reduce(Reduction::kSum, e.mul(g, centered)), rstd);
    d.store(sum, {channel}, total);
    d.store(dot, {channel}, product);
    if (b.wants(1)) d.store(b.result(1), {channel}, product);
    if (b.wants(2)) d.store(b.result(2), {channel}, total);
    BP_SDK_RETURN_IF_ERROR(d.finish());
  }
  if (!b.wants(0)) return {};
  Draft d(b, x.dims);
  Expressions& e = d.e();
  const Expr channel = d.outer()[1];
  const auto [mu, rstd] = statistics(d, channel);
  Expr g = d.load(grad, d.outer());
  if (training) {
    const Expr scale = e.constant(t, 1.0 / static_cast<double>(c.count));
    const Expr hat = e.mul(e.sub(d.load(x, d.outer()), mu), rstd);
    g = e.sub(g, e.mul(scale, e.add(d.load(sum, {channel}), e.mul(hat, d.load(dot, {channel})))));
  }
  d.store(b.result(0), d.outer(),
          e.mul(g, e.mul(rstd, channel_value(d, in.views[2], channel, t, 1))));
  return d.finish();
}

// input [N, C, …] in groups: axes (N, G), over (C / G, rest).
struct Groups {
  Groups(const Builder& b, const Shape& dims) {
    groups = b.step().int_or("group", b.step().int_or("num_groups", 1));
    samples = dims[0];
    width = dims[1] / groups;
    rest.assign(dims.begin() + 2, dims.end());
    loop = {width};
    loop.insert(loop.end(), rest.begin(), rest.end());
  }
  Indices at(Draft& d, Expr sample, Expr group, const Indices& in_group) const {
    Indices index = {sample, d.e().add(d.e().mul(group, d.index(width)), in_group[0])};
    index.insert(index.end(), in_group.begin() + 1, in_group.end());
    return index;
  }
  std::int64_t groups = 1, samples = 1, width = 1;
  Shape rest, loop;
};
Status group_norm(Builder& b) {  // input, weight, bias
  Operands in = read_operands(b, 3);
  BP_SDK_RETURN_IF_ERROR(std::move(in.status));
  const TensorView& x = *in.views[0];
  const Groups g(b, x.dims);
  const Type t = kernelgen::compute_type(x.storage);
  Draft d(b, {g.samples, g.groups}, g.loop);
  Expressions& e = d.e();
  const Indices at = g.at(d, d.outer()[0], d.outer()[1], d.loop());
  const Expr v = d.load(x, at);
  const auto [mu, var] = kernelgen::moments(e, v, product(g.loop));
  const Expr rstd =
      e.unary(Op::kRsqrt, e.add(var, e.constant(t, b.step().node().real_or("eps", 1e-5))));
  Expr y = e.mul(e.sub(v, mu), rstd);
  if (in.views[1]) y = e.mul(y, d.load(*in.views[1], {at[1]}));
  if (in.views[2]) y = e.add(y, d.load(*in.views[2], {at[1]}));
  d.store(b.result(0), at, y);
  if (b.wants(1)) d.store(b.result(1), d.outer(), mu);
  if (b.wants(2)) d.store(b.result(2), d.outer(), rstd);
  return d.finish();
}
Status group_norm_backward(Builder& b) {  // grad, input, mean, rstd, weight
  Operands in = read_operands(b, 5);
  BP_SDK_RETURN_IF_ERROR(std::move(in.status));
  const TensorView &grad = *in.views[0], &x = *in.views[1], &mean = *in.views[2],
                   &rstd = *in.views[3];
  const Groups g(b, x.dims);
  const Type t = kernelgen::compute_type(x.storage);
  if (b.wants(0)) {
    Draft d(b, {g.samples, g.groups}, g.loop);
    Expressions& e = d.e();
    const Indices at = g.at(d, d.outer()[0], d.outer()[1], d.loop());
    const Expr scale = e.constant(t, 1.0 / static_cast<double>(product(g.loop)));
    const Expr r = d.load(rstd, d.outer()),
               hat = e.mul(e.sub(d.load(x, at), d.load(mean, d.outer())), r);
    Expr gy = d.load(grad, at);
    if (in.views[4]) gy = e.mul(gy, d.load(*in.views[4], {at[1]}));
    const Expr inner = e.mul(scale, e.add(e.reduce(Reduction::kSum, gy),
                                          e.mul(hat, e.reduce(Reduction::kSum, e.mul(gy, hat)))));
    d.store(b.result(0), at, e.mul(r, e.sub(gy, inner)));
    BP_SDK_RETURN_IF_ERROR(d.finish());
  }
  if (!b.wants(1) && !b.wants(2)) return {};
  Shape loop = {g.samples};
  loop.insert(loop.end(), g.rest.begin(), g.rest.end());
  Draft d(b, {g.groups * g.width}, loop);
  Expressions& e = d.e();
  const Expr channel = d.outer()[0], group = e.div(channel, d.index(g.width));
  Indices at = {d.loop()[0], channel};
  at.insert(at.end(), d.loop().begin() + 1, d.loop().end());
  const Indices row = {d.loop()[0], group};
  const Expr gy = d.load(grad, at);
  if (b.wants(1)) {
    const Expr hat = e.mul(e.sub(d.load(x, at), d.load(mean, row)), d.load(rstd, row));
    d.store(b.result(1), {channel}, e.reduce(Reduction::kSum, e.mul(gy, hat)));
  }
  if (b.wants(2)) d.store(b.result(2), {channel}, e.reduce(Reduction::kSum, gy));
  return d.finish();
}

// The operator counts images and channels by themselves; its input may have other dims.
bool lies_as_counted(const sdk::NodeView& node, const sdk::ValueView& x) {
  const auto is = [&](std::string_view name, bp_dim dim) {
    const bp_attribute* count = node.attribute(name);
    return count == nullptr || count->integer == dim;  // a number, or the same class
  };
  return is("N", x.dims()[0]) && is("C", x.dims()[1]);
}

std::optional<sdk::Refusal> refuse_norm(const sdk::NodeView& node) {
  const bool backward = node.op().find("backward") != std::string_view::npos;
  const sdk::ValueView x = node.operand(backward ? 1 : 0);
  if (!kernelgen::is_float(*storage_of(x.dtype()))) return refusal(BP_REFUSED_DTYPE, "floats only");
  const bool layer = node.op() == "aten.native_layer_norm_backward";
  if (!layer && x.rank() < 2) return refusal(BP_REFUSED_SHAPE, "needs a dim of channels");
  if (x.hint_elements() == 0) return refusal(BP_REFUSED_SHAPE, "statistics of nothing");
  if (!layer && !lies_as_counted(node, x))
    return refusal(BP_REFUSED_SHAPE, "takes [N, C, ...] as the operator counts them");
  if (node.op() == "aten.native_batch_norm_backward") {
    const bool train = node.bool_or("train", true);
    const std::size_t first = train ? 5 : 3;
    for (const std::size_t i : {first, first + 1})
      if (!node.has_operand(i) || node.operand(i).hint_elements() == 0)
        return refusal(BP_REFUSED_ATTRIBUTE, "statistics are missing");
  }
  return std::nullopt;
}

constexpr KernelRow kRows[] = {
    {"aten.native_layer_norm_backward", layer_norm_backward, refuse_norm},
    {"aten._native_batch_norm_legit_functional", batch_norm_functional, refuse_norm},
    {"aten._native_batch_norm_legit.no_stats", batch_norm_no_stats, refuse_norm},
    {"aten.native_batch_norm_backward", batch_norm_backward, refuse_norm},
    {"aten.native_group_norm", group_norm, refuse_norm},
    {"aten.native_group_norm_backward", group_norm_backward, refuse_norm},
};

}  // namespace

std::span<const KernelRow> norm_kernels() { return kRows; }

}  // namespace backplane::kernels
