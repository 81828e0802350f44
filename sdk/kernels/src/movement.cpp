// Operators that only move elements.
#include "registry.hpp"

namespace backplane::kernels {
namespace {

using kernelgen::Op;

#define BP_OPERAND(name, i)                   \
  auto name##_ = b.operand(i);                \
  if (!name##_.ok()) return name##_.status(); \
  const TensorView& name = *name##_

std::size_t dim_of(const Builder& b, std::string_view name, std::size_t rank) {
  return static_cast<std::size_t>(wrap_dim(b.step().int_or(name, 0), rank));
}

// Indices of a dense tensor's element by its position.
Indices unflatten(Draft& d, Expr flat, const Shape& dims) {
  Indices index(dims.size());
  for (std::size_t i = dims.size(); i-- > 0;) {
    index[i] = i == 0 ? flat : d.e().binary(Op::kMod, flat, d.index(dims[i]));
    flat = d.e().div(flat, d.index(std::max<std::int64_t>(dims[i], 1)));
  }
  return index;
}
Expr flatten(Draft& d, const Indices& index, const Shape& dims) {
  Expr flat = d.index(0);
  for (std::size_t i = 0; i < dims.size(); ++i)
    flat = d.e().add(d.e().mul(flat, d.index(dims[i])), index[i]);
  return flat;
}
Expr zero_of(Draft& d, const TensorView& t) {
  return d.e().constant(kernelgen::compute_type(t.storage), 0);
}

// Dims of which those of both shapes are made, which have as many elements; nothing where there are
// none.
std::optional<Shape> common_dims(const Shape& a, const Shape& b) {
  Shape out;
  std::size_t i = a.size(), j = b.size();
  for (std::int64_t left = 1, right = 1;;) {
    while (left == 1 && i > 0) left = a[--i];
    while (right == 1 && j > 0) right = b[--j];
    if (left == 1 && right == 1) break;
    const std::int64_t least = std::min(left, right);
    if (least < 2 || left % least != 0 || right % least != 0) return std::nullopt;
    out.insert(out.begin(), least);
    left /= least;
    right /= least;
  }
  return out;
}
// The tensor over such dims.
TensorView over_dims(const TensorView& tensor, const Shape& dims) {
  TensorView out = tensor;
  out.dims = dims;
  out.strides.assign(dims.size(), 0);
  std::size_t d = tensor.dims.size();
  std::int64_t taken = 1, whole = 1;
  for (std::size_t k = dims.size(); k-- > 0;) {
    while (taken == whole) {
      whole = tensor.dims[--d];
      taken = 1;
    }
    out.strides[k] = tensor.strides[d] * taken;
    taken *= dims[k];
  }
  return out;
}

Status reshape(Builder& b) {
  BP_OPERAND(in, 0);
  const TensorView out = b.result();
  if (b.facts().gpu)
    if (const auto dims = common_dims(in.dims, out.dims))
      return copy_elements(b, over_dims(in, *dims), over_dims(out, *dims));
  Draft d(b, out.dims);
  d.store(out, d.outer(), d.load(in, unflatten(d, flatten(d, d.outer(), out.dims), in.dims)));
  return d.finish();
}

// Copies of operands into their parts of the result; small ones of one shape share a launch, which
// costs more than they do.
Status join(Builder& b, bool stacks) {
  constexpr std::size_t kTogether = 16;
  constexpr std::int64_t kSmall = 1 << 16;  // elements
  const TensorView out = b.result();
  const std::size_t dim = dim_of(b, "dim", out.dims.size());
  const sdk::NodeView node = b.step().node();
  std::vector<TensorView> parts;
  for (std::size_t i = 0; i < node.list_count(); ++i) {
    BP_OPERAND(in, node.list_first() + i);
    if (stacks || in.dims.size() == out.dims.size()) parts.push_back(in);  // no legacy empty tensor
  }
  std::int64_t at = 0;
  for (std::size_t first = 0, end = 0; first < parts.size(); first = end) {
    const Shape& dims = parts[first].dims;
    const std::size_t most = product(dims) <= kSmall ? kTogether : 1;
    Draft d(b, dims);
    for (end = first; end < parts.size() && end - first < most && parts[end].dims == dims; ++end) {
      Indices index = d.outer();
      if (stacks) {
        index.insert(index.begin() + static_cast<std::ptrdiff_t>(dim), d.index(at++));
      } else {
        index[dim] = d.e().add(index[dim], d.index(at));
        at += dims[dim];
      }
      // The operand's own dim of size 1 is no broadcast of the result's.
      d.store(out, index, d.load(parts[end], d.outer()));
    }
    BP_SDK_RETURN_IF_ERROR(d.finish());
  }
  return {};
}
Status cat(Builder& b) { return join(b, false); }
Status stack(Builder& b) { return join(b, true); }

Status flip(Builder& b) {
  BP_OPERAND(in, 0);
  const TensorView out = b.result();
  Draft d(b, out.dims);
  Indices index = d.outer();
  for (const std::int64_t raw : b.step().ints("dims")) {
    const auto k = static_cast<std::size_t>(wrap_dim(raw, out.dims.size()));
    if (k < index.size()) index[k] = d.e().sub(d.index(out.dims[k] - 1), d.outer()[k]);
  }
  d.store(out, d.outer(), d.load(in, index));
  return d.finish();
}
Status roll(Builder& b) {
  BP_OPERAND(in, 0);
  const TensorView out = b.result();
  const Shape shifts = b.step().ints("shifts"), dims = b.step().ints("dims");
  Draft d(b, out.dims);
  const auto shifted = [&](Expr i, std::int64_t shift, std::int64_t size) {
    const std::int64_t s = ((-shift) % size + size) % size;
    return d.e().binary(Op::kMod, d.e().add(i, d.index(s)), d.index(size));
  };
  Indices index = d.outer();
  if (in.dims.empty() || product(in.dims) == 0) {
  } else if (dims.empty()) {
    const Expr flat = flatten(d, d.outer(), out.dims);
    index =
        unflatten(d, shifted(flat, shifts.empty() ? 0 : shifts[0], product(out.dims)), out.dims);
  } else {
    for (std::size_t i = 0; i < dims.size(); ++i) {
      const auto k = static_cast<std::size_t>(wrap_dim(dims[i], out.dims.size()));
      index[k] = shifted(index[k], shifts[i], out.dims[k]);
    }
  }
  d.store(out, d.outer(), d.load(in, index));
  return d.finish();
}
Status repeat(Builder& b) {
  BP_OPERAND(in, 0);
  const TensorView out = b.result();
  Draft d(b, out.dims);
  Indices index;
  const std::size_t missing = out.dims.size() - in.dims.size();
  for (std::size_t i = 0; i < in.dims.size(); ++i)
    index.push_back(d.e().binary(Op::kMod, d.outer()[missing + i],
                                 d.index(std::max<std::int64_t>(in.dims[i], 1))));
  d.store(out, d.outer(), d.load(in, index));
  return d.finish();
}

// The operand's element where the point lies in it, `outside` elsewhere.
Expr guarded(Draft& d, const TensorView& in, Indices index, Expr outside) {
  Expr inside = d.e().integer(kernelgen::Type::kBool, 1);
  if (product(in.dims) == 0) return outside;
  for (std::size_t i = 0; i < index.size(); ++i) {
    inside = d.e().both(inside, d.e().inside(index[i], in.dims[i]));
    index[i] = d.e().clamped(index[i], in.dims[i]);
  }
  return d.e().select(inside, d.load(in, index), outside);
}
Status constant_pad(Builder& b) {
  BP_OPERAND(in, 0);
  const TensorView out = b.result();
  const Shape pad = b.step().ints("pad");
  Draft d(b, out.dims);
  Indices index = d.outer();
  for (std::size_t i = 0; 2 * i + 1 < pad.size(); ++i) {
    Expr& at = index[index.size() - 1 - i];
    at = d.e().sub(at, d.index(pad[2 * i]));
  }
  const Expr value = d.attribute("value", 0, kernelgen::compute_type(out.storage));
  d.store(out, d.outer(), guarded(d, in, index, value));
  return d.finish();
}
// Index of a source element along a dim that a slice took: (i - start) / step where that is whole.
Status slice_into(Builder& b, const TensorView& source, const TensorView* base, std::size_t dim,
                  std::int64_t start, std::int64_t step, bool selects) {
  const TensorView out = b.result();
  Draft d(b, out.dims);
  const std::int64_t size = out.dims[dim];
  if (start < 0) start += size;
  start = std::clamp<std::int64_t>(start, 0, size);
  Indices index = d.outer();
  const Expr moved = d.e().sub(index[dim], d.index(start));
  Expr inside = d.e().binary(Op::kLe, d.index(start), index[dim]);
  const Expr outside = base ? d.load(*base, d.outer()) : zero_of(d, out);
  if (selects) {
    inside = d.e().binary(Op::kEq, index[dim], d.index(start));
    index.erase(index.begin() + static_cast<std::ptrdiff_t>(dim));
  } else {
    inside = d.e().both(
        inside, d.e().binary(Op::kEq, d.e().binary(Op::kMod, moved, d.index(step)), d.index(0)));
    index[dim] = d.e().div(moved, d.index(step));
    inside = d.e().both(inside, d.e().binary(Op::kLt, index[dim], d.index(source.dims[dim])));
    index[dim] = d.e().clamped(index[dim], source.dims[dim]);
  }
  const Expr value =
      product(source.dims) == 0 ? outside : d.e().select(inside, d.load(source, index), outside);
  d.store(out, d.outer(), value);
  return d.finish();
}
Status slice_backward(Builder& b) {
  BP_OPERAND(grad, 0);
  const std::size_t dim = dim_of(b, "dim", b.result().dims.size());
  return slice_into(b, grad, nullptr, dim, b.step().int_or("start", 0), b.step().int_or("step", 1),
                    false);
}
Status slice_scatter(Builder& b) {
  BP_OPERAND(base, 0);
  BP_OPERAND(source, 1);
  const std::size_t dim = dim_of(b, "dim", base.dims.size());
  return slice_into(b, source, &base, dim, b.step().int_or("start", 0), b.step().int_or("step", 1),
                    false);
}
Status select_backward(Builder& b) {
  BP_OPERAND(grad, 0);
  const std::size_t dim = dim_of(b, "dim", b.result().dims.size());
  return slice_into(b, grad, nullptr, dim, b.step().int_or("index", 0), 1, true);
}
Status select_scatter(Builder& b) {
  BP_OPERAND(base, 0);
  BP_OPERAND(source, 1);
  const std::size_t dim = dim_of(b, "dim", base.dims.size());
  return slice_into(b, source, &base, dim, b.step().int_or("index", 0), 1, true);
}

template <bool kUpper>
Status triangle(Builder& b) {
  BP_OPERAND(in, 0);
  const TensorView out = b.result();
  const std::size_t rank = out.dims.size();
  Draft d(b, out.dims);
  const std::int64_t diagonal =
      std::clamp(b.step().int_or("diagonal", 0), -out.dims[rank - 2], out.dims[rank - 1]);
  const Expr row = d.e().add(d.outer()[rank - 2], d.index(diagonal));
  const Expr column = d.outer()[rank - 1];
  const Expr kept =
      kUpper ? d.e().binary(Op::kLe, row, column) : d.e().binary(Op::kLe, column, row);
  d.store(out, d.outer(), d.e().select(kept, d.load(in, d.outer()), zero_of(d, out)));
  return d.finish();
}
std::optional<sdk::Refusal> refuse_below_two(const sdk::NodeView& node) {
  if (node.operand(0).rank() < 2) return refusal(BP_REFUSED_SHAPE, "needs two dims");
  return std::nullopt;
}

// Reflection and replication: of the last dims, by the index that the border takes.
template <bool kReflects>
Status pad_border(Builder& b) {
  BP_OPERAND(in, 0);
  const TensorView out = b.result();
  const Shape pad = b.step().ints("padding");
  Draft d(b, out.dims);
  Indices index = d.outer();
  for (std::size_t i = 0; 2 * i + 1 < pad.size(); ++i) {
    const std::size_t k = index.size() - 1 - i;
    Expr at = d.e().sub(index[k], d.index(pad[2 * i]));
    if (kReflects) {
      const Expr last = d.index(in.dims[k] - 1);
      at = d.e().unary(Op::kAbs, at);
      at = d.e().sub(last, d.e().unary(Op::kAbs, d.e().sub(last, at)));
    }
    index[k] = d.e().clamped(at, in.dims[k]);
  }
  d.store(out, d.outer(), d.load(in, index));
  return d.finish();
}
Status pixel_shuffle(Builder& b) {
  BP_OPERAND(in, 0);
  const TensorView out = b.result();
  const std::int64_t r = b.step().int_or("upscale_factor", 1);
  Draft d(b, out.dims);
  const std::size_t rank = out.dims.size();
  Indices index = d.outer();
  const Expr h = index[rank - 2], w = index[rank - 1], factor = d.index(r);
  const Expr part = d.e().add(d.e().mul(d.e().binary(Op::kMod, h, factor), factor),
                              d.e().binary(Op::kMod, w, factor));
  index[rank - 3] = d.e().add(d.e().mul(index[rank - 3], d.index(r * r)), part);
  index[rank - 2] = d.e().div(h, factor);
  index[rank - 1] = d.e().div(w, factor);
  d.store(out, d.outer(), d.load(in, index));
  return d.finish();
}
Status repeat_interleave(Builder& b) {
  BP_OPERAND(in, 0);
  const TensorView out = b.result();
  Draft d(b, out.dims);
  Indices index = d.outer();
  const Expr times = d.index(std::max<std::int64_t>(b.step().int_or("repeats", 1), 1));
  if (b.step().node().attribute("dim") == nullptr) {
    index = unflatten(d, d.e().div(index[0], times), in.dims);
  } else {
    const std::size_t dim = dim_of(b, "dim", out.dims.size());
    index[dim] = d.e().div(index[dim], times);
  }
  d.store(out, d.outer(), d.load(in, index));
  return d.finish();
}

constexpr KernelRow kRows[] = {
    {"aten.reshape", reshape},
    {"aten._reshape_copy", reshape},
    {"aten.view_copy", reshape},
    {"aten.flatten.using_ints", reshape},
    {"aten.ravel", reshape},
    {"aten._reshape_alias_copy", reshape},
    {"aten.unsqueeze_copy", reshape},
    {"aten.squeeze_copy", reshape},
    {"aten.squeeze_copy.dim", reshape},
    {"aten.squeeze_copy.dims", reshape},
    {"aten.cat", cat},
    {"aten.concat", cat},
    {"aten.stack", stack},
    {"aten._stack", stack},
    {"aten.flip", flip},
    {"aten.roll", roll},
    {"aten.repeat", repeat},
    {"aten.tile", repeat},
    {"aten.constant_pad_nd", constant_pad},
    {"aten.slice_backward", slice_backward},
    {"aten.slice_scatter", slice_scatter},
    {"aten.select_backward", select_backward},
    {"aten.select_scatter", select_scatter},
    {"aten.tril", triangle<false>, refuse_below_two},
    {"aten.triu", triangle<true>, refuse_below_two},
    {"aten.reflection_pad1d", pad_border<true>},
    {"aten.reflection_pad2d", pad_border<true>},
    {"aten.reflection_pad3d", pad_border<true>},
    {"aten.replication_pad1d", pad_border<false>},
    {"aten.replication_pad2d", pad_border<false>},
    {"aten.replication_pad3d", pad_border<false>},
    {"aten.pixel_shuffle", pixel_shuffle},
    {"aten.repeat_interleave.self_int", repeat_interleave},
};

}  // namespace

std::span<const KernelRow> movement_kernels() { return kRows; }

}  // namespace backplane::kernels
