// Pooling over one to three spatial dimensions, forward and backward.
#include "kernels/pooling.h"

#include <cmath>
#include <limits>

#include "kernel_registry.h"

namespace backplane::reference {
namespace {

// calls window(result position, range per dimension before clipping) for each result of a plane
template <class F>
void each_output(const Triple& out, F&& visit) {
  Triple o;
  int64_t p = 0;
  for (o[0] = 0; o[0] < out[0]; ++o[0])
    for (o[1] = 0; o[1] < out[1]; ++o[1])
      for (o[2] = 0; o[2] < out[2]; ++o[2], ++p) visit(p, o);
}
// visit(flat position in the plane) of the part of a window that lies inside
template <class F>
void each_inside(const Triple& in, const Triple& start, const Triple& end, const Triple& step,
                 F&& visit) {
  Triple x;
  for (x[0] = start[0]; x[0] < end[0]; x[0] += step[0])
    for (x[1] = start[1]; x[1] < end[1]; x[1] += step[1])
      for (x[2] = start[2]; x[2] < end[2]; x[2] += step[2]) {
        if (x[0] < 0 || x[1] < 0 || x[2] < 0 || x[0] >= in[0] || x[1] >= in[1] || x[2] >= in[2])
          continue;
        visit((x[0] * in[1] + x[1]) * in[2] + x[2]);
      }
}

// What a window of no elements gives.
template <class T>
T least(Type type) {
  if constexpr (std::is_same_v<T, double>)
    return -std::numeric_limits<double>::infinity();
  else
    return type >= Type::kI8 && type <= Type::kI64 ? INT64_MIN >> (64 - bits_of_integer(type)) : 0;
}
// `window` visits what lies inside, and gives the position from which it goes.
template <class T, class Window>
void max_over(const Frame& f, const Planes& s, const Window& window) {
  const std::vector<T> x = load<T>(f.in(0));
  std::vector<T> y(s.count * s.out_size());
  std::vector<int64_t> index(y.size());
  for (int64_t c = 0; c < s.count; ++c) {
    const T* plane = x.data() + c * s.in_size();
    each_output(s.out, [&](int64_t p, const Triple& o) {
      int64_t best = -1;
      const int64_t first = window(o, [&](int64_t at) {
        if (best < 0 || plane[at] > plane[best] || plane[at] != plane[at]) best = at;
      });
      y[c * s.out_size() + p] = best < 0 ? least<T>(f.in(0).type) : plane[best];
      index[c * s.out_size() + p] = best < 0 ? first : best;
    });
  }
  store(f.out(0), y);
  if (f.wants(1)) store(f.out(1), index);
}

template <int64_t kSpatial>
void run_max_pool(const Frame& f) {
  const Planes s(f.in(0).dims, f.out().dims, kSpatial);
  const Window w(f, kSpatial);
  if (f.out().elements() == 0) return;
  in_real_domain(f.in(0).type, [&]<class T>(T) {
    max_over<T>(f, s, [&](const Triple& o, auto&& visit) {
      Triple start, end;
      for (int d = 0; d < 3; ++d) {
        start[d] = o[d] * w.stride[d] - w.padding[d];
        end[d] = start[d] + (w.kernel[d] - 1) * w.dilation[d] + 1;
        while (start[d] < 0) start[d] += w.dilation[d];
      }
      each_inside(s.in, start, end, w.dilation, visit);
      return (start[0] * s.in[1] + start[1]) * s.in[2] + start[2];
    });
  });
}

// The range of an adaptive window.
void adaptive_range(const Planes& s, const Triple& o, Triple& start, Triple& end) {
  for (int d = 0; d < 3; ++d) {
    start[d] = o[d] * s.in[d] / s.out[d];
    end[d] = ((o[d] + 1) * s.in[d] + s.out[d] - 1) / s.out[d];
  }
}
template <int64_t kSpatial>
void run_adaptive_max_pool(const Frame& f) {
  const Planes s(f.in(0).dims, f.out().dims, kSpatial);
  if (f.out().elements() == 0) return;
  max_over<double>(f, s, [&](const Triple& o, auto&& visit) {
    Triple start, end;
    adaptive_range(s, o, start, end);
    each_inside(s.in, start, end, {1, 1, 1}, visit);
    return (start[0] * s.in[1] + start[1]) * s.in[2] + start[2];
  });
}

// grad_output and the indices scatter into zeros. The indices are the last operand.
template <int64_t kSpatial>
void run_max_pool_backward(const Frame& f) {
  const Tensor grad = f.in(0), out = f.out();
  const Planes s(out.dims, grad.dims, kSpatial);
  const std::vector<double> g = load<double>(grad);
  const std::vector<int64_t> index = load<int64_t>(f.in(f.operand_count() - 1));
  std::vector<double> gx(out.elements());
  for (int64_t i = 0; i < static_cast<int64_t>(g.size()); ++i) {
    const int64_t at = index[i];
    if (at < 0 || at >= s.in_size()) throw KernelError("pooling index out of range");
    gx[i / s.out_size() * s.in_size() + at] += g[i];
  }
  store(out, gx);
}

struct Average {
  Average(const Frame& f, const Planes& s, int64_t spatial)
      : planes(s),
        w(f, spatial),
        count_padding(f.flag("count_include_pad", true)),
        divisor(f.integer("divisor_override", 0)) {}
  // The window of a result, clipped to the plane, and its divisor.
  double range(const Triple& o, Triple& start, Triple& end) const {
    int64_t size = 1, inside = 1;
    for (int d = 0; d < 3; ++d) {
      start[d] = o[d] * w.stride[d] - w.padding[d];
      end[d] = std::min(start[d] + w.kernel[d], planes.in[d] + w.padding[d]);
      size *= end[d] - start[d];
      start[d] = std::max<int64_t>(start[d], 0);
      end[d] = std::min(end[d], planes.in[d]);
      inside *= std::max<int64_t>(end[d] - start[d], 0);
    }
    return static_cast<double>(divisor ? divisor : count_padding ? size : inside);
  }
  const Planes& planes;
  Window w;
  bool count_padding;
  int64_t divisor;
};
struct AdaptiveAverage {
  AdaptiveAverage(const Frame&, const Planes& s, int64_t) : planes(s) {}
  double range(const Triple& o, Triple& start, Triple& end) const {
    adaptive_range(planes, o, start, end);
    double size = 1;
    for (int d = 0; d < 3; ++d) size *= static_cast<double>(end[d] - start[d]);
    return size;
  }
  const Planes& planes;
};

template <class Form, int64_t kSpatial>
void run_average_pool(const Frame& f) {
  const Tensor in = f.in(0), out = f.out();
  if (out.elements() == 0) return;
  const Planes s(in.dims, out.dims, kSpatial);
  const Form form(f, s, kSpatial);
  in_real_domain(in.type, [&]<class T>(T) {
    const std::vector<T> x = load<T>(in);
    std::vector<T> y(out.elements());
    for (int64_t c = 0; c < s.count; ++c)
      each_output(s.out, [&](int64_t p, const Triple& o) {
        Triple start, end;
        const double divisor = form.range(o, start, end);
        T sum(0);
        each_inside(s.in, start, end, {1, 1, 1},
                    [&](int64_t at) { sum += x[c * s.in_size() + at]; });
        y[c * s.out_size() + p] = sum / static_cast<T>(divisor);
      });
    store(out, y);
  });
}
template <class Form, int64_t kSpatial>
void run_average_pool_backward(const Frame& f) {
  const Tensor grad = f.in(0), out = f.out();
  const Planes s(out.dims, grad.dims, kSpatial);
  const Form form(f, s, kSpatial);
  const std::vector<double> g = load<double>(grad);
  std::vector<double> gx(out.elements());
  if (!g.empty())
    for (int64_t c = 0; c < s.count; ++c)
      each_output(s.out, [&](int64_t p, const Triple& o) {
        Triple start, end;
        const double share = g[c * s.out_size() + p] / form.range(o, start, end);
        each_inside(s.in, start, end, {1, 1, 1},
                    [&](int64_t at) { gx[c * s.in_size() + at] += share; });
      });
  store(out, gx);
}

constexpr KernelRow kRows[] = {
    {"aten.max_pool2d_with_indices", run_max_pool<2>},
    {"aten.max_pool3d_with_indices", run_max_pool<3>},
    {"aten.max_pool1d", run_max_pool<1>},
    {"aten.max_pool2d", run_max_pool<2>},
    {"aten.max_pool3d", run_max_pool<3>},
    {"aten.max_pool2d_with_indices_backward", run_max_pool_backward<2>},
    {"aten.max_pool3d_with_indices_backward", run_max_pool_backward<3>},
    {"aten.adaptive_max_pool2d", run_adaptive_max_pool<2>},
    {"aten.adaptive_max_pool3d", run_adaptive_max_pool<3>},
    {"aten.adaptive_max_pool2d_backward", run_max_pool_backward<2>},
    {"aten.adaptive_max_pool3d_backward", run_max_pool_backward<3>},
    {"aten.avg_pool1d", run_average_pool<Average, 1>},
    {"aten.avg_pool2d", run_average_pool<Average, 2>},
    {"aten.avg_pool3d", run_average_pool<Average, 3>},
    {"aten.avg_pool2d_backward", run_average_pool_backward<Average, 2>},
    {"aten.avg_pool3d_backward", run_average_pool_backward<Average, 3>},
    {"aten.adaptive_avg_pool1d", run_average_pool<AdaptiveAverage, 1>},
    {"aten._adaptive_avg_pool2d", run_average_pool<AdaptiveAverage, 2>},
    {"aten._adaptive_avg_pool3d", run_average_pool<AdaptiveAverage, 3>},
    {"aten._adaptive_avg_pool2d_backward", run_average_pool_backward<AdaptiveAverage, 2>},
    {"aten._adaptive_avg_pool3d_backward", run_average_pool_backward<AdaptiveAverage, 3>},
};

}  // namespace

KernelRows pooling_kernels() { return kRows; }

}  // namespace backplane::reference
