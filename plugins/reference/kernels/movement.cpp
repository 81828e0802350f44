// Ops that move elements without arithmetic.
#include <algorithm>

#include "kernel_registry.h"

namespace backplane::reference {
namespace {

using std::int64_t;

void run_copy(const Frame& f) { copy(f.out(), f.in(0)); }
// aten.copy(self, src): self gives the shape only.
void run_copy_second(const Frame& f) { copy(f.out(), f.in(1)); }

// The same elements in row-major order under other dims.
void run_reshape(const Frame& f) {
  const Tensor in = f.in(0), out = f.out();
  in_domain({in.type}, [&]<class T>(T) { store(out, load<T>(in)); });
}

void run_cat(const Frame& f) {
  const Tensor out = f.out();
  const int64_t dim = wrap_dim(f.integer("dim", 0), out.rank());
  int64_t at = 0;
  for (int64_t i = 0; i < f.list_count(); ++i) {
    const Tensor part = f.in(f.list_first() + i);
    if (part.rank() == 1 && part.dims[0] == 0) continue;  // the legacy empty tensor
    copy(out.slice(dim, at, part.dims[dim]), part);
    at += part.dims[dim];
  }
}
void run_stack(const Frame& f) {
  const Tensor out = f.out();
  const int64_t dim = wrap_dim(f.integer("dim", 0), out.rank());
  for (int64_t i = 0; i < f.list_count(); ++i) copy(out.select(dim, i), f.in(f.list_first() + i));
}

void run_repeat(const Frame& f) {
  // The result as [repeats..., dims...] interleaved, the operand broadcast along the repeats.
  const Tensor in = f.in(0);
  Tensor out = f.out();
  Shape repeats = f.present("dims") ? f.ints("dims") : f.ints("repeats");  // of aten.tile
  repeats.insert(repeats.begin(), out.dims.size() - repeats.size(), 1);
  const int64_t lead = out.rank() - in.rank();
  Tensor to = out, from = in;
  to.dims.clear(), to.strides.clear(), from.dims.clear(), from.strides.clear();
  for (int64_t d = 0; d < out.rank(); ++d) {
    const int64_t size = d < lead ? 1 : in.dims[d - lead];
    to.dims.insert(to.dims.end(), {repeats[d], size});
    to.strides.insert(to.strides.end(), {out.strides[d] * size, out.strides[d]});
    from.dims.insert(from.dims.end(), {repeats[d], size});
    from.strides.insert(from.strides.end(), {0, d < lead ? 0 : in.strides[d - lead]});
  }
  copy(to, from);
}

void run_flip(const Frame& f) {
  Tensor in = f.in(0);
  if (in.elements() == 0) return;
  const Shape flipped = f.ints("dims");
  if (in.rank() > 0)
    for (int64_t d : flipped) {
      const int64_t dim = wrap_dim(d, in.rank());
      in = in.slice(dim, in.dims[dim] - 1, in.dims[dim], -1);
    }
  copy(f.out(), in);
}

void roll(const Tensor& to, const Tensor& from, const Shape& shifts, const Shape& dims,
          std::size_t i) {
  if (i == shifts.size()) return copy(to, from);
  const int64_t dim = wrap_dim(dims[i], to.rank()), size = to.dims[dim];
  if (size == 0) return;
  const int64_t shift = ((shifts[i] % size) + size) % size;
  roll(to.slice(dim, shift, size - shift), from.slice(dim, 0, size - shift), shifts, dims, i + 1);
  if (shift)
    roll(to.slice(dim, 0, shift), from.slice(dim, size - shift, shift), shifts, dims, i + 1);
}
void run_roll(const Frame& f) {
  const Tensor in = f.in(0), out = f.out();
  const Shape shifts = f.ints("shifts"), dims = f.ints("dims");
  if (in.elements() == 0) return;
  if (dims.empty()) {  // over the flattened tensor
    in_domain({in.type}, [&]<class T>(T) {
      std::vector<T> v = load<T>(in);
      const auto n = static_cast<int64_t>(v.size());
      const int64_t shift = (((shifts.empty() ? 0 : shifts[0]) % n) + n) % n;
      std::rotate(v.begin(), v.end() - shift, v.end());
      store(out, v);
    });
    return;
  }
  // A dimension listed twice moves twice: add its shifts up.
  Shape total(in.dims.size(), 0), used, amounts;
  for (std::size_t i = 0; i < dims.size(); ++i) total[wrap_dim(dims[i], in.rank())] += shifts[i];
  for (std::size_t d = 0; d < total.size(); ++d) {
    if (total[d] == 0) continue;
    used.push_back(static_cast<int64_t>(d));
    amounts.push_back(total[d]);
  }
  roll(out, in, amounts, used, 0);
}

template <bool kLower>
void run_triangle(const Frame& f) {
  const Tensor in = f.in(0), out = f.out();
  const int64_t diagonal = f.integer("diagonal", 0);
  in_domain({in.type}, [&]<class T>(T) {
    std::vector<T> v = load<T>(in);
    if (v.empty()) return;
    const int64_t rows = in.size(-2), columns = in.size(-1);
    for (int64_t i = 0; i < static_cast<int64_t>(v.size()); ++i) {
      const int64_t r = i / columns % rows, c = i % columns;
      if (kLower ? c - r > diagonal : c - r < diagonal) v[i] = T{};
    }
    store(out, v);
  });
}

// ---- Views, copied, and the scatter of a source into a view ----

Tensor slice_of(const Tensor& t, const Frame& f) {
  const int64_t dim = wrap_dim(f.integer("dim", 0), t.rank()), size = t.dims[dim];
  int64_t start = f.integer("start", 0), end = f.integer("end", INT64_MAX);
  const int64_t step = f.integer("step", 1);
  if (start < 0) start += size;
  if (end < 0) end += size;
  start = std::clamp<int64_t>(start, 0, size);
  end = std::clamp<int64_t>(end, start, size);
  return t.slice(dim, start, (end - start + step - 1) / step, step);
}
Tensor select_of(const Tensor& t, const Frame& f) {
  const int64_t dim = wrap_dim(f.integer("dim", 0), t.rank());
  int64_t index = f.integer("index", 0);
  if (index < 0) index += t.dims[dim];
  return t.select(dim, index);
}
Tensor diagonal_of(const Tensor& t, const Frame& f) {
  const int64_t d1 = wrap_dim(f.integer("dim1", 0), t.rank());
  const int64_t d2 = wrap_dim(f.integer("dim2", 1), t.rank());
  const int64_t offset = f.integer("offset", 0);
  const int64_t rows = std::max<int64_t>(0, t.dims[d1] + std::min<int64_t>(offset, 0));
  const int64_t columns = std::max<int64_t>(0, t.dims[d2] - std::max<int64_t>(offset, 0));
  Tensor out = t;
  if (out.data)
    out.data += (offset >= 0 ? offset * t.strides[d2] : -offset * t.strides[d1]) * bytes_of(t.type);
  out.dims.erase(out.dims.begin() + std::max(d1, d2));
  out.dims.erase(out.dims.begin() + std::min(d1, d2));
  out.strides.erase(out.strides.begin() + std::max(d1, d2));
  out.strides.erase(out.strides.begin() + std::min(d1, d2));
  out.dims.push_back(std::min(rows, columns));
  out.strides.push_back(t.strides[d1] + t.strides[d2]);
  return out;
}
Tensor strided_of(const Tensor& t, const Frame& f) {
  Tensor out = t;
  out.dims = f.ints("size");
  out.strides = f.ints("stride");
  if (out.data) out.data += f.integer("storage_offset", 0) * bytes_of(t.type);
  return out;
}
Tensor permutation_of(const Tensor& t, const Frame& f) {
  Shape order = f.ints("dims");
  for (int64_t& d : order) d = wrap_dim(d, t.rank());
  return t.permuted(order);
}
Tensor transposition_of(const Tensor& t, const Frame& f) {
  if (t.rank() == 0) return t;
  Tensor out = t;
  const int64_t a = wrap_dim(f.integer("dim0", 0), t.rank());
  const int64_t b = wrap_dim(f.integer("dim1", 1), t.rank());
  std::swap(out.dims[a], out.dims[b]);
  std::swap(out.strides[a], out.strides[b]);
  return out;
}
Tensor matrix_transposition_of(const Tensor& t, const Frame&) {
  return t.rank() < 2 ? t : t.permuted({1, 0});
}
Tensor unfolding_of(const Tensor& t, const Frame& f) {
  const int64_t size = f.integer("size", 1), step = f.integer("step", 1);
  Tensor out = t;
  if (t.rank() == 0) {
    out.dims = {size};
    out.strides = {1};
    return out;
  }
  const int64_t dim = wrap_dim(f.integer("dimension", 0), t.rank());
  out.dims[dim] = (t.dims[dim] - size) / step + 1;
  out.strides[dim] = t.strides[dim] * step;
  out.dims.push_back(size);
  out.strides.push_back(t.strides[dim]);
  return out;
}
template <Tensor (*kView)(const Tensor&, const Frame&)>
void run_view_copy(const Frame& f) {
  copy(f.out(), kView(f.in(0), f));
}
template <Tensor (*kView)(const Tensor&, const Frame&)>
void run_view_scatter(const Frame& f) {
  copy(f.out(), f.in(0));
  if (f.out().elements()) copy(kView(f.out(), f), f.in(1));
}
// The operand's strides are those of a dense tensor here, as functionalisation has it.
void run_strided_scatter(const Frame& f) {
  const Tensor out = f.out();
  copy(out, f.in(0));
  if (out.elements()) copy(strided_of(out, f), f.in(1));
}
template <Tensor (*kView)(const Tensor&, const Frame&)>
void run_view_backward(const Frame& f) {  // zeros but for the view
  const Tensor out = f.out();
  fill<int64_t>(out, 0);
  if (out.elements() && f.in(0).elements()) copy(kView(out, f), f.in(0));
}
void run_split_copy(const Frame& f) {
  const Tensor in = f.in(0);
  const int64_t dim = wrap_dim(f.integer("dim", 0), in.rank());
  int64_t at = 0;
  const Shape sizes = f.ints("split_sizes");
  for (int64_t i = 0; i < f.result_count(); ++i) {
    const int64_t size =
        sizes.empty() ? std::min(f.integer("split_size", 1), in.dims[dim] - at) : sizes[i];
    if (f.wants(i)) copy(f.out(i), in.slice(dim, at, size));
    at += size;
  }
}
void run_unbind_copy(const Frame& f) {
  for (int64_t i = 0; i < f.result_count(); ++i)
    if (f.wants(i)) copy(f.out(i), f.in(0).select(f.integer("dim", 0), i));
}
void run_view_as_real_copy(const Frame& f) {
  Tensor in = f.in(0);
  in.type = in.type == Type::kC64 ? Type::kF32 : Type::kF64;
  for (int64_t& s : in.strides) s *= 2;
  in.dims.push_back(2);
  in.strides.push_back(1);
  copy(f.out(), in);
}
void run_view_as_complex_copy(const Frame& f) {
  Tensor out = f.out();
  out.type = out.type == Type::kC64 ? Type::kF32 : Type::kF64;
  for (int64_t& s : out.strides) s *= 2;
  out.dims.push_back(2);
  out.strides.push_back(1);
  copy(out, f.in(0));
}

// [.., C r^2, H, W] and [.., C, H r, W r]: dims are split and put in another order.
template <bool kForward>
void run_pixel_shuffle(const Frame& f) {
  const Tensor in = f.in(0), out = f.out();
  const int64_t r = f.integer(kForward ? "upscale_factor" : "downscale_factor", 1);
  const Tensor& small = kForward ? in : out;  // the one with many channels
  const Tensor& large = kForward ? out : in;
  Tensor a = small, b = large;
  const auto split = [](Tensor& t, int64_t dim, Shape sizes) {
    const int64_t stride = t.strides[dim];
    Shape strides = dense_strides(sizes);
    for (int64_t& s : strides) s *= stride;
    t.dims.erase(t.dims.begin() + dim);
    t.strides.erase(t.strides.begin() + dim);
    t.dims.insert(t.dims.begin() + dim, sizes.begin(), sizes.end());
    t.strides.insert(t.strides.begin() + dim, strides.begin(), strides.end());
  };
  const int64_t n = small.rank(), c = large.dims[n - 3];
  const int64_t h = small.dims[n - 2], w = small.dims[n - 1];
  split(a, n - 3, {c, r, r});  // .., c, r, r, h, w
  split(b, n - 1, {w, r});
  split(b, n - 2, {h, r});  // .., c, h, r, w, r
  Shape order;
  for (int64_t d = 0; d < n - 2; ++d) order.push_back(d);
  order.insert(order.end(), {n - 1, n + 1, n - 2, n});  // b as .., c, r, r, h, w
  b = b.permuted(order);
  if (kForward)
    copy(b, a);
  else
    copy(a, b);
}
void run_channel_shuffle(const Frame& f) {
  Tensor in = f.in(0), out = f.out();
  const int64_t groups = f.integer("groups", 1), c = in.dims[1];
  const auto split = [](Tensor& t, int64_t first, int64_t second) {
    t.dims[1] = second;
    t.dims.insert(t.dims.begin() + 1, first);
    t.strides.insert(t.strides.begin() + 1, t.strides[1] * second);
  };
  split(in, groups, c / groups);
  split(out, c / groups, groups);
  std::swap(in.dims[1], in.dims[2]);
  std::swap(in.strides[1], in.strides[2]);
  copy(out, in);
}

constexpr KernelRow kRows[] = {
    {"aten.clone", run_copy, true},
    {"aten._to_copy", run_copy, true},
    {"aten.contiguous", run_copy, true},
    {"aten.lift_fresh_copy", run_copy, true},
    {"aten.lift", run_copy, true},
    {"aten.lift_fresh", run_copy, true},
    {"aten.alias_copy", run_copy, true},
    {"aten.detach_copy", run_copy, true},
    {"aten.expand_copy", run_copy, true},
    {"aten.to.dtype", run_copy, true},
    {"prims.convert_element_type", run_copy, true},
    {"aten.copy", run_copy_second, true},
    {"aten.copy_", run_copy_second, true},
    {"aten.reshape", run_reshape, true},
    {"aten.view_copy", run_reshape, true},
    {"aten._reshape_copy", run_reshape, true},
    {"aten.flatten.using_ints", run_reshape, true},
    {"aten.squeeze_copy", run_reshape, true},
    {"aten.squeeze_copy.dim", run_reshape, true},
    {"aten.squeeze_copy.dims", run_reshape, true},
    {"aten.unsqueeze_copy", run_reshape, true},
    {"aten.cat", run_cat, true},
    {"aten.stack", run_stack, true},
    {"aten.repeat", run_repeat, true},
    {"aten.flip", run_flip, true},
    {"aten.roll", run_roll, true},
    {"aten.tril", run_triangle<true>, true},
    {"aten.triu", run_triangle<false>, true},
    {"aten.slice_copy.Tensor", run_view_copy<slice_of>, true},
    {"aten.select_copy.int", run_view_copy<select_of>, true},
    {"aten.diagonal_copy", run_view_copy<diagonal_of>, true},
    {"aten.as_strided_copy", run_view_copy<strided_of>, true},
    {"aten.permute_copy", run_view_copy<permutation_of>, true},
    {"aten.transpose_copy.int", run_view_copy<transposition_of>, true},
    {"aten.t_copy", run_view_copy<matrix_transposition_of>, true},
    {"aten.unfold_copy", run_view_copy<unfolding_of>, true},
    {"aten.slice_scatter", run_view_scatter<slice_of>, true},
    {"aten.select_scatter", run_view_scatter<select_of>, true},
    {"aten.diagonal_scatter", run_view_scatter<diagonal_of>, true},
    {"aten.as_strided_scatter", run_strided_scatter, true},
    {"aten.slice_backward", run_view_backward<slice_of>, true},
    {"aten.select_backward", run_view_backward<select_of>, true},
    {"aten.diagonal_backward", run_view_backward<diagonal_of>, true},
    {"aten.split_copy.Tensor", run_split_copy, true},
    {"aten.split_with_sizes_copy", run_split_copy, true},
    {"aten.unbind_copy.int", run_unbind_copy, true},
    {"aten.view_as_real_copy", run_view_as_real_copy, true},
    {"aten.view_as_complex_copy", run_view_as_complex_copy, true},
    {"aten.pixel_shuffle", run_pixel_shuffle<true>, true},
    {"aten.pixel_unshuffle", run_pixel_shuffle<false>, true},
    {"aten.channel_shuffle", run_channel_shuffle, true},
};

}  // namespace

KernelRows movement_kernels() { return kRows; }

}  // namespace backplane::reference
