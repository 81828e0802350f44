// Unpooling, and pooling over windows at random places (given by the caller).
#include <cmath>

#include "kernel_registry.h"
#include "kernels/pooling.h"

namespace backplane::reference {
namespace {

// self, indices: the inverse of pooling, zeros elsewhere.
template <int64_t kSpatial>
void run_unpool(const Frame& f) {
  const Planes s(f.in(0).dims, f.out().dims, kSpatial);
  const std::vector<int64_t> index = load<int64_t>(f.in(1));
  in_domain({f.in(0).type}, [&]<class T>(T) {
    const std::vector<T> x = load<T>(f.in(0));
    std::vector<T> y(f.out().elements(), T(0));
    for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
      if (index[i] < 0 || index[i] >= s.out_size())
        throw KernelError("max_unpool: index out of range");
      y[i / s.in_size() * s.out_size() + index[i]] = x[i];
    }
    store(f.out(), y);
  });
}

// Starts of the windows along one dimension, from one sample in [0, 1).
Shape window_starts(double sample, int64_t in, int64_t out, int64_t kernel, bool single) {
  Shape starts(out);
  if (out > 1) {
    // Positions in float, as the framework has them for float inputs.
    const double alpha = static_cast<double>(in - kernel) / static_cast<double>(out - 1);
    const auto round = [&](double v) {
      return single ? static_cast<double>(static_cast<float>(v)) : v;
    };
    const double step = round(alpha);
    for (int64_t i = 0; i < out - 1; ++i)
      starts[i] = static_cast<int64_t>(round(round(static_cast<double>(i) + sample) * step)) -
                  static_cast<int64_t>(round(sample * step));
  }
  if (out > 0) starts[out - 1] = in - kernel;
  return starts;
}

template <int64_t kSpatial>
void run_fractional_pool(const Frame& f) {
  const Tensor in = f.in(0);
  const Planes s(in.dims, f.out().dims, kSpatial);
  const Triple kernel = triple(f.ints("kernel_size", kSpatial, 1), 0, 1);
  const std::vector<double> samples = load<double>(f.in(1)), x = load<double>(in);
  std::vector<double> y(f.out().elements());
  std::vector<int64_t> index(y.size());
  const bool single = in.type != Type::kF64;
  for (int64_t c = 0; c < s.count; ++c) {
    std::array<Shape, 3> starts;
    for (int d = 0; d < 3; ++d) starts[d] = {0};
    for (int64_t d = 0; d < kSpatial; ++d) {
      // 2-D samples are (w, h); 3-D ones (t, h, w).
      const int64_t which = kSpatial == 2 ? 1 - d : d, axis = 3 - kSpatial + d;
      starts[axis] = window_starts(samples[c * kSpatial + which], s.in[axis], s.out[axis],
                                   kernel[axis], single);
    }
    const double* plane = x.data() + c * s.in_size();
    int64_t p = c * s.out_size();
    for (const int64_t t : starts[0])
      for (const int64_t h : starts[1])
        for (const int64_t w : starts[2]) {
          int64_t best = -1;
          for (int64_t i = t; i < t + kernel[0]; ++i)
            for (int64_t j = h; j < h + kernel[1]; ++j)
              for (int64_t k = w; k < w + kernel[2]; ++k) {
                const int64_t at = (i * s.in[1] + j) * s.in[2] + k;
                if (best < 0 || plane[at] > plane[best] || std::isnan(plane[at])) best = at;
              }
          y[p] = plane[best];
          index[p++] = best;
        }
  }
  store(f.out(0), y);
  if (f.wants(1)) store(f.out(1), index);
}
// grad_output, self, indices
template <int64_t kSpatial>
void run_fractional_pool_backward(const Frame& f) {
  const Planes s(f.out().dims, f.in(0).dims, kSpatial);
  const std::vector<double> g = load<double>(f.in(0));
  const std::vector<int64_t> index = load<int64_t>(f.in(2));
  std::vector<double> gx(f.out().elements());
  for (int64_t i = 0; i < static_cast<int64_t>(g.size()); ++i) {
    if (index[i] < 0 || index[i] >= s.in_size()) throw KernelError("pooling index out of range");
    gx[i / s.out_size() * s.in_size() + index[i]] += g[i];
  }
  store(f.out(), gx);
}

constexpr KernelRow kRows[] = {
    {"aten.max_unpool2d", run_unpool<2>},
    {"aten.max_unpool3d", run_unpool<3>},
    {"aten.fractional_max_pool2d", run_fractional_pool<2>},
    {"aten.fractional_max_pool3d", run_fractional_pool<3>},
    {"aten.fractional_max_pool2d_backward", run_fractional_pool_backward<2>},
    {"aten.fractional_max_pool3d_backward", run_fractional_pool_backward<3>},
};

}  // namespace

KernelRows unpooling_kernels() { return kRows; }

}  // namespace backplane::reference
