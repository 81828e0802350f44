// Solving with given factors, least squares, and functions of matrices.
#include "kernels/indexing.h"

#include <limits>

#include "kernel_registry.h"
#include "kernels/matrix.h"

namespace backplane::reference {
namespace {

int64_t count_of(const Shape& batch) { return product(batch); }

// The pivots of each matrix of the batch, one row after the other.
std::vector<int64_t> load_rows(const Tensor& pivots, Shape batch) {
  batch.push_back(pivots.dims.back());
  return load<int64_t>(pivots.broadcast(batch));
}

// LU, pivots, B
void run_lu_solve(const Frame& f) {
  const Tensor out = f.out(), pivots = f.in(1);
  const bool left = f.flag("left", true), adjoint = f.flag("adjoint", false);
  in_field(f, [&]<class T>(T) {
    const Shape batch = batch_of(out);
    const Matrices<T> factors(f.in(0), batch), sides(f.in(2), batch);
    const std::vector<int64_t> orders = load_rows(pivots, batch);
    const int64_t k = pivots.dims.back();
    Results<T> x;
    for (int64_t i = 0; i < count_of(batch); ++i) {
      const std::vector<int64_t> order(orders.begin() + i * k, orders.begin() + (i + 1) * k);
      // x A = b is A^H x^H = b^H.
      if (left)
        x.push(lu_solve(factors[i], order, sides[i], adjoint));
      else
        x.push(lu_solve(factors[i], order, sides[i].adjoint(), !adjoint).adjoint());
    }
    x.write(f, 0);
  });
}

template <class T>
void triangular(const Frame& f, const Tensor& a, const Tensor& b, bool upper, bool left, bool unit,
                bool transpose) {
  const Tensor out = f.out();
  const Shape batch = batch_of(out);
  const Matrices<T> matrices(a, batch), sides(b, batch);
  Results<T> x;
  for (int64_t i = 0; i < count_of(batch); ++i) {
    const bool flip = transpose != !left;  // x A = b is A^T x^T = b^T
    const Matrix<T> m = flip ? matrices[i].transposed() : matrices[i];
    Matrix<T> side = left ? sides[i] : sides[i].transposed();
    solve_triangle(m, side, flip ? !upper : upper, unit);
    x.push(left ? side : side.transposed());
  }
  x.write(f, 0);
}
void run_solve_triangular(const Frame& f) {
  in_field(f, [&]<class T>(T) {
    triangular<T>(f, f.in(0), f.in(1), f.flag("upper", false), f.flag("left", true),
                  f.flag("unitriangular", false), false);
  });
}
void run_triangular_solve(const Frame& f) {
  in_field(f, [&]<class T>(T) {
    triangular<T>(f, f.in(1), f.in(0), f.flag("upper", true), true, f.flag("unitriangular", false),
                  f.flag("transpose", false));
  });
  if (f.wants(1)) copy(f.out(1), f.in(1));
}

double epsilon_of(Type type) {
  return type == Type::kF64 || type == Type::kC128 ? 0x1p-52 : 0x1p-23;
}

template <class T>
Matrix<T> pseudo_inverse(const Matrix<T>& a, double absolute, double relative, int64_t* rank) {
  const Svd<T> d = svd(a);
  const double largest = d.s.empty() ? 0 : d.s[0];
  const double limit = std::fmax(absolute, relative * largest);
  Matrix<T> v = d.v;
  int64_t kept = 0;
  for (int64_t c = 0; c < v.columns; ++c) {
    const bool keep = d.s[c] > limit;
    kept += keep ? 1 : 0;
    for (int64_t r = 0; r < v.rows; ++r) v(r, c) = keep ? v(r, c) / d.s[c] : T(0);
  }
  if (rank) *rank = kept;
  return v * d.u.adjoint();
}

void run_pinv(const Frame& f) {
  const Tensor a = f.in(0);
  const Shape batch = batch_of(f.out());  // tolerances broadcast with the matrices
  const double default_relative =
      epsilon_of(a.type) * static_cast<double>(std::max(a.size(-1), a.size(-2)));
  const std::vector<double> absolute =
      f.has(1) ? load<double>(f.in(1).broadcast(batch)) : std::vector<double>{};
  const std::vector<double> relative =
      f.has(2) ? load<double>(f.in(2).broadcast(batch)) : std::vector<double>{};
  in_field(f, [&]<class T>(T) {
    const Matrices<T> all(a, batch);
    Results<T> out;
    for (int64_t i = 0; i < count_of(batch); ++i) {
      const double atol = absolute.empty() ? 0 : absolute[i];
      const double rtol = !relative.empty()    ? relative[i]
                          : f.present("rcond") ? f.real("rcond", 0)
                          : atol > 0           ? 0
                                               : default_relative;
      Matrix<T> m = all[i];
      if (f.flag("hermitian", false))  // only the lower triangle is read
        for (int64_t r = 0; r < m.rows; ++r)
          for (int64_t c = r + 1; c < m.columns; ++c) m(r, c) = conj_of(m(c, r));
      out.push(pseudo_inverse(m, atol, rtol, nullptr));
    }
    out.write(f, 0);
  });
}

// self, b -> solution, residuals, rank, singular_values
void run_lstsq(const Frame& f) {
  const Tensor a = f.in(0);
  Tensor b = f.in(1), out = f.out(0);
  const bool vector = b.rank() == a.rank() - 1;
  if (vector)
    for (Tensor* t : {&b, &out}) t->dims.push_back(1), t->strides.push_back(1);
  const double relative =
      f.real("rcond", epsilon_of(a.type) * static_cast<double>(std::max(a.size(-1), a.size(-2))));
  in_field(f, [&]<class T>(T) {
    const Shape batch = batch_of(out);
    const Matrices<T> matrices(a, batch), sides(b, batch);
    Results<T> x;
    Results<double> residuals, singular;
    Results<int64_t> ranks;
    for (int64_t i = 0; i < count_of(batch); ++i) {
      const Matrix<T> m = matrices[i], side = sides[i];
      int64_t rank = 0;
      const Matrix<T> solution = pseudo_inverse(m, 0, relative, &rank) * side;
      x.push(solution);
      ranks.v.push_back(rank);
      singular.push(svd(m).s);
      const Matrix<T> product = m * solution;
      for (int64_t c = 0; c < side.columns; ++c) {
        double sum = 0;
        for (int64_t r = 0; r < side.rows; ++r) sum += std::norm(product(r, c) - side(r, c));
        residuals.v.push_back(sum);
      }
    }
    store(out, x.v);
    residuals.write(f, 1);
    ranks.write(f, 2);
    singular.write(f, 3);
  });
}

// Scaling, a Taylor series, squaring.
template <class T>
Matrix<T> exponential(Matrix<T> a) {
  double norm = 0;
  for (int64_t r = 0; r < a.rows; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < a.columns; ++c) sum += std::abs(a(r, c));
    norm = std::fmax(norm, sum);
  }
  int squarings = 0;
  for (; norm > 0.25 && squarings < 1000; norm /= 2) ++squarings;
  for (T& v : a.v) v *= std::ldexp(1.0, -squarings);
  Matrix<T> out = Matrix<T>::identity(a.rows), term = out;
  for (int k = 1; k <= 14; ++k) {
    term = term * a;
    for (std::size_t i = 0; i < term.v.size(); ++i) {
      term.v[i] /= k;
      out.v[i] += term.v[i];
    }
  }
  for (int k = 0; k < squarings; ++k) out = out * out;
  return out;
}
void run_matrix_exp(const Frame& f) {
  const Tensor a = f.in(0);
  in_field(f, [&]<class T>(T) {
    const Matrices<T> all(a, batch_of(a));
    Results<T> out;
    for (int64_t i = 0; i < count_of(batch_of(a)); ++i) out.push(exponential(all[i]));
    out.write(f, 0);
  });
}

void run_cross(const Frame& f) {
  const Tensor out = f.out();
  int64_t dim = f.integer("dim", -1);
  if (f.row().name == "aten.cross" && !f.present("dim"))
    for (dim = 0; out.size(dim) != 3;) ++dim;
  in_domain({out.type}, [&]<class T>(T) {
    const std::vector<T> a = load<T>(f.in(0).broadcast(out.dims).moved_last(dim));
    const std::vector<T> b = load<T>(f.in(1).broadcast(out.dims).moved_last(dim));
    std::vector<T> c(a.size());
    for (std::size_t i = 0; i < a.size(); i += 3) {
      c[i] = a[i + 1] * b[i + 2] - a[i + 2] * b[i + 1];
      c[i + 1] = a[i + 2] * b[i] - a[i] * b[i + 2];
      c[i + 2] = a[i] * b[i + 1] - a[i + 1] * b[i];
    }
    store(out.moved_last(dim), c);
  });
}

// ---- LDL^H with Bunch and Kaufman's pivots, in LAPACK's packing of the lower triangle ----

template <class T>
T flipped(T v, bool hermitian) {
  return hermitian ? conj_of(v) : v;
}
template <class T>
double size_of(T v) {
  if constexpr (std::is_same_v<T, Complex>)
    return std::abs(v.real()) + std::abs(v.imag());
  else
    return std::abs(v);
}
// The symmetric exchange of rows and columns i < j of the trailing matrix from k on.
template <class T>
void exchange(Matrix<T>& a, int64_t k, int64_t i, int64_t j, bool hermitian) {
  if (i == j) return;
  for (int64_t r = j + 1; r < a.rows; ++r) std::swap(a(r, i), a(r, j));
  for (int64_t m = i + 1; m < j; ++m) {
    const T t = a(m, i);
    a(m, i) = flipped(a(j, m), hermitian);
    a(j, m) = flipped(t, hermitian);
  }
  a(j, i) = flipped(a(j, i), hermitian);
  std::swap(a(i, i), a(j, j));
  for (int64_t c = k; c < i; ++c) std::swap(a(i, c), a(j, c));
}
template <class T>
int64_t ldl_factor(Matrix<T>& a, std::vector<int64_t>& pivots, bool hermitian) {
  const int64_t n = a.rows;
  const double alpha = (1 + std::sqrt(17.0)) / 8;
  int64_t info = 0;
  pivots.assign(n, 0);
  for (int64_t k = 0; k < n;) {
    int64_t step = 1, pivot = k, row = k;
    const double diagonal = hermitian ? std::abs(real_of(a(k, k))) : size_of(a(k, k));
    double column = 0;
    for (int64_t r = k + 1; r < n; ++r)
      if (size_of(a(r, k)) > column) column = size_of(a(r, k)), row = r;
    if (std::fmax(diagonal, column) == 0) {
      if (info == 0) info = k + 1;
    } else if (diagonal < alpha * column) {
      double other = 0;
      for (int64_t c = k; c < row; ++c) other = std::fmax(other, size_of(a(row, c)));
      for (int64_t r = row + 1; r < n; ++r) other = std::fmax(other, size_of(a(r, row)));
      const double there = hermitian ? std::abs(real_of(a(row, row))) : size_of(a(row, row));
      if (diagonal >= alpha * column * (column / other))
        pivot = k;
      else if (there >= alpha * other)
        pivot = row;
      else
        pivot = row, step = 2;
    }
    const int64_t moved = k + step - 1;
    exchange(a, k, moved, pivot, hermitian);
    if (step == 1) {
      if (a(k, k) != T(0)) {
        const T inverse = T(1) / a(k, k);
        for (int64_t c = k + 1; c < n; ++c) {
          const T factor = flipped(a(c, k), hermitian) * inverse;
          for (int64_t r = c; r < n; ++r) a(r, c) -= a(r, k) * factor;
        }
        for (int64_t r = k + 1; r < n; ++r) a(r, k) *= inverse;
      }
      pivots[k] = pivot + 1;
    } else {
      const T d11 = a(k, k), d21 = a(k + 1, k), d22 = a(k + 1, k + 1);
      const T d12 = flipped(d21, hermitian), det = d11 * d22 - d21 * d12;
      for (int64_t c = k + 2; c < n; ++c) {
        // The row [x y] of the factor solves [x y] D = [a(c,k) a(c,k+1)].
        const T x = (a(c, k) * d22 - a(c, k + 1) * d21) / det;
        const T y = (a(c, k + 1) * d11 - a(c, k) * d12) / det;
        for (int64_t r = c; r < n; ++r)
          a(r, c) -= a(r, k) * flipped(x, hermitian) + a(r, k + 1) * flipped(y, hermitian);
        a(c, k) = x;
        a(c, k + 1) = y;
      }
      pivots[k] = pivots[k + 1] = -(pivot + 1);
    }
    k += step;
  }
  return info;
}
void run_ldl_factor(const Frame& f) {
  const Tensor a = f.in(0);
  in_field(f, [&]<class T>(T) {
    const Matrices<T> all(a, batch_of(a));
    Results<T> factors;
    Results<int64_t> pivots, infos;
    for (int64_t i = 0; i < count_of(batch_of(a)); ++i) {
      Matrix<T> m = all[i];
      std::vector<int64_t> order;
      infos.v.push_back(ldl_factor(m, order, f.flag("hermitian", false)));
      for (int64_t r = 0; r < m.rows; ++r)
        for (int64_t c = r + 1; c < m.columns; ++c) m(r, c) = T(0);
      factors.push(m);
      pivots.push(order);
    }
    factors.write(f, 0);
    pivots.write(f, 1);
    infos.write(f, 2);
  });
}
// LD, pivots, B
void run_ldl_solve(const Frame& f) {
  const Tensor out = f.out(), pivots = f.in(1);
  const bool hermitian = f.flag("hermitian", false);
  in_field(f, [&]<class T>(T) {
    const Shape batch = batch_of(out);
    const Matrices<T> factors(f.in(0), batch), sides(f.in(2), batch);
    const std::vector<int64_t> orders = load_rows(pivots, batch);
    const int64_t n = pivots.dims.back();
    Results<T> x;
    for (int64_t i = 0; i < count_of(batch); ++i) {
      const Matrix<T> a = factors[i];
      Matrix<T> b = sides[i];
      const int64_t* p = orders.data() + i * n;
      for (int64_t k = 0; k < n;) {  // L and D
        const int64_t step = p[k] > 0 ? 1 : 2;
        checked_index(k + step - 1, n);
        b.swap_rows(k + step - 1, std::abs(p[k]) - 1);
        for (int64_t c = 0; c < b.columns; ++c) {
          for (int64_t r = k + step; r < n; ++r) {
            b(r, c) -= a(r, k) * b(k, c);
            if (step == 2) b(r, c) -= a(r, k + 1) * b(k + 1, c);
          }
          if (step == 1) {
            b(k, c) /= a(k, k);
            continue;
          }
          const T d21 = a(k + 1, k), d12 = flipped(d21, hermitian);
          const T det = a(k, k) * a(k + 1, k + 1) - d21 * d12, u = b(k, c), v = b(k + 1, c);
          b(k, c) = (u * a(k + 1, k + 1) - d12 * v) / det;
          b(k + 1, c) = (v * a(k, k) - d21 * u) / det;
        }
        k += step;
      }
      for (int64_t k = n - 1; k >= 0;) {  // L^H
        const int64_t step = p[k] > 0 ? 1 : 2, first = checked_index(k - step + 1, n);
        for (int64_t c = 0; c < b.columns; ++c)
          for (int64_t q = first; q <= k; ++q)
            for (int64_t r = k + 1; r < n; ++r) b(q, c) -= flipped(a(r, q), hermitian) * b(r, c);
        b.swap_rows(k, std::abs(p[k]) - 1);
        k -= step;
      }
      x.push(b);
    }
    x.write(f, 0);
  });
}

void run_check_errors(const Frame& f) {
  for (const int64_t info : load<int64_t>(f.in(0)))
    if (info != 0)
      throw KernelError(std::string(f.text("api_name", "linalg")) +
                        ": the computation failed, info " + std::to_string(info));
}

constexpr KernelRow kRows[] = {
    {"aten.linalg_lu_solve", run_lu_solve, true},
    {"aten.linalg_solve_triangular", run_solve_triangular, true},
    {"aten.triangular_solve", run_triangular_solve, true},
    {"aten.linalg_pinv.atol_rtol_tensor", run_pinv, true},
    {"aten.linalg_pinv", run_pinv, true},
    {"aten.linalg_lstsq", run_lstsq, true},
    {"aten.linalg_matrix_exp", run_matrix_exp, true},
    {"aten.linalg_cross", run_cross, true},
    {"aten.cross", run_cross, true},
    {"aten.linalg_ldl_factor_ex", run_ldl_factor, true},
    {"aten.linalg_ldl_solve", run_ldl_solve, true},
    {"aten._linalg_check_errors", run_check_errors},
};

}  // namespace

KernelRows solver_kernels() { return kRows; }

}  // namespace backplane::reference
