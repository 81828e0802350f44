// Softmaxes and their gradients.
#include <cmath>
#include <limits>

#include "kernel_registry.h"

namespace backplane::reference {
namespace {

using std::int64_t;

// f(row in, row out, length) along attribute "dim" of operand 0, result 0 of the same shape.
template <class F>
void along_dim(const Frame& f, F&& row) {
  const Tensor in = f.in(0).moved_last(f.integer("dim", 0));
  const Tensor out = f.out().moved_last(f.integer("dim", 0));
  const int64_t n = in.dims.back(), rows = n ? in.elements() / n : 0;
  const std::vector<double> v = load<double>(in);
  std::vector<double> result(v.size());
  for (int64_t i = 0; i < rows; ++i) row(v.data() + i * n, result.data() + i * n, n);
  store(out, result);
}
double largest(const double* v, int64_t n) {
  double best = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < n; ++i) best = std::isnan(v[i]) || v[i] > best ? v[i] : best;
  return best;
}
void softmax_row(const double* v, double* out, int64_t n) {
  const double best = largest(v, n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += out[i] = std::exp(v[i] - best);
  for (int64_t i = 0; i < n; ++i) out[i] /= sum;
}

void run_softmax(const Frame& f) { along_dim(f, softmax_row); }
// Rows of minus infinity become zeros.
void run_safe_softmax(const Frame& f) {
  along_dim(f, [](const double* v, double* out, int64_t n) {
    if (largest(v, n) == -std::numeric_limits<double>::infinity()) return;
    softmax_row(v, out, n);
  });
}
void run_log_softmax(const Frame& f) {
  along_dim(f, [](const double* v, double* out, int64_t n) {
    const double best = largest(v, n);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += std::exp(v[i] - best);
    const double log_sum = std::log(sum);
    for (int64_t i = 0; i < n; ++i) out[i] = v[i] - best - log_sum;
  });
}

template <bool kLog>
void run_backward(const Frame& f) {
  const int64_t dim = f.integer("dim", 0);
  const Tensor grad = f.in(0).moved_last(dim), result = f.in(1).moved_last(dim);
  const std::vector<double> g = load<double>(grad), y = load<double>(result);
  const int64_t n = grad.dims.back(), rows = n ? grad.elements() / n : 0;
  std::vector<double> out(g.size());
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = r * n;
    double sum = 0;
    for (int64_t i = at; i < at + n; ++i) sum += kLog ? g[i] : g[i] * y[i];
    for (int64_t i = at; i < at + n; ++i)
      out[i] = kLog ? g[i] - std::exp(y[i]) * sum : (g[i] - sum) * y[i];
  }
  store(f.out().moved_last(dim), out);
}

// softmax(self masked with minus infinity where mask is set); mask of the same shape, or by type
// 0: [L, L] of the last two dimensions, 1: [B, L] of the first and last.
Tensor mask_like(const Tensor& mask, const Tensor& in, int64_t type) {
  Tensor m = mask;
  if (mask.dims == in.dims) return m;
  if (type == 1 && in.rank() == 4) {
    m.dims = {mask.dims[0], 1, 1, mask.dims[1]};
    m.strides = {mask.strides[0], 0, 0, mask.strides[1]};
  }
  return m.broadcast(in.dims);
}
void run_masked_softmax(const Frame& f) {
  const Tensor in = f.in(0);
  const int64_t dim = f.present("dim") ? f.integer("dim", -1) : in.rank() - 1;
  const Tensor mask = mask_like(f.in(1), in, f.integer("mask_type", 2)).moved_last(dim);
  std::vector<double> v = load<double>(in.moved_last(dim));
  const std::vector<int64_t> m = load<int64_t>(mask);
  const int64_t n = mask.dims.back();
  std::vector<double> out(v.size());
  for (std::size_t i = 0; i < v.size(); ++i)
    if (m[i]) v[i] = -std::numeric_limits<double>::infinity();
  for (int64_t at = 0; at < static_cast<int64_t>(v.size()); at += n) {
    if (largest(v.data() + at, n) == -std::numeric_limits<double>::infinity())
      for (int64_t i = at; i < at + n; ++i) out[i] = std::nan("");
    else
      softmax_row(v.data() + at, out.data() + at, n);
  }
  store(f.out().moved_last(dim), out);
}

constexpr KernelRow kRows[] = {
    {"aten._softmax", run_softmax},
    {"aten.softmax.int", run_softmax},
    {"aten._safe_softmax", run_safe_softmax},
    {"aten._log_softmax", run_log_softmax},
    {"aten.log_softmax.int", run_log_softmax},
    {"aten._softmax_backward_data", run_backward<false>},
    {"aten._log_softmax_backward_data", run_backward<true>},
    {"aten._masked_softmax", run_masked_softmax},
};

}  // namespace

KernelRows softmax_kernels() { return kRows; }

}  // namespace backplane::reference
