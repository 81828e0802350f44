// Reading a tensor with the reduced dimensions innermost; norms.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/frame.h"

namespace backplane::reference {

struct Reduction {
  Tensor tensor;            // kept dimensions first, reduced ones last, both in order
  std::int64_t kept = 1;    // results
  std::int64_t length = 1;  // elements of each
};

inline Reduction arrange(const Tensor& in, const Shape& dims) {
  Shape order;
  Reduction r;
  for (std::int64_t d = 0; d < in.rank(); ++d)
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) {
      order.push_back(d);
      r.kept *= in.dims[d];
    }
  for (std::int64_t d : dims) {
    order.push_back(d);
    r.length *= in.dims[d];
  }
  r.tensor = in.permuted(order);
  return r;
}

// The reduction that attribute "dim" asks for: all dimensions when it is absent or empty, none
// when it is empty and the result has the operand's shape.
inline Reduction arrange(const Frame& f, const Tensor& in) {
  if (f.ints("dim").empty() && in.rank() > 0 && f.out().dims == in.dims && in.elements() != 1)
    return arrange(in, Shape{});
  return arrange(in, f.dims("dim", in.rank()));
}

// result[i] = f(first element of run i, length), of elements that are converted to a type first.
template <class T, class F>
auto reduce_runs_as(Type type, const Reduction& r, F&& f) {
  const std::vector<T> v = load_as<T>(type, r.tensor);
  std::vector<decltype(f(v.data(), r.length))> out(static_cast<std::size_t>(r.kept));
  for (std::int64_t i = 0; i < r.kept; ++i) out[i] = f(v.data() + i * r.length, r.length);
  return out;
}
template <class T, class F>
auto reduce_runs(const Reduction& r, F&& f) {
  return reduce_runs_as<T>(r.tensor.type, r, f);
}

// Of the absolute values of elements.
inline double norm_of(const std::vector<double>& v, double p) {
  if (v.empty()) return p < 0 ? INFINITY : 0;  // whatever p is, NaN too
  if (p == 0)
    return static_cast<double>(v.size()) - static_cast<double>(std::count(v.begin(), v.end(), 0.0));
  if (v.size() == 1) return v[0];  // no power of it overflows
  if (std::isinf(p)) {
    double best = p > 0 ? 0 : INFINITY;
    for (double x : v) {
      if (std::isnan(x)) return x;
      best = p > 0 ? std::fmax(best, x) : std::fmin(best, x);
    }
    return best;
  }
  double sum = 0;
  for (double x : v) sum += p == 1 ? x : p == 2 ? x * x : std::pow(x, p);
  return p == 1 ? sum : p == 2 ? std::sqrt(sum) : std::pow(sum, 1 / p);
}

}  // namespace backplane::reference
