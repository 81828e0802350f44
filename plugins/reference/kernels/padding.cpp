// Padding, patches to columns and back, and the gradients.
#include "kernel_registry.h"
#include "kernels/pooling.h"

namespace backplane::reference {
namespace {

// attribute "pad": pairs from the last dimension backwards; negative ones cut.
void run_constant_pad(const Frame& f) {
  Tensor from = f.in(0), to = f.out();
  const Shape pad = f.ints("pad");
  in_domain({to.type}, [&]<class T>(T) { fill(to, f.scalar<T>("value", T(0))); });
  for (std::size_t i = 0; i + 1 < pad.size(); i += 2) {
    const int64_t dim = from.rank() - 1 - static_cast<int64_t>(i / 2);
    const int64_t before = pad[i], after = pad[i + 1];
    const int64_t kept =
        from.dims[dim] + std::min<int64_t>(before, 0) + std::min<int64_t>(after, 0);
    if (kept <= 0) return;
    from = from.slice(dim, std::max<int64_t>(-before, 0), kept);
    to = to.slice(dim, std::max<int64_t>(before, 0), kept);
  }
  copy(to, from);
}

// Position of a padded coordinate in a run of `size`.
int64_t reflect(int64_t x, int64_t size) {
  if (x < 0) return -x;
  return x >= size ? 2 * (size - 1) - x : x;
}
int64_t replicate(int64_t x, int64_t size) { return std::clamp<int64_t>(x, 0, size - 1); }

// For each position of the padded planes, the position in the plain plane.
template <int64_t (*kSource)(int64_t, int64_t)>
std::vector<int64_t> pad_map(const Planes& s, const Triple& before) {
  std::vector<int64_t> map;
  Triple o;
  for (o[0] = 0; o[0] < s.out[0]; ++o[0])
    for (o[1] = 0; o[1] < s.out[1]; ++o[1])
      for (o[2] = 0; o[2] < s.out[2]; ++o[2]) {
        int64_t flat = 0;
        for (int d = 0; d < 3; ++d) flat = flat * s.in[d] + kSource(o[d] - before[d], s.in[d]);
        map.push_back(flat);
      }
  return map;
}
Triple pads_before(const Frame& f, int64_t spatial) {
  const Shape pad = f.ints("padding");
  Triple before{0, 0, 0};
  for (int64_t d = 0; d < spatial; ++d) before[2 - d] = pad[2 * d];
  return before;
}
template <int64_t (*kSource)(int64_t, int64_t), int64_t kSpatial>
void run_pad(const Frame& f) {
  const Planes s(f.in(0).dims, f.out().dims, kSpatial);
  const std::vector<int64_t> map = pad_map<kSource>(s, pads_before(f, kSpatial));
  in_domain({f.in(0).type}, [&]<class T>(T) {
    const std::vector<T> x = load<T>(f.in(0));
    std::vector<T> y(s.count * s.out_size());
    for (int64_t c = 0; c < s.count; ++c)
      for (int64_t i = 0; i < s.out_size(); ++i)
        y[c * s.out_size() + i] = x[c * s.in_size() + map[i]];
    store(f.out(), y);
  });
}
template <int64_t (*kSource)(int64_t, int64_t), int64_t kSpatial>
void run_pad_backward(const Frame& f) {
  const Planes s(f.in(1).dims, f.in(0).dims, kSpatial);
  const std::vector<int64_t> map = pad_map<kSource>(s, pads_before(f, kSpatial));
  in_domain({f.in(0).type}, [&]<class T>(T) {
    const std::vector<T> g = load<T>(f.in(0));
    std::vector<T> gx(s.count * s.in_size(), T(0));
    for (int64_t c = 0; c < s.count; ++c)
      for (int64_t i = 0; i < s.out_size(); ++i)
        gx[c * s.in_size() + map[i]] += g[c * s.out_size() + i];
    store(f.out(), gx);
  });
}

// Patches of [.., C, H, W] as [.., C kh kw, L].
struct Patches {
  Patches(const Frame& f, const Shape& image, const Shape& columns)
      : kernel(f.ints("kernel_size", 2, 1)),
        dilation(f.ints("dilation", 2, 1)),
        padding(f.ints("padding", 2, 0)),
        stride(f.ints("stride", 2, 1)),
        h(image[image.size() - 2]),
        w(image[image.size() - 1]),
        rows((h + 2 * padding[0] - dilation[0] * (kernel[0] - 1) - 1) / stride[0] + 1),
        count(columns.back()) {
    planes = 1;
    for (std::size_t i = 0; i + 2 < image.size(); ++i) planes *= image[i];
  }
  // visit(position in the columns, position in the images)
  template <class F>
  void each(F&& visit) const {
    const int64_t across = rows ? count / rows : 0;
    int64_t at = 0;
    for (int64_t p = 0; p < planes; ++p)
      for (int64_t i = 0; i < kernel[0]; ++i)
        for (int64_t j = 0; j < kernel[1]; ++j)
          for (int64_t l = 0; l < count; ++l, ++at) {
            const int64_t y = l / across * stride[0] - padding[0] + i * dilation[0];
            const int64_t x = l % across * stride[1] - padding[1] + j * dilation[1];
            if (y >= 0 && y < h && x >= 0 && x < w) visit(at, (p * h + y) * w + x);
          }
  }
  Shape kernel, dilation, padding, stride;
  int64_t h, w, rows, count, planes;
};
void run_im2col(const Frame& f) {
  const Patches p(f, f.in(0).dims, f.out().dims);
  in_domain({f.in(0).type}, [&]<class T>(T) {
    const std::vector<T> x = load<T>(f.in(0));
    std::vector<T> y(f.out().elements(), T(0));
    p.each([&](int64_t column, int64_t pixel) { y[column] = x[pixel]; });
    store(f.out(), y);
  });
}
void run_col2im(const Frame& f) {
  const Patches p(f, f.out().dims, f.in(0).dims);
  in_domain({f.in(0).type}, [&]<class T>(T) {
    const std::vector<T> x = load<T>(f.in(0));
    std::vector<T> y(f.out().elements(), T(0));
    p.each([&](int64_t column, int64_t pixel) { y[pixel] += x[column]; });
    store(f.out(), y);
  });
}

// The gradient of unfold: windows add up.
void run_unfold_backward(const Frame& f) {
  const Tensor grad = f.in(0), out = f.out();
  const int64_t step = f.integer("step", 1), size = f.integer("size", 1);
  if (out.rank() == 0) {
    const Tensor one = grad.select(0, 0);
    return copy(out, one);
  }
  const int64_t dim = wrap_dim(f.integer("dim", 0), out.rank());
  in_domain({grad.type}, [&]<class T>(T) {
    Tensor windows = grad;  // .., count, .., size -> .., count, size
    Shape order;
    for (int64_t d = 0; d < grad.rank() - 1; ++d)
      if (d != dim) order.push_back(d);
    order.push_back(dim);
    order.push_back(grad.rank() - 1);
    windows = grad.permuted(order);
    const std::vector<T> g = load<T>(windows);
    const int64_t count = grad.dims[dim], length = out.dims[dim];
    std::vector<T> v(out.elements(), T(0));
    for (int64_t i = 0; i < static_cast<int64_t>(g.size()); ++i) {
      const int64_t row = i / (count * size), window = i / size % count;
      v[row * length + window * step + i % size] += g[i];
    }
    store(out.moved_last(dim), v);
  });
}

constexpr KernelRow kRows[] = {
    {"aten.constant_pad_nd", run_constant_pad, true},
    {"aten.reflection_pad1d", run_pad<reflect, 1>, true},
    {"aten.reflection_pad2d", run_pad<reflect, 2>, true},
    {"aten.reflection_pad3d", run_pad<reflect, 3>, true},
    {"aten.replication_pad1d", run_pad<replicate, 1>, true},
    {"aten.replication_pad2d", run_pad<replicate, 2>, true},
    {"aten.replication_pad3d", run_pad<replicate, 3>, true},
    {"aten.reflection_pad1d_backward", run_pad_backward<reflect, 1>, true},
    {"aten.reflection_pad2d_backward", run_pad_backward<reflect, 2>, true},
    {"aten.reflection_pad3d_backward", run_pad_backward<reflect, 3>, true},
    {"aten.replication_pad1d_backward", run_pad_backward<replicate, 1>, true},
    {"aten.replication_pad2d_backward", run_pad_backward<replicate, 2>, true},
    {"aten.replication_pad3d_backward", run_pad_backward<replicate, 3>, true},
    {"aten.im2col", run_im2col, true},
    {"aten.col2im", run_col2im, true},
    {"aten.unfold_backward", run_unfold_backward, true},
};

}  // namespace

KernelRows padding_kernels() { return kRows; }

}  // namespace backplane::reference
