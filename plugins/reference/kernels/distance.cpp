// Distances between rows, and contractions.
#include <cmath>

#include "kernel_registry.h"
#include "kernels/reduce.h"

namespace backplane::reference {
namespace {

using std::int64_t;
using Values = std::vector<double>;

// PyTorch's distances of rows of two matrices pass over NaN where they look for the largest.
enum class Largest { kWithNan, kOfNumbers };

double norm_of(const double* a, const double* b, int64_t n, double p,
               Largest largest = Largest::kWithNan) {
  double out = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double d = std::abs(a[i] - b[i]);
    if (p == 0)
      out += std::isnan(d) ? d : d != 0 ? 1 : 0;
    else if (p == 1)
      out += d;
    else if (p == 2)
      out += d * d;
    else if (std::isinf(p))
      out = d > out || (largest == Largest::kWithNan && std::isnan(d)) ? d : out;
    else
      out += std::pow(d, p);
  }
  if (p == 2) return std::sqrt(out);
  return p == 0 || p == 1 || std::isinf(p) ? out : std::pow(out, 1 / p);
}
// Derivative of the distance with respect to one difference, which has the digits of its type, as
// the distance has.
double slope_of(double d, double distance, double p) {
  const double sign = d > 0 ? 1 : d < 0 ? -1 : d;  // of zero, and NaN of NaN
  if (p == 0 || distance == 0) return 0;
  if (p == 1) return sign;
  if (p == 2) return d / distance;
  if (std::isinf(p)) {  // which of them is the largest is nobody's knowledge beside NaN
    const double away = std::abs(d) - distance;
    return std::isnan(away) ? away : away == 0 ? sign : 0;
  }
  if (d == 0 && p < 1) return 0;
  return sign * std::pow(std::abs(d), p - 1) / std::pow(distance, p - 1);
}

// x1 [.., r1, m], x2 [.., r2, m] -> [.., r1, r2]
struct Pairs {
  Pairs(const Tensor& x1, const Tensor& x2, const Shape& batch)
      : r1(x1.size(-2)),
        r2(x2.size(-2)),
        m(x1.size(-1)),
        count(product(batch)),
        a(load<double>(wide(x1, batch))),
        b(load<double>(wide(x2, batch))) {}
  static Tensor wide(const Tensor& t, Shape dims) {
    dims.insert(dims.end(), t.dims.end() - 2, t.dims.end());
    return t.broadcast(dims);
  }
  const double* left(int64_t n, int64_t i) const { return a.data() + (n * r1 + i) * m; }
  const double* right(int64_t n, int64_t j) const { return b.data() + (n * r2 + j) * m; }
  int64_t r1, r2, m, count;
  Values a, b;
};
// PyTorch's distances of many rows are a product: |a|^2 + |b|^2 - 2ab, NaN beside some infinities.
bool product_is_nan(const double* a, const double* b, int64_t n) {
  double squares_a = 0, squares_b = 0, product = 0;
  for (int64_t i = 0; i < n; ++i) {
    squares_a += a[i] * a[i];
    squares_b += b[i] * b[i];
    product += -2 * a[i] * b[i];
  }
  return std::isnan(squares_a + squares_b + product);
}
void distances(const Frame& f, double p, bool by_product) {
  const Tensor out = f.out();
  const Pairs s(f.in(0), f.in(1), {out.dims.begin(), out.dims.end() - 2});
  Values y;
  for (int64_t n = 0; n < s.count; ++n)
    for (int64_t i = 0; i < s.r1; ++i)
      for (int64_t j = 0; j < s.r2; ++j) {
        const double *a = s.left(n, i), *b = s.right(n, j);
        y.push_back(by_product && product_is_nan(a, b, s.m)
                        ? NAN
                        : norm_of(a, b, s.m, p, Largest::kOfNumbers));
      }
  store(out, y);
}
void run_cdist(const Frame& f) {
  constexpr int64_t kMany = 25;  // rows, of either operand
  constexpr int64_t kIfMany = 0, kAlways = 1;
  const double p = f.real("p", 2);
  const int64_t mode = f.integer("compute_mode", kIfMany);
  const bool many = f.in(0).size(-2) > kMany || f.in(1).size(-2) > kMany;
  distances(f, p, p == 2 && (mode == kAlways || (mode == kIfMany && many)));
}
void run_euclidean_dist(const Frame& f) { distances(f, 2, true); }
// grad, x1, x2, cdist -> gradient of x1
void run_cdist_backward(const Frame& f) {
  const Tensor grad = f.in(0), out = f.out();
  const Pairs s(f.in(1), f.in(2), {grad.dims.begin(), grad.dims.end() - 2});
  const Values g = load<double>(grad), distance = load<double>(f.in(3));
  const double p = f.real("p", 2);
  Values gx(s.a.size());
  int64_t at = 0;
  for (int64_t n = 0; n < s.count; ++n)
    for (int64_t i = 0; i < s.r1; ++i)
      for (int64_t j = 0; j < s.r2; ++j, ++at)
        for (int64_t k = 0; k < s.m; ++k)
          gx[(n * s.r1 + i) * s.m + k] +=
              g[at] *
              slope_of(round_to(out.type, s.left(n, i)[k] - s.right(n, j)[k]), distance[at], p);
  store(out, gx);
}
void run_pdist(const Frame& f) {
  const Tensor in = f.in(0);
  const Values x = load<double>(in);
  Values y;
  for (int64_t i = 0; i < in.dims[0]; ++i)
    for (int64_t j = i + 1; j < in.dims[0]; ++j)
      y.push_back(norm_of(x.data() + i * in.dims[1], x.data() + j * in.dims[1], in.dims[1],
                          f.real("p", 2)));
  store(f.out(), y);
}
// grad, self, pdist
void run_pdist_backward(const Frame& f) {
  const Tensor in = f.in(1);
  const int64_t m = in.dims[1];
  const Values g = load<double>(f.in(0)), x = load<double>(in), distance = load<double>(f.in(2));
  Values gx(x.size());
  int64_t at = 0;
  for (int64_t i = 0; i < in.dims[0]; ++i)
    for (int64_t j = i + 1; j < in.dims[0]; ++j, ++at)
      for (int64_t k = 0; k < m; ++k) {
        const double d = round_to(in.type, x[i * m + k] - x[j * m + k]);
        const double v = g[at] * slope_of(d, distance[at], f.real("p", 2));
        gx[i * m + k] += v;
        gx[j * m + k] -= v;
      }
  store(f.out(), gx);
}
void run_dist(const Frame& f) {
  const Tensor a = f.in(0), b = f.in(1);
  Shape dims = a.dims.size() >= b.dims.size() ? a.dims : b.dims;
  const Shape& other = a.dims.size() >= b.dims.size() ? b.dims : a.dims;
  for (std::size_t i = 0; i < other.size(); ++i) {
    int64_t& d = dims[dims.size() - other.size() + i];
    if (d == 1) d = other[i];
  }
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    const std::vector<T> x = load<T>(a.broadcast(dims)), y = load<T>(b.broadcast(dims));
    Values d(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) d[i] = std::abs(x[i] - y[i]);
    const Values zeros(d.size());
    double out = 0;
    const double p = f.real("p", 2);
    if (p < 0 && std::isinf(p)) {
      out = d.empty() ? 0 : *std::min_element(d.begin(), d.end());
    } else {
      out = p == 0 ? static_cast<double>(d.size()) -
                         static_cast<double>(std::count(d.begin(), d.end(), 0.0))
                   : norm_of(d.data(), zeros.data(), static_cast<int64_t>(d.size()), p);
    }
    store(f.out(), &out);
  };
  if (is_complex(a.type) || is_complex(b.type))
    run(Complex{});
  else
    run(double{});
}

// The product of three tensors, each with dims of size 1 added, summed over some.
void run_trilinear(const Frame& f) {
  if (f.out().elements() == 0) return;  // a dim that all three lack is of size 0
  std::array<Tensor, 3> t{f.in(0), f.in(1), f.in(2)};
  static constexpr std::string_view kExpand[] = {"expand1", "expand2", "expand3"};
  Shape dims;
  const int64_t unrolled = f.integer("unroll_dim", 1);
  bool is_lacked = true;  // by all three: nothing is added up
  for (int i = 0; i < 3; ++i) {
    Shape added = f.ints(kExpand[i]);
    std::sort(added.begin(), added.end());
    is_lacked = is_lacked && std::ranges::binary_search(added, unrolled);
    for (const int64_t d : added) {
      t[i].dims.insert(t[i].dims.begin() + d, 1);
      t[i].strides.insert(t[i].strides.begin() + d, 0);
    }
    dims.resize(t[i].dims.size(), 1);
    for (std::size_t d = 0; d < dims.size(); ++d)
      if (t[i].dims[d] != 1) dims[d] = t[i].dims[d];
  }
  Shape summed = f.ints("sumdim");
  for (int64_t& d : summed) d = wrap_dim(d, static_cast<int64_t>(dims.size()));
  std::sort(summed.begin(), summed.end());
  in_domain({f.out().type}, [&]<class T>(T) {
    std::array<std::vector<T>, 3> v;
    int64_t length = 1;
    for (int i = 0; i < 3; ++i) {
      const Reduction r = arrange(t[i].broadcast(dims), summed);
      v[i] = load<T>(r.tensor);
      length = r.length;
    }
    std::vector<T> out(f.out().elements(), T(0));
    for (std::size_t i = 0; !is_lacked && i < v[0].size(); ++i)
      out[i / static_cast<std::size_t>(length)] += v[0][i] * v[1][i] * v[2][i];
    store(f.out(), out);
  });
}

constexpr KernelRow kRows[] = {
    {"aten._cdist_forward", run_cdist},           {"aten.cdist", run_cdist},
    {"aten._euclidean_dist", run_euclidean_dist}, {"aten._cdist_backward", run_cdist_backward},
    {"aten._pdist_forward", run_pdist},           {"aten.pdist", run_pdist},
    {"aten._pdist_backward", run_pdist_backward}, {"aten.dist", run_dist, true},
    {"aten._trilinear", run_trilinear, true},
};

}  // namespace

KernelRows distance_kernels() { return kRows; }

}  // namespace backplane::reference
