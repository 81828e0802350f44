// Sampling at the points of a grid, forward and backward; and affine grids.
#include <cmath>

#include "kernel_registry.h"
#include "kernels/pooling.h"

namespace backplane::reference {
namespace {

enum Mode : int64_t { kBilinear = 0, kNearest = 1, kBicubic = 2 };
enum Padding : int64_t { kZeros = 0, kBorder = 1, kReflection = 2 };

// A coordinate and its derivative with respect to the grid's value.
struct Coordinate {
  double at, slope;
};

struct Sampler {
  Sampler(const Frame& f, const Tensor& input, const Tensor& grid)
      : n(input.dims[0]),
        c(input.dims[1]),
        spatial(input.rank() - 2),
        in(triple(input.dims, 2, 1)),
        mode(f.integer("interpolation_mode", 0)),
        padding(f.integer("padding_mode", 0)),
        align(f.flag("align_corners", false)),
        points(product(grid.dims) / std::max<int64_t>(n * spatial, 1)) {}
  int64_t in_size() const { return in[0] * in[1] * in[2]; }

  Coordinate unnormalize(double g, int64_t size) const {
    const auto s = static_cast<double>(size);
    if (align) return {(g + 1) / 2 * (s - 1), (s - 1) / 2};
    return {((g + 1) * s - 1) / 2, s / 2};
  }
  Coordinate pad(Coordinate x, int64_t size) const {
    if (padding == kReflection) {
      const double twice_low = align ? 0 : -1;
      const auto twice_high = static_cast<double>(align ? 2 * (size - 1) : 2 * size - 1);
      const double low = twice_low / 2, span = (twice_high - twice_low) / 2;
      if (span == 0) {
        x = {0, 0};
      } else {
        double v = x.at - low, sign = 1;
        if (v < 0) v = -v, sign = -1;
        const double extra = std::fmod(v, span);
        const bool odd = static_cast<int64_t>(std::floor(v / span)) % 2 != 0;
        x = odd ? Coordinate{span - extra + low, -sign * x.slope}
                : Coordinate{extra + low, sign * x.slope};
      }
    }
    if (padding != kZeros) {
      const auto high = static_cast<double>(size - 1);
      if (x.at <= 0)
        x = {0, 0};
      else if (x.at >= high)
        x = {high, 0};
    }
    // Far or not a number: outside.
    if (!(x.at > -1e18 && x.at < 1e18)) x = {-100, 0};
    return x;
  }

  bool sums_slopes() const { return spatial == 2 && mode != kNearest && mode != kBicubic; }

  // visit(position in the plane or -1, weight, derivative of the weight along x, y, z).
  // `g`: the point, x first.
  template <class F>
  void each_tap(const double* g, F&& visit) const {
    if (mode == kBicubic) return each_cubic_tap(g, visit);
    std::array<Coordinate, 3> p{};
    for (int64_t d = 0; d < spatial; ++d) p[d] = pad(unnormalize(g[d], in[2 - d]), in[2 - d]);
    if (mode == kNearest) {
      int64_t flat = 0;
      for (int64_t d = spatial; d-- > 0;)
        flat = step(flat, static_cast<int64_t>(std::nearbyint(p[d].at)), in[2 - d]);
      visit(flat, 1.0, std::array<double, 3>{});
      return;
    }
    for (int64_t corner = 0; corner < int64_t{1} << spatial; ++corner) {
      int64_t flat = 0;
      std::array<double, 3> w{1, 1, 1}, slope{};
      for (int64_t d = spatial; d-- > 0;) {
        const double low = std::floor(p[d].at);
        const bool high = (corner >> d & 1) != 0;
        w[d] = high ? p[d].at - low : low + 1 - p[d].at;
        slope[d] = high ? p[d].slope : -p[d].slope;
        flat = step(flat, static_cast<int64_t>(low) + (high ? 1 : 0), in[2 - d]);
      }
      visit(flat, w[0] * w[1] * w[2],
            std::array<double, 3>{slope[0] * w[1] * w[2], w[0] * slope[1] * w[2],
                                  w[0] * w[1] * slope[2]});
    }
  }

 private:
  static int64_t step(int64_t flat, int64_t x, int64_t size) {
    return flat < 0 || x < 0 || x >= size ? -1 : flat * size + x;
  }
  template <class F>
  void each_cubic_tap(const double* g, F&& visit) const {
    constexpr double a = -0.75;
    std::array<std::array<double, 4>, 2> w{}, slope{};
    std::array<int64_t, 2> first{};
    for (int d = 0; d < 2; ++d) {
      const Coordinate x = unnormalize(g[d], in[2 - d]);
      const double low = std::floor(x.at), t = x.at - low;
      first[d] = static_cast<int64_t>(low) - 1;
      const auto far = [](double v) { return ((a * v - 5 * a) * v + 8 * a) * v - 4 * a; };
      const auto near = [](double v) { return ((a + 2) * v - (a + 3)) * v * v + 1; };
      const auto far_slope = [](double v) { return (3 * a * v - 10 * a) * v + 8 * a; };
      const auto near_slope = [](double v) { return (3 * (a + 2) * v - 2 * (a + 3)) * v; };
      w[d] = {far(t + 1), near(t), near(1 - t), far(2 - t)};
      slope[d] = {far_slope(t + 1), near_slope(t), -near_slope(1 - t), -far_slope(2 - t)};
      for (double& s : slope[d]) s *= x.slope;
    }
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) {
        // Each point is padded by itself.
        int64_t flat = 0;
        const int64_t at[2] = {first[0] + j, first[1] + i};
        for (int d = 1; d >= 0; --d) {
          const Coordinate x = pad({static_cast<double>(at[d]), 1}, in[2 - d]);
          flat = step(flat, static_cast<int64_t>(x.at), in[2 - d]);
        }
        visit(flat, w[0][j] * w[1][i],
              std::array<double, 3>{slope[0][j] * w[1][i], w[0][j] * slope[1][i], 0});
      }
  }

 public:
  int64_t n, c, spatial;
  Triple in;
  int64_t mode, padding;
  bool align;
  int64_t points;  // per batch entry
};

void run_grid_sampler(const Frame& f) {
  const Sampler s(f, f.in(0), f.in(1));
  const std::vector<double> x = load<double>(f.in(0)), grid = load<double>(f.in(1));
  std::vector<double> y(f.out().elements());
  for (int64_t n = 0; n < s.n; ++n)
    for (int64_t p = 0; p < s.points; ++p)
      s.each_tap(grid.data() + (n * s.points + p) * s.spatial,
                 [&](int64_t at, double w, const std::array<double, 3>&) {
                   if (at < 0 && s.spatial == 3) return;
                   for (int64_t c = 0; c < s.c; ++c) {
                     const double value = at < 0 ? 0 : x[(n * s.c + c) * s.in_size() + at];
                     y[(n * s.c + c) * s.points + p] += w * value;  // NaN where the point is
                   }
                 });
  store(f.out(), y);
}
// grad_output, input, grid -> gradients of input and grid
void run_grid_sampler_backward(const Frame& f) {
  const Sampler s(f, f.in(1), f.in(2));
  const std::vector<double> g = load<double>(f.in(0)), x = load<double>(f.in(1));
  const std::vector<double> grid = load<double>(f.in(2));
  std::vector<double> gx(x.size()), gg(grid.size());
  for (int64_t n = 0; n < s.n; ++n)
    for (int64_t p = 0; p < s.points; ++p) {
      const int64_t point = (n * s.points + p) * s.spatial;
      // Along a bilinear picture the slope is summed before a gradient, which may be infinite,
      // meets it, and what lies outside is a zero in it; of a volume that is left out.
      std::vector<std::array<double, 2>> slopes(s.c);
      s.each_tap(grid.data() + point,
                 [&](int64_t at, double w, const std::array<double, 3>& slope) {
                   if (at < 0 && s.spatial == 3) return;
                   for (int64_t c = 0; c < s.c; ++c) {
                     const double grad = g[(n * s.c + c) * s.points + p];
                     const int64_t source = (n * s.c + c) * s.in_size() + at;
                     const double value = at < 0 ? 0 : x[source];
                     if (at >= 0) gx[source] += w * grad;
                     for (int64_t d = 0; d < s.spatial; ++d)
                       if (s.sums_slopes())
                         slopes[c][d] += slope[d] * value;
                       else if (s.mode != kNearest)  // which stays the same element
                         gg[point + d] += slope[d] * value * grad;
                   }
                 });
      for (int64_t c = 0; c < s.c && s.sums_slopes(); ++c)
        for (int64_t d = 0; d < s.spatial; ++d)
          gg[point + d] += slopes[c][d] * g[(n * s.c + c) * s.points + p];
    }
  if (f.wants(0)) store(f.out(0), gx);
  if (f.wants(1)) store(f.out(1), gg);
}

// theta [N, d, d + 1] -> grid [N, .., d]
void run_affine_grid(const Frame& f) {
  const Tensor theta = f.in(0), out = f.out();
  const std::vector<double> t = load<double>(theta);
  const int64_t d = theta.dims[1], points = out.elements() / (theta.dims[0] * d);
  const bool align = f.flag("align_corners", false);
  std::vector<double> y;
  for (int64_t n = 0; n < theta.dims[0]; ++n)
    for (int64_t p = 0; p < points; ++p) {
      double at[4] = {0, 0, 0, 0};
      int64_t rest = p;
      for (int64_t k = 0; k < d; ++k) {  // x, the last dimension, first
        const int64_t size = out.dims[d - k], i = rest % size;
        rest /= size;
        const auto s = static_cast<double>(size);
        const double v = size > 1 ? -1 + 2 * static_cast<double>(i) / (s - 1) : 0;
        at[k] = align ? v : v * (s - 1) / s;
      }
      at[d] = 1;
      for (int64_t r = 0; r < d; ++r) {
        double sum = 0;
        for (int64_t k = 0; k <= d; ++k) sum += t[(n * d + r) * (d + 1) + k] * at[k];
        y.push_back(sum);
      }
    }
  store(out, y);
}

constexpr KernelRow kRows[] = {
    {"aten.grid_sampler_2d", run_grid_sampler},
    {"aten.grid_sampler_3d", run_grid_sampler},
    {"aten.grid_sampler_2d_backward", run_grid_sampler_backward},
    {"aten.grid_sampler_3d_backward", run_grid_sampler_backward},
    {"aten.affine_grid_generator", run_affine_grid},
};

}  // namespace

KernelRows grid_kernels() { return kRows; }

}  // namespace backplane::reference
