// Matrix products.
#include <algorithm>

#include "kernel_registry.h"
#include "kernels/gemm.h"

namespace backplane::reference {
namespace {

using std::int64_t;

// c starts as beta times the broadcast bias, or zeros.
template <class T>
std::vector<T> start(const Tensor& bias, const Shape& dims, T beta) {
  if (beta == T(0)) return std::vector<T>(product(dims), T(0));  // NaNs of the bias too
  std::vector<T> c = load<T>(bias.broadcast(dims));
  if (beta != T(1))
    for (T& v : c) v *= beta;
  return c;
}
template <class T>
void scale(std::vector<T>& v, T factor) {
  if (factor != T(1))
    for (T& x : v) x *= factor;
}
// As BLAS does: of alpha 0 neither factor is read.
template <class T>
void scale_product(std::vector<T>& left, std::vector<T>& right, T alpha) {
  scale(left, alpha);
  if (alpha != T(0)) return;
  std::fill(left.begin(), left.end(), T(0));
  std::fill(right.begin(), right.end(), T(0));
}

// [batch,] m x k times [batch,] k x n; bias first among the operands, when there is one.
template <bool kBias>
void run_product(const Frame& f) {
  const int64_t first = kBias ? 1 : 0;
  const Tensor a = f.in(first), b = f.in(first + 1), out = f.out();
  if (out.elements() == 0) return;
  in_domain({a.type, b.type, out.type}, [&]<class T>(T) {
    std::vector<T> left = load<T>(a), right = load<T>(b);
    std::vector<T> c(out.elements(), T(0));
    if constexpr (kBias) {
      c = start<T>(f.in(0), out.dims, f.scalar<T>("beta", T(1)));
      scale_product(left, right, f.scalar<T>("alpha", T(1)));
    }
    const int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1);
    const int64_t batch = a.rank() == 3 ? a.dims[0] : 1;
    for (int64_t i = 0; i < batch; ++i)
      gemm(m, n, k, left.data() + i * m * k, right.data() + i * k * n, c.data() + i * m * n);
    store(out, c);
  });
}

// beta * self + alpha * sum over the batch.
void run_addbmm(const Frame& f) {
  const Tensor a = f.in(1), b = f.in(2), out = f.out();
  if (out.elements() == 0) return;
  in_domain({a.type, out.type}, [&]<class T>(T) {
    std::vector<T> left = load<T>(a), right = load<T>(b);
    std::vector<T> c = start<T>(f.in(0), out.dims, f.scalar<T>("beta", T(1)));
    scale_product(left, right, f.scalar<T>("alpha", T(1)));
    const int64_t m = a.dims[1], k = a.dims[2], n = b.dims[2];
    for (int64_t i = 0; i < a.dims[0]; ++i)
      gemm(m, n, k, left.data() + i * m * k, right.data() + i * k * n, c.data());
    store(out, c);
  });
}

// input [.., k] times weight [n, k] transposed.
void run_linear(const Frame& f) {
  const Tensor in = f.in(0), weight = f.in(1), out = f.out();
  if (out.elements() == 0) return;
  in_domain({in.type, out.type}, [&]<class T>(T) {
    const int64_t k = in.size(-1), n = weight.rank() == 1 ? 1 : weight.dims[0];
    const int64_t m = k ? in.elements() / k : out.elements() / n;
    const std::vector<T> a = load<T>(in), w = load<T>(weight);
    std::vector<T> b(w.size());
    for (int64_t j = 0; j < n; ++j)
      for (int64_t p = 0; p < k; ++p) b[p * n + j] = w[j * k + p];
    std::vector<T> c(m * n, T(0));
    if (f.has(2)) c = load<T>(f.in(2).broadcast(out.dims));
    gemm(m, n, k, a.data(), b.data(), c.data());
    store(out, c);
  });
}

void run_addmv(const Frame& f) {
  const Tensor a = f.in(1), x = f.in(2), out = f.out();
  if (out.elements() == 0) return;
  in_domain({a.type, out.type}, [&]<class T>(T) {
    std::vector<T> left = load<T>(a), right = load<T>(x);
    scale_product(left, right, f.scalar<T>("alpha", T(1)));
    std::vector<T> c = start<T>(f.in(0), out.dims, f.scalar<T>("beta", T(1)));
    gemm(a.dims[0], int64_t{1}, a.dims[1], left.data(), right.data(), c.data());
    store(out, c);
  });
}
void run_mv(const Frame& f) {
  const Tensor a = f.in(0), x = f.in(1), out = f.out();
  in_domain({a.type, out.type}, [&]<class T>(T) {
    const std::vector<T> left = load<T>(a), right = load<T>(x);
    std::vector<T> c(out.elements(), T(0));
    gemm(a.dims[0], int64_t{1}, a.dims[1], left.data(), right.data(), c.data());
    store(out, c);
  });
}
template <bool kConjugate>
void run_dot(const Frame& f) {
  const Tensor a = f.in(0), b = f.in(1), out = f.out();
  in_domain({a.type, out.type}, [&]<class T>(T) {
    std::vector<T> left = load<T>(a), right = load<T>(b);
    if constexpr (kConjugate && std::is_same_v<T, Complex>)
      for (T& v : left) v = std::conj(v);
    T c(0);
    gemm(int64_t{1}, int64_t{1}, a.elements(), left.data(), right.data(), &c);
    store(out, &c);
  });
}
// self * beta + alpha * vec1 (x) vec2.
void run_addr(const Frame& f) {
  const Tensor a = f.in(1), b = f.in(2), out = f.out();
  if (out.elements() == 0) return;
  in_domain({a.type, b.type, out.type}, [&]<class T>(T) {
    std::vector<T> left = load<T>(a), right = load<T>(b);
    scale(left, f.scalar<T>("alpha", T(1)));
    std::vector<T> c = start<T>(f.in(0), out.dims, f.scalar<T>("beta", T(1)));
    gemm(a.elements(), b.elements(), int64_t{1}, left.data(), right.data(), c.data());
    store(out, c);
  });
}

constexpr KernelRow kRows[] = {
    {"aten.mm", run_product<false>, true},   {"aten.bmm", run_product<false>, true},
    {"aten.addmm", run_product<true>, true}, {"aten.baddbmm", run_product<true>, true},
    {"aten.addbmm", run_addbmm, true},       {"aten.linear", run_linear, true},
    {"aten.addmv", run_addmv, true},         {"aten.mv", run_mv, true},
    {"aten.dot", run_dot<false>, true},      {"aten.vdot", run_dot<true>, true},
    {"aten.addr", run_addr, true},
};

}  // namespace

KernelRows matmul_kernels() { return kRows; }

}  // namespace backplane::reference
