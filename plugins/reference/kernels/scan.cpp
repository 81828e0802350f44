// Running sums, products and extremes along a dimension.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel_registry.h"
#include "kernels/indexing.h"
#include "kernels/pointwise.h"

namespace backplane::reference {
namespace {

using std::int64_t;

// step(running value, element) -> next running value.
template <class T, class F>
void scan(const Frame& f, F&& step) {
  const int64_t dim = f.integer("dim", 0);
  const Tensor in = f.in(0).moved_last(dim);
  std::vector<T> v = load_as<T>(f.out().type, in);
  const int64_t n = in.dims.back();
  for (int64_t i = 0; i < static_cast<int64_t>(v.size()); ++i)
    if (i % n != 0) v[i] = step(v[i - 1], v[i]);
  store(f.out().moved_last(dim), v);
}
void run_cumsum(const Frame& f) {
  in_domain({f.out().type}, [&]<class T>(T) { scan<T>(f, [](T a, T b) { return add(a, b); }); });
}
void run_cumprod(const Frame& f) {
  in_domain({f.out().type}, [&]<class T>(T) { scan<T>(f, [](T a, T b) { return mul(a, b); }); });
}
void run_logcumsumexp(const Frame& f) {
  if (is_complex(f.out().type))
    return scan<Complex>(f, [](Complex a, Complex b) {
      const Complex high = a.real() > b.real() ? a : b, low = a.real() > b.real() ? b : a;
      if (std::isinf(high.real())) return high;
      return high + std::log(1.0 + std::exp(low - high));
    });
  scan<double>(f, [](double a, double b) {
    if (std::isnan(a) || std::isnan(b)) return a + b;
    const double high = std::fmax(a, b), low = std::fmin(a, b);
    return high == low && std::isinf(high) ? high : high + std::log1p(std::exp(low - high));
  });
}

// The latest of equals; a NaN stays.
template <bool kMax>
void run_extreme(const Frame& f) {
  const int64_t dim = f.integer("dim", 0);
  const Tensor in = f.in(0).moved_last(dim);
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    std::vector<T> v = load<T>(in);
    std::vector<int64_t> at(v.size());
    const int64_t n = in.dims.back();
    for (int64_t i = 0; i < static_cast<int64_t>(v.size()); ++i) {
      at[i] = i % n;
      if (at[i] == 0) continue;
      const T best = v[i - 1];
      const bool takes = v[i] != v[i] || (best == best && (kMax ? v[i] >= best : v[i] <= best));
      if (takes) continue;
      v[i] = best;
      at[i] = at[i - 1];
    }
    store(f.out(0).moved_last(dim), v);
    if (f.wants(1)) store(f.out(1).moved_last(dim), at);
  };
  if (is_integral(in.type))
    run(int64_t{});
  else
    run(double{});
}
void run_extreme_backward(const Frame& f) {
  const int64_t dim = f.integer("dim", 0);
  const Tensor grad = f.in(0).moved_last(dim);
  const int64_t n = grad.dims.back();
  in_domain({grad.type}, [&]<class T>(T) {
    const std::vector<T> g = load<T>(grad);
    const std::vector<int64_t> at = load<int64_t>(f.in(2).moved_last(dim));
    std::vector<T> out(g.size(), T(0));
    for (int64_t i = 0; i < static_cast<int64_t>(g.size()); ++i)
      out[i / n * n + checked_index(at[i], n)] += g[i];
    store(f.out().moved_last(dim), out);
  });
}

constexpr KernelRow kRows[] = {
    {"aten.cumsum", run_cumsum, true},
    {"aten.cumprod", run_cumprod, true},
    {"aten.logcumsumexp", run_logcumsumexp, true},
    {"aten._logcumsumexp", run_logcumsumexp, true},
    {"aten.cummax", run_extreme<true>},
    {"aten.cummin", run_extreme<false>},
    {"aten.cummaxmin_backward", run_extreme_backward, true},
};

}  // namespace

KernelRows scan_kernels() { return kRows; }

}  // namespace backplane::reference
