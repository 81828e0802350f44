// Batches of small dense matrices, and the factorizations that several ops share.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/frame.h"
#include "kernels/indexing.h"

namespace backplane::reference {

using std::int64_t;

inline double conj_of(double v) { return v; }
inline Complex conj_of(Complex v) { return std::conj(v); }
inline double real_of(double v) { return v; }
inline double real_of(Complex v) { return v.real(); }

template <class T>
struct Matrix {
  Matrix() = default;
  Matrix(int64_t r, int64_t c) : rows(r), columns(c), v(r * c, T(0)) {}
  static Matrix identity(int64_t n) {
    Matrix m(n, n);
    for (int64_t i = 0; i < n; ++i) m(i, i) = T(1);
    return m;
  }
  T& operator()(int64_t r, int64_t c) { return v[r * columns + c]; }
  const T& operator()(int64_t r, int64_t c) const { return v[r * columns + c]; }
  Matrix adjoint() const {
    Matrix out(columns, rows);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) out(c, r) = conj_of((*this)(r, c));
    return out;
  }
  Matrix transposed() const {
    Matrix out(columns, rows);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) out(c, r) = (*this)(r, c);
    return out;
  }
  void swap_rows(int64_t a, int64_t b) {
    checked_index(b, rows);  // a pivot may come from outside
    if (a != b)
      for (int64_t c = 0; c < columns; ++c) std::swap((*this)(a, c), (*this)(b, c));
  }
  // The first `r` rows and `c` columns.
  Matrix leading(int64_t r, int64_t c) const {
    Matrix out(r, c);
    for (int64_t i = 0; i < r; ++i)
      for (int64_t j = 0; j < c; ++j) out(i, j) = (*this)(i, j);
    return out;
  }
  int64_t rows = 0, columns = 0;
  std::vector<T> v;
};
template <class T>
Matrix<T> operator*(const Matrix<T>& a, const Matrix<T>& b) {
  Matrix<T> out(a.rows, b.columns);
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t k = 0; k < a.columns; ++k)
      for (int64_t j = 0; j < b.columns; ++j) out(i, j) += a(i, k) * b(k, j);
  return out;
}

// The matrices of the last two dimensions; batch dims broadcast to `batch`.
template <class T>
class Matrices {
 public:
  Matrices(const Tensor& t, const Shape& batch) {
    Shape dims = batch;
    dims.insert(dims.end(), t.dims.end() - 2, t.dims.end());
    rows_ = t.size(-2);
    columns_ = t.size(-1);
    v_ = load<T>(t.broadcast(dims));
  }
  Matrix<T> operator[](int64_t i) const {
    Matrix<T> m(rows_, columns_);
    std::copy_n(v_.begin() + i * rows_ * columns_, rows_ * columns_, m.v.begin());
    return m;
  }

 private:
  int64_t rows_, columns_;
  std::vector<T> v_;
};
inline Shape batch_of(const Tensor& t) { return {t.dims.begin(), t.dims.end() - 2}; }

// Results of each batch entry, appended one after the other.
template <class T>
struct Results {
  std::vector<T> v;
  void push(const Matrix<T>& m) { v.insert(v.end(), m.v.begin(), m.v.end()); }
  void push(const std::vector<T>& m) { v.insert(v.end(), m.begin(), m.end()); }
  void write(const Frame& f, int64_t result) const {
    if (f.wants(result) && f.out(result).elements() == static_cast<int64_t>(v.size()))
      store(f.out(result), v);
  }
};

template <class F>
void in_field(const Frame& f, F&& body) {
  if (is_complex(f.in(0).type))
    body(Complex{});
  else
    body(double{});
}

// A = P L U in place; pivots count from 1, as LAPACK's. Returns the first zero pivot, 0: none.
template <class T>
int64_t lu_factor(Matrix<T>& a, std::vector<int64_t>& pivots, bool pivot = true) {
  const int64_t n = std::min(a.rows, a.columns);
  int64_t info = 0;
  pivots.resize(n);
  for (int64_t k = 0; k < n; ++k) {
    int64_t best = k;
    const auto size = [](T v) {
      if constexpr (std::is_same_v<T, Complex>)
        return std::abs(v.real()) + std::abs(v.imag());
      else
        return std::abs(v);
    };
    if (pivot)
      for (int64_t r = k + 1; r < a.rows; ++r)
        if (size(a(r, k)) > size(a(best, k))) best = r;
    pivots[k] = best + 1;
    a.swap_rows(k, best);
    if (a(k, k) == T(0)) {
      if (info == 0) info = k + 1;
      continue;
    }
    for (int64_t r = k + 1; r < a.rows; ++r) {
      const T factor = a(r, k) /= a(k, k);
      if (factor != T(0))
        for (int64_t c = k + 1; c < a.columns; ++c) a(r, c) -= factor * a(k, c);
    }
  }
  return info;
}

// Solves a x = b in place; a's other triangle is not read.
template <class T>
void solve_triangle(const Matrix<T>& a, Matrix<T>& b, bool upper, bool unit) {
  const int64_t n = std::min(a.rows, a.columns);  // one without elements need not be square
  for (int64_t i = 0; i < n; ++i) {
    const int64_t r = upper ? n - 1 - i : i;
    for (int64_t c = 0; c < b.columns; ++c) {
      T sum = b(r, c);
      for (int64_t k = upper ? r + 1 : 0; k < (upper ? n : r); ++k) sum -= a(r, k) * b(k, c);
      b(r, c) = unit ? sum : sum / a(r, r);
    }
  }
}
template <class T>
Matrix<T> lu_solve(const Matrix<T>& lu, const std::vector<int64_t>& pivots, Matrix<T> b,
                   bool adjoint) {
  const auto n = static_cast<int64_t>(pivots.size());
  if (adjoint) {
    const Matrix<T> h = lu.adjoint();
    solve_triangle(h, b, false, false);
    solve_triangle(h, b, true, true);
    for (int64_t i = n; i-- > 0;) b.swap_rows(i, pivots[i] - 1);
    return b;
  }
  for (int64_t i = 0; i < n; ++i) b.swap_rows(i, pivots[i] - 1);
  solve_triangle(lu, b, false, true);
  solve_triangle(lu, b, true, false);
  return b;
}

// LAPACK gives errors or NaN for other numbers, as its blocks come: PyTorch's own call says which.
template <class T>
void check_finite(const Matrix<T>& a, const char* op) {
  for (const T& x : a.v)
    if (!std::isfinite(std::abs(x)))
      throw KernelError(std::string(op) + ": a number that is not finite");
}

// a = u diag(s) v^H, thin: u rows x n, v columns x n, n = min(rows, columns); s falls.
template <class T>
struct Svd {
  Matrix<T> u, v;
  std::vector<double> s;
};
template <class T>
Svd<T> svd(const Matrix<T>& a);
// Of a Hermitian matrix: eigenvalues rising, vectors in columns.
template <class T>
struct Eigen {
  std::vector<double> values;
  Matrix<T> vectors;
};
template <class T>
Eigen<T> eigh(Matrix<T> a);
// Householder factors below the diagonal, R on and above; LAPACK's signs.
template <class T>
void qr_factor(Matrix<T>& a, std::vector<T>& tau);
// Applies Q (or its adjoint) of such factors to b from the left.
template <class T>
void apply_q(const Matrix<T>& a, const std::vector<T>& tau, Matrix<T>& b, bool adjoint);
// Fills up orthonormal columns to `count`.
template <class T>
Matrix<T> complete_basis(const Matrix<T>& u, int64_t count);

#define BP_REFERENCE_MATRIX(T)                                                                \
  extern template Svd<T> svd<T>(const Matrix<T>&);                                            \
  extern template Eigen<T> eigh<T>(Matrix<T>);                                                \
  extern template void qr_factor<T>(Matrix<T>&, std::vector<T>&);                             \
  extern template void apply_q<T>(const Matrix<T>&, const std::vector<T>&, Matrix<T>&, bool); \
  extern template Matrix<T> complete_basis<T>(const Matrix<T>&, int64_t);
BP_REFERENCE_MATRIX(double)
BP_REFERENCE_MATRIX(Complex)
#undef BP_REFERENCE_MATRIX

}  // namespace backplane::reference
