// Convolutions of one to three spatial dimensions, as matrix products over gathered patches.
#include "kernel_registry.h"
#include "kernels/gemm.h"
#include "kernels/pooling.h"

namespace backplane::reference {
namespace {

// A convolution of `in` with C channels to `out` with O channels; a transposed one is its
// gradient with respect to the input, with the roles of in and out exchanged.
struct Geometry {
  int64_t n, c, o, groups;
  Triple in, out, kernel, stride, padding, dilation;
  int64_t kernel_size() const { return kernel[0] * kernel[1] * kernel[2]; }
  int64_t in_size() const { return in[0] * in[1] * in[2]; }
  int64_t out_size() const { return out[0] * out[1] * out[2]; }
  int64_t depth() const { return c / groups * kernel_size(); }  // of a patch
};

Geometry geometry(const Frame& f, const Shape& in, const Shape& out, const Shape& weight) {
  const auto spatial = static_cast<int64_t>(in.size()) - 2;
  Geometry g;
  g.groups = f.integer("groups", 1);
  g.n = in[0];
  g.c = in[1];
  g.o = out[1];
  g.in = triple(in, 2, 1);
  g.out = triple(out, 2, 1);
  g.kernel = triple(weight, 2, 1);
  g.stride = triple(f.ints("stride", spatial, 1), 0, 1);
  g.padding = triple(f.ints("padding", spatial, 0), 0, 0);
  g.dilation = triple(f.ints("dilation", spatial, 1), 0, 1);
  return g;
}

// visit(row of the patch matrix, position of the result, position in the input plane or -1)
template <class F>
void visit_patches(const Geometry& g, F&& visit) {
  int64_t k = 0;
  Triple at;
  for (at[0] = 0; at[0] < g.kernel[0]; ++at[0])
    for (at[1] = 0; at[1] < g.kernel[1]; ++at[1])
      for (at[2] = 0; at[2] < g.kernel[2]; ++at[2], ++k) {
        int64_t p = 0;
        Triple o;
        for (o[0] = 0; o[0] < g.out[0]; ++o[0])
          for (o[1] = 0; o[1] < g.out[1]; ++o[1])
            for (o[2] = 0; o[2] < g.out[2]; ++o[2], ++p) {
              int64_t flat = 0;
              for (int d = 0; d < 3 && flat >= 0; ++d) {
                const int64_t x = o[d] * g.stride[d] - g.padding[d] + at[d] * g.dilation[d];
                flat = x < 0 || x >= g.in[d] ? -1 : flat * g.in[d] + x;
              }
              visit(k, p, flat);
            }
      }
}
// Source positions of the patch matrix of one channel: [kernel, out]; -1 is padding.
std::vector<int64_t> patch_map(const Geometry& g) {
  std::vector<int64_t> map(g.kernel_size() * g.out_size());
  visit_patches(g, [&](int64_t k, int64_t p, int64_t flat) { map[k * g.out_size() + p] = flat; });
  return map;
}

template <class T>
void gather_patches(const Geometry& g, const std::vector<int64_t>& map, const T* plane, T* to) {
  const int64_t size = static_cast<int64_t>(map.size());
  for (int64_t c = 0; c < g.c / g.groups; ++c, plane += g.in_size())
    for (int64_t i = 0; i < size; ++i) *to++ = map[i] < 0 ? T(0) : plane[map[i]];
}
template <class T>
std::vector<T> transposed(const T* v, int64_t rows, int64_t columns) {
  std::vector<T> out(rows * columns);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) out[c * rows + r] = v[r * columns + c];
  return out;
}

template <class T>
std::vector<T> forward(const Geometry& g, const std::vector<T>& x, const std::vector<T>& w) {
  std::vector<T> y(g.n * g.o * g.out_size(), T(0)), patches(g.depth() * g.out_size());
  const std::vector<int64_t> map = patch_map(g);
  for (int64_t n = 0; n < g.n; ++n)
    for (int64_t i = 0; i < g.groups; ++i) {
      gather_patches(g, map, x.data() + (n * g.c + i * g.c / g.groups) * g.in_size(),
                     patches.data());
      const int64_t first = i * g.o / g.groups;
      gemm(g.o / g.groups, g.out_size(), g.depth(), w.data() + first * g.depth(), patches.data(),
           y.data() + (n * g.o + first) * g.out_size());
    }
  return y;
}
template <class T>
std::vector<T> input_gradient(const Geometry& g, const std::vector<T>& gy,
                              const std::vector<T>& w) {
  std::vector<T> gx(g.n * g.c * g.in_size(), T(0)), patches(g.depth() * g.out_size());
  const std::vector<int64_t> map = patch_map(g);
  for (int64_t i = 0; i < g.groups; ++i) {
    const int64_t first = i * g.o / g.groups;
    const std::vector<T> wt = transposed(w.data() + first * g.depth(), g.o / g.groups, g.depth());
    for (int64_t n = 0; n < g.n; ++n) {
      std::fill(patches.begin(), patches.end(), T(0));
      gemm(g.depth(), g.out_size(), g.o / g.groups, wt.data(),
           gy.data() + (n * g.o + first) * g.out_size(), patches.data());
      T* plane = gx.data() + (n * g.c + i * g.c / g.groups) * g.in_size();
      const T* from = patches.data();
      for (int64_t c = 0; c < g.c / g.groups; ++c, plane += g.in_size())
        for (const int64_t at : map) {
          if (at >= 0) plane[at] += *from;
          ++from;
        }
    }
  }
  return gx;
}
template <class T>
std::vector<T> weight_gradient(const Geometry& g, const std::vector<T>& gy,
                               const std::vector<T>& x) {
  std::vector<T> gw(g.o * g.depth(), T(0)), patches(g.depth() * g.out_size());
  const std::vector<int64_t> map = patch_map(g);
  for (int64_t n = 0; n < g.n; ++n)
    for (int64_t i = 0; i < g.groups; ++i) {
      gather_patches(g, map, x.data() + (n * g.c + i * g.c / g.groups) * g.in_size(),
                     patches.data());
      const int64_t first = i * g.o / g.groups;
      const std::vector<T> columns = transposed(patches.data(), g.depth(), g.out_size());
      gemm(g.o / g.groups, g.depth(), g.out_size(), gy.data() + (n * g.o + first) * g.out_size(),
           columns.data(), gw.data() + first * g.depth());
    }
  return gw;
}

void run_convolution(const Frame& f) {
  const Tensor in = f.in(0), weight = f.in(1), out = f.out();
  if (out.elements() == 0) return;
  in_domain({in.type, out.type}, [&]<class T>(T) {
    const std::vector<T> x = load<T>(in), w = load<T>(weight);
    std::vector<T> y = f.flag("transposed", false)
                           ? input_gradient(geometry(f, out.dims, in.dims, weight.dims), x, w)
                           : forward(geometry(f, in.dims, out.dims, weight.dims), x, w);
    if (f.has(2)) {
      const std::vector<T> bias = load<T>(f.in(2));
      const int64_t area = out.elements() / (out.dims[0] * out.dims[1]);
      for (int64_t i = 0; i < static_cast<int64_t>(y.size()); ++i)
        y[i] += bias[i / area % out.dims[1]];
    }
    store(out, y);
  });
}

// grad_output, input, weight -> gradients of input, weight, bias, as output_mask says.
void run_convolution_backward(const Frame& f) {
  const Tensor grad = f.in(0), in = f.in(1), weight = f.in(2);
  const bool transposed_form = f.flag("transposed", false);
  in_domain({in.type, grad.type}, [&]<class T>(T) {
    const std::vector<T> gy = load<T>(grad), x = load<T>(in);
    const Geometry g = transposed_form ? geometry(f, grad.dims, in.dims, weight.dims)
                                       : geometry(f, in.dims, grad.dims, weight.dims);
    if (f.wants(0)) {
      const std::vector<T> w = load<T>(weight);
      store(f.out(0), transposed_form ? forward(g, gy, w) : input_gradient(g, gy, w));
    }
    if (f.wants(1))
      store(f.out(1), transposed_form ? weight_gradient(g, x, gy) : weight_gradient(g, gy, x));
    if (f.wants(2)) {
      const int64_t channels = grad.dims[1];
      const int64_t area = product({grad.dims.begin() + 2, grad.dims.end()});
      std::vector<T> gb(channels, T(0));
      for (int64_t i = 0; i < static_cast<int64_t>(gy.size()); ++i)
        gb[i / area % channels] += gy[i];
      store(f.out(2), gb);
    }
  });
}

constexpr KernelRow kRows[] = {
    {"aten.convolution", run_convolution, true},
    {"aten._convolution", run_convolution, true},
    {"aten.convolution_backward", run_convolution_backward},
};

}  // namespace

KernelRows convolution_kernels() { return kRows; }

}  // namespace backplane::reference
