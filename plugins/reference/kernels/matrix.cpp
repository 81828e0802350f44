#include "kernels/matrix.h"

#include <algorithm>
#include <numeric>

namespace backplane::reference {
namespace {

constexpr int kSweepLimit = 60;
constexpr double kTiny = 1e-300;

// The rotation that makes columns p and q of a 2 x 2 Hermitian block [[x, z], [conj z, y]]
// orthogonal: c real, s with the phase of z.
template <class T>
void rotation(double x, double y, T z, double& c, T& s) {
  const double size = std::abs(z);
  const double zeta = (y - x) / (2 * size);
  const double t = (zeta >= 0 ? 1.0 : -1.0) / (std::abs(zeta) + std::sqrt(1 + zeta * zeta));
  c = 1 / std::sqrt(1 + t * t);
  s = z * (c * t / size);
}
template <class T>
void rotate_columns(Matrix<T>& m, int64_t p, int64_t q, double c, T s) {
  for (int64_t r = 0; r < m.rows; ++r) {
    const T a = m(r, p), b = m(r, q);
    m(r, p) = c * a - conj_of(s) * b;
    m(r, q) = s * a + c * b;
  }
}

}  // namespace

// One-sided Jacobi on the columns of the taller of a and its adjoint.
template <class T>
Svd<T> svd(const Matrix<T>& a) {
  check_finite(a, "svd");
  if (a.rows < a.columns) {
    Svd<T> flipped = svd(a.adjoint());
    std::swap(flipped.u, flipped.v);
    return flipped;
  }
  Matrix<T> w = a, v = Matrix<T>::identity(a.columns);
  const int64_t n = a.columns;
  for (int sweep = 0; sweep < kSweepLimit; ++sweep) {
    bool done = true;
    for (int64_t p = 0; p < n; ++p)
      for (int64_t q = p + 1; q < n; ++q) {
        double x = 0, y = 0;
        T z(0);
        for (int64_t r = 0; r < w.rows; ++r) {
          x += std::norm(w(r, p));
          y += std::norm(w(r, q));
          z += conj_of(w(r, p)) * w(r, q);
        }
        if (!(std::abs(z) > 1e-16 * std::sqrt(x * y)) || std::abs(z) < kTiny) continue;
        done = false;
        double c = 1;
        T s(0);
        rotation(x, y, z, c, s);
        rotate_columns(w, p, q, c, s);
        rotate_columns(v, p, q, c, s);
      }
    if (done) break;
  }
  std::vector<double> size(n);
  for (int64_t c = 0; c < n; ++c) {
    for (int64_t r = 0; r < w.rows; ++r) size[c] += std::norm(w(r, c));
    size[c] = std::sqrt(size[c]);
  }
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto i, auto j) { return size[i] > size[j]; });
  Svd<T> out;
  out.v = Matrix<T>(n, n);
  Matrix<T> u(a.rows, 0);
  const double threshold = n ? size[order[0]] * 1e-15 : 0;
  int64_t rank = 0;
  while (rank < n && size[order[rank]] > threshold) ++rank;
  u = Matrix<T>(a.rows, rank);
  for (int64_t c = 0; c < n; ++c) {
    out.s.push_back(size[order[c]]);
    for (int64_t r = 0; r < n; ++r) out.v(r, c) = v(r, order[c]);
    if (c < rank)
      for (int64_t r = 0; r < a.rows; ++r) u(r, c) = w(r, order[c]) / size[order[c]];
  }
  out.u = complete_basis(u, n);
  return out;
}

// Two-sided Jacobi.
template <class T>
Eigen<T> eigh(Matrix<T> a) {
  check_finite(a, "eigh");
  const int64_t n = a.rows;
  Matrix<T> v = Matrix<T>::identity(n);
  for (int sweep = 0; sweep < kSweepLimit; ++sweep) {
    double off = 0, all = 0;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) (i == j ? all : off) += std::norm(a(i, j));
    if (off <= 1e-32 * (all + off)) break;
    for (int64_t p = 0; p < n; ++p)
      for (int64_t q = p + 1; q < n; ++q) {
        const T z = a(p, q);
        if (std::abs(z) < kTiny) continue;
        double c = 1;
        T s(0);
        rotation(real_of(a(p, p)), real_of(a(q, q)), z, c, s);
        rotate_columns(a, p, q, c, s);
        rotate_columns(v, p, q, c, s);
        for (int64_t k = 0; k < n; ++k) {  // rows, with the conjugate rotation
          const T x = a(p, k), y = a(q, k);
          a(p, k) = c * x - s * y;
          a(q, k) = conj_of(s) * x + c * y;
        }
      }
  }
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](auto i, auto j) { return real_of(a(i, i)) < real_of(a(j, j)); });
  Eigen<T> out{{}, Matrix<T>(n, n)};
  for (int64_t c = 0; c < n; ++c) {
    out.values.push_back(real_of(a(order[c], order[c])));
    for (int64_t r = 0; r < n; ++r) out.vectors(r, c) = v(r, order[c]);
  }
  return out;
}

template <class T>
void qr_factor(Matrix<T>& a, std::vector<T>& tau) {
  const int64_t n = std::min(a.rows, a.columns);
  tau.assign(n, T(0));
  for (int64_t k = 0; k < n; ++k) {
    double below = 0;
    for (int64_t r = k + 1; r < a.rows; ++r) below += std::norm(a(r, k));
    const T alpha = a(k, k);
    const double imaginary = std::imag(Complex(alpha));
    if (below == 0 && imaginary == 0) continue;
    const double norm = std::sqrt(std::norm(alpha) + below);
    const double beta = real_of(alpha) >= 0 ? -norm : norm;
    tau[k] = (T(beta) - alpha) / beta;
    for (int64_t r = k + 1; r < a.rows; ++r) a(r, k) /= alpha - T(beta);
    a(k, k) = T(beta);
    for (int64_t c = k + 1; c < a.columns; ++c) {
      T dot = a(k, c);
      for (int64_t r = k + 1; r < a.rows; ++r) dot += conj_of(a(r, k)) * a(r, c);
      dot *= conj_of(tau[k]);
      a(k, c) -= dot;
      for (int64_t r = k + 1; r < a.rows; ++r) a(r, c) -= dot * a(r, k);
    }
  }
}

template <class T>
void apply_q(const Matrix<T>& a, const std::vector<T>& tau, Matrix<T>& b, bool adjoint) {
  const auto n = static_cast<int64_t>(tau.size());
  for (int64_t i = 0; i < n; ++i) {
    const int64_t k = adjoint ? i : n - 1 - i;
    const T t = adjoint ? conj_of(tau[k]) : tau[k];
    for (int64_t c = 0; c < b.columns; ++c) {
      T dot = b(k, c);
      for (int64_t r = k + 1; r < b.rows; ++r) dot += conj_of(a(r, k)) * b(r, c);
      dot *= t;
      b(k, c) -= dot;
      for (int64_t r = k + 1; r < b.rows; ++r) b(r, c) -= dot * a(r, k);
    }
  }
}

template <class T>
Matrix<T> complete_basis(const Matrix<T>& u, int64_t count) {
  Matrix<T> out(u.rows, count);
  for (int64_t c = 0; c < u.columns; ++c)
    for (int64_t r = 0; r < u.rows; ++r) out(r, c) = u(r, c);
  // Unit vectors made orthogonal to what is there; the longest remainder is taken.
  for (int64_t c = u.columns; c < count; ++c) {
    std::vector<T> best(u.rows);
    double best_norm = -1;
    for (int64_t e = 0; e < u.rows; ++e) {
      std::vector<T> x(u.rows, T(0));
      x[e] = T(1);
      for (int pass = 0; pass < 2; ++pass)
        for (int64_t k = 0; k < c; ++k) {
          T dot(0);
          for (int64_t r = 0; r < u.rows; ++r) dot += conj_of(out(r, k)) * x[r];
          for (int64_t r = 0; r < u.rows; ++r) x[r] -= dot * out(r, k);
        }
      double norm = 0;
      for (const T& v : x) norm += std::norm(v);
      if (norm > best_norm) best_norm = norm, best = x;
    }
    for (int64_t r = 0; r < u.rows; ++r) out(r, c) = best[r] / std::sqrt(best_norm);
  }
  return out;
}

#define BP_REFERENCE_MATRIX(T)                                                         \
  template Svd<T> svd<T>(const Matrix<T>&);                                            \
  template Eigen<T> eigh<T>(Matrix<T>);                                                \
  template void qr_factor<T>(Matrix<T>&, std::vector<T>&);                             \
  template void apply_q<T>(const Matrix<T>&, const std::vector<T>&, Matrix<T>&, bool); \
  template Matrix<T> complete_basis<T>(const Matrix<T>&, int64_t);
BP_REFERENCE_MATRIX(double)
BP_REFERENCE_MATRIX(Complex)
#undef BP_REFERENCE_MATRIX

}  // namespace backplane::reference
