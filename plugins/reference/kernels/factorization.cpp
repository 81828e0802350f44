// Matrix factorizations.
#include "kernel_registry.h"
#include "kernels/matrix.h"

namespace backplane::reference {
namespace {

int64_t count_of(const Shape& batch) { return product(batch); }

// ---- LU ----

template <class T>
struct Factored {
  Matrix<T> lu;
  std::vector<int64_t> pivots;
  int64_t info = 0;
};
// For a determinant the framework factors the transposed matrix where that saves it a copy.
bool is_dense(const Tensor& t) {
  const Shape dense = dense_strides(t.dims);
  for (std::size_t d = 0; d < t.dims.size(); ++d)
    if (t.dims[d] != 1 && t.strides[d] != dense[d]) return false;
  return !is_complex(t.type);
}

void run_lu_factor(const Frame& f) {
  const Tensor a = f.in(0);
  in_field(f, [&]<class T>(T) {
    const Matrices<T> all(a, batch_of(a));
    Results<T> lu;
    Results<int64_t> pivots, infos;
    for (int64_t i = 0; i < count_of(batch_of(a)); ++i) {
      Factored<T> one{all[i], {}, 0};
      one.info = lu_factor(one.lu, one.pivots, f.flag("pivot", true));
      lu.push(one.lu);
      pivots.push(one.pivots);
      infos.v.push_back(one.info);
    }
    lu.write(f, 0);
    pivots.write(f, 1);
    infos.write(f, 2);
  });
}

template <class T>
Matrix<T> permutation(const std::vector<int64_t>& pivots, int64_t rows) {
  std::vector<int64_t> order(rows);
  for (int64_t i = 0; i < rows; ++i) order[i] = i;
  for (std::size_t i = 0; i < pivots.size(); ++i)
    std::swap(order[i], order[checked_index(pivots[i] - 1, rows)]);
  Matrix<T> p(rows, rows);
  for (int64_t i = 0; i < rows; ++i) p(order[i], i) = T(1);
  return p;
}
template <class T>
void unpack(const Matrix<T>& lu, Matrix<T>& l, Matrix<T>& u) {
  const int64_t k = std::min(lu.rows, lu.columns);
  l = lu.leading(lu.rows, k);
  u = lu.leading(k, lu.columns);
  for (int64_t r = 0; r < lu.rows; ++r)
    for (int64_t c = r; c < k; ++c) l(r, c) = T(r == c ? 1 : 0);
  for (int64_t r = 0; r < k; ++r)
    for (int64_t c = 0; c < std::min(r, lu.columns); ++c) u(r, c) = T(0);
}
void run_lu(const Frame& f) {
  const Tensor a = f.in(0);
  in_field(f, [&]<class T>(T) {
    const Matrices<T> all(a, batch_of(a));
    Results<T> p, l, u;
    for (int64_t i = 0; i < count_of(batch_of(a)); ++i) {
      Factored<T> one{all[i], {}, 0};
      lu_factor(one.lu, one.pivots, f.flag("pivot", true));
      Matrix<T> lower, upper;
      unpack(one.lu, lower, upper);
      p.push(permutation<T>(one.pivots, one.lu.rows));
      l.push(lower);
      u.push(upper);
    }
    p.write(f, 0);
    l.write(f, 1);
    u.write(f, 2);
  });
}
void run_lu_unpack(const Frame& f) {
  const Tensor a = f.in(0);
  in_field(f, [&]<class T>(T) {
    const Matrices<T> all(a, batch_of(a));
    const std::vector<int64_t> pivots = load<int64_t>(f.in(1));
    const int64_t k = f.in(1).size(-1);
    Results<T> p, l, u;
    for (int64_t i = 0; i < count_of(batch_of(a)); ++i) {
      Matrix<T> lower, upper;
      unpack(all[i], lower, upper);
      p.push(permutation<T>({pivots.begin() + i * k, pivots.begin() + (i + 1) * k}, a.size(-2)));
      l.push(lower);
      u.push(upper);
    }
    if (f.flag("unpack_pivots", true)) p.write(f, 0);
    if (f.flag("unpack_data", true)) {
      l.write(f, 1);
      u.write(f, 2);
    }
  });
}

// As torch.sgn: of a real number that is none 0, of an infinite one 1.
double sign_of(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }
Complex sign_of(const Complex& x) { return x == Complex(0) ? Complex(0) : x / std::abs(x); }

// det: result, LU, pivots; slogdet: sign, log, LU, pivots.
template <bool kLog>
void run_det(const Frame& f) {
  const Tensor a = f.in(0);
  const bool flipped = is_dense(a);
  in_field(f, [&]<class T>(T) {
    const Matrices<T> all(a, batch_of(a));
    Results<T> det, lu;
    Results<double> logs;
    Results<int64_t> pivots;
    for (int64_t i = 0; i < count_of(batch_of(a)); ++i) {
      Factored<T> one{flipped ? all[i].transposed() : all[i], {}, 0};
      lu_factor(one.lu, one.pivots);
      T sign(1), value(1);
      double log = 0;
      for (int64_t k = 0; k < one.lu.rows; ++k) {
        const T d = one.lu(k, k);
        const double sign_of_swap = one.pivots[k] != k + 1 ? -1 : 1;
        value *= d * sign_of_swap;
        sign *= sign_of(d) * sign_of_swap;
        log += std::log(std::abs(d));
      }
      det.v.push_back(kLog ? sign : value);
      logs.v.push_back(log);
      lu.push(one.lu);
      pivots.push(one.pivots);
    }
    det.write(f, 0);
    if (kLog) logs.write(f, 1);
    lu.write(f, kLog ? 2 : 1);
    pivots.write(f, kLog ? 3 : 2);
  });
}

// A, B -> result, LU, pivots, info
void run_solve(const Frame& f) {
  const Tensor a = f.in(0);
  Tensor b = f.in(1), out = f.out(0);
  const bool vector = b.rank() == 1 || (a.rank() - 1 == b.rank() &&
                                        std::equal(b.dims.begin(), b.dims.end(), a.dims.begin()));
  const bool left = f.flag("left", true);
  if (vector)
    for (Tensor* t : {&b, &out}) t->dims.push_back(1), t->strides.push_back(1);
  in_field(f, [&]<class T>(T) {
    const Shape batch = batch_of(out);
    const Matrices<T> factors(a, batch_of(a));
    Results<T> x, lu;
    Results<int64_t> pivots, infos;
    for (int64_t i = 0; i < count_of(batch_of(a)); ++i) {
      Factored<T> one{factors[i], {}, 0};
      infos.v.push_back(lu_factor(one.lu, one.pivots));
      lu.push(one.lu);
      pivots.push(one.pivots);
    }
    const Matrices<T> matrices(a, batch), sides(b, batch);
    for (int64_t i = 0; i < count_of(batch); ++i) {
      Matrix<T> m = left ? matrices[i] : matrices[i].transposed();
      std::vector<int64_t> order;
      lu_factor(m, order);
      Matrix<T> solved = lu_solve(m, order, left ? sides[i] : sides[i].transposed(), false);
      x.push(left ? solved : solved.transposed());
    }
    store(out, x.v);
    lu.write(f, 1);
    pivots.write(f, 2);
    infos.write(f, 3);
  });
}
void run_inverse(const Frame& f) {
  const Tensor a = f.in(0);
  in_field(f, [&]<class T>(T) {
    const Matrices<T> all(a, batch_of(a));
    Results<T> out;
    Results<int64_t> infos;
    for (int64_t i = 0; i < count_of(batch_of(a)); ++i) {
      Matrix<T> m = all[i];
      std::vector<int64_t> pivots;
      infos.v.push_back(lu_factor(m, pivots));
      out.push(lu_solve(m, pivots, Matrix<T>::identity(m.rows), false));
    }
    out.write(f, 0);
    infos.write(f, 1);
  });
}

// ---- Cholesky ----

template <class T>
int64_t cholesky(Matrix<T>& a) {
  if (a.columns == 0) return 0;  // of an empty one the framework takes any sizes
  for (int64_t c = 0; c < a.rows; ++c) {
    double d = real_of(a(c, c));
    for (int64_t k = 0; k < c; ++k) d -= std::norm(a(c, k));
    if (!(d > 0)) return c + 1;
    // What an infinite one makes of the next depends on the order of LAPACK's blocks.
    if (std::isinf(d)) throw KernelError("cholesky: a number that is not finite");
    d = std::sqrt(d);
    a(c, c) = T(d);
    for (int64_t r = c + 1; r < a.rows; ++r) {
      T sum = a(r, c);
      for (int64_t k = 0; k < c; ++k) sum -= a(r, k) * conj_of(a(c, k));
      a(r, c) = sum / d;
    }
    for (int64_t k = c + 1; k < a.rows; ++k) a(c, k) = T(0);
  }
  return 0;
}
template <bool kChecks>
void run_cholesky(const Frame& f) {
  const Tensor a = f.in(0);
  const bool upper = f.flag("upper", false);
  in_field(f, [&]<class T>(T) {
    const Matrices<T> all(a, batch_of(a));
    Results<T> out;
    Results<int64_t> infos;
    for (int64_t i = 0; i < count_of(batch_of(a)); ++i) {
      Matrix<T> m = upper ? all[i].adjoint() : all[i];
      infos.v.push_back(cholesky(m));
      if (kChecks && infos.v.back())
        throw KernelError("cholesky: the matrix is not positive-definite");
      out.push(upper ? m.adjoint() : m);
    }
    out.write(f, 0);
    infos.write(f, 1);
  });
}
// B, L -> solution of (L L^H) x = B
void run_cholesky_solve(const Frame& f) {
  const Tensor out = f.out();
  const bool upper = f.flag("upper", false);
  in_field(f, [&]<class T>(T) {
    const Matrices<T> sides(f.in(0), batch_of(out)), factors(f.in(1), batch_of(out));
    Results<T> x;
    for (int64_t i = 0; i < count_of(batch_of(out)); ++i) {
      const Matrix<T> l = upper ? factors[i].adjoint() : factors[i];
      Matrix<T> b = sides[i];
      solve_triangle(l, b, false, false);
      solve_triangle(l.adjoint(), b, true, false);
      x.push(b);
    }
    x.write(f, 0);
  });
}
void run_cholesky_inverse(const Frame& f) {
  const Tensor a = f.in(0);
  const bool upper = f.flag("upper", false);
  in_field(f, [&]<class T>(T) {
    const Matrices<T> all(a, batch_of(a));
    Results<T> out;
    for (int64_t i = 0; i < count_of(batch_of(a)); ++i) {
      const Matrix<T> l = upper ? all[i].adjoint() : all[i];
      for (int64_t r = 0; r < l.rows; ++r)
        if (l(r, r) == T(0)) throw KernelError("cholesky_inverse: a singular matrix");
      Matrix<T> b = Matrix<T>::identity(l.rows);
      solve_triangle(l, b, false, false);
      solve_triangle(l.adjoint(), b, true, false);
      out.push(b);
    }
    out.write(f, 0);
  });
}

// ---- QR ----

void run_qr(const Frame& f) {
  const Tensor a = f.in(0);
  const std::string_view mode = f.text("mode", "reduced");
  in_field(f, [&]<class T>(T) {
    const Matrices<T> all(a, batch_of(a));
    Results<T> q, r;
    for (int64_t i = 0; i < count_of(batch_of(a)); ++i) {
      Matrix<T> m = all[i];
      std::vector<T> tau;
      qr_factor(m, tau);
      const int64_t k = mode == "complete" ? m.rows : std::min(m.rows, m.columns);
      Matrix<T> basis(m.rows, k);
      for (int64_t d = 0; d < std::min(m.rows, k); ++d) basis(d, d) = T(1);
      apply_q(m, tau, basis, false);
      Matrix<T> upper(k, m.columns);
      for (int64_t row = 0; row < k; ++row)
        for (int64_t c = row; c < m.columns; ++c) upper(row, c) = m(row, c);
      q.push(basis);
      r.push(upper);
    }
    if (mode != "r") q.write(f, 0);
    r.write(f, 1);
  });
}
void run_geqrf(const Frame& f) {
  const Tensor a = f.in(0);
  in_field(f, [&]<class T>(T) {
    const Matrices<T> all(a, batch_of(a));
    Results<T> factors, taus;
    for (int64_t i = 0; i < count_of(batch_of(a)); ++i) {
      Matrix<T> m = all[i];
      std::vector<T> tau;
      qr_factor(m, tau);
      factors.push(m);
      taus.push(tau);
    }
    factors.write(f, 0);
    taus.write(f, 1);
  });
}
template <class T>
std::vector<T> tau_of(const std::vector<T>& all, int64_t i, int64_t k) {
  return {all.begin() + i * k, all.begin() + (i + 1) * k};
}
void run_householder_product(const Frame& f) {
  const Tensor a = f.in(0);
  const int64_t k = f.in(1).size(-1);
  in_field(f, [&]<class T>(T) {
    const Matrices<T> all(a, batch_of(a));
    const std::vector<T> taus = load<T>(f.in(1));
    Results<T> out;
    for (int64_t i = 0; i < count_of(batch_of(a)); ++i) {
      const Matrix<T> m = all[i];
      Matrix<T> basis(m.rows, m.columns);
      for (int64_t d = 0; d < std::min(m.rows, m.columns); ++d) basis(d, d) = T(1);
      apply_q(m, tau_of(taus, i, k), basis, false);
      out.push(basis);
    }
    out.write(f, 0);
  });
}
// factors, tau, other: Q other, or other Q.
void run_ormqr(const Frame& f) {
  const Tensor a = f.in(0);
  const int64_t k = f.in(1).size(-1);
  const bool left = f.flag("left", true), adjoint = f.flag("transpose", false);
  in_field(f, [&]<class T>(T) {
    const Matrices<T> all(a, batch_of(a)), others(f.in(2), batch_of(a));
    const std::vector<T> taus = load<T>(f.in(1));
    Results<T> out;
    for (int64_t i = 0; i < count_of(batch_of(a)); ++i) {
      // c Q = (Q^H c^H)^H
      Matrix<T> b = left ? others[i] : others[i].adjoint();
      apply_q(all[i], tau_of(taus, i, k), b, left ? adjoint : !adjoint);
      out.push(left ? b : b.adjoint());
    }
    out.write(f, 0);
  });
}

constexpr KernelRow kRows[] = {
    {"aten.linalg_lu_factor_ex", run_lu_factor, true},
    {"aten.linalg_lu_factor", run_lu_factor, true},
    {"aten.linalg_lu", run_lu, true},
    {"aten.lu_unpack", run_lu_unpack, true},
    {"aten._linalg_det", run_det<false>, true},
    {"aten.linalg_det", run_det<false>, true},
    {"aten._linalg_slogdet", run_det<true>, true},
    {"aten.linalg_slogdet", run_det<true>, true},
    {"aten._linalg_solve_ex", run_solve, true},
    {"aten.linalg_solve", run_solve, true},
    {"aten.linalg_inv_ex", run_inverse, true},
    {"aten.linalg_inv", run_inverse, true},
    {"aten.linalg_cholesky_ex", run_cholesky<false>, true},
    {"aten.linalg_cholesky", run_cholesky<true>, true},
    {"aten.cholesky", run_cholesky<true>, true},
    {"aten.cholesky_solve", run_cholesky_solve, true},
    {"aten._cholesky_solve_helper", run_cholesky_solve, true},
    {"aten.cholesky_inverse", run_cholesky_inverse, true},
    {"aten.linalg_qr", run_qr, true},
    {"aten.geqrf", run_geqrf, true},
    {"aten.linalg_householder_product", run_householder_product, true},
    {"aten.ormqr", run_ormqr, true},
};

}  // namespace

KernelRows factorization_kernels() { return kRows; }

}  // namespace backplane::reference
