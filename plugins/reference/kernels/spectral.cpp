// Eigenvalues and singular values.
#include "kernel_registry.h"
#include "kernels/matrix.h"

namespace backplane::reference {
namespace {

int64_t count_of(const Shape& batch) { return product(batch); }

// The triangle that is read, as a full Hermitian matrix.
template <class T>
Matrix<T> hermitian_of(const Matrix<T>& a, bool lower) {
  Matrix<T> out(a.rows, a.rows);
  for (int64_t r = 0; r < a.rows; ++r)
    for (int64_t c = 0; c < a.rows; ++c) {
      const bool given = lower ? c <= r : c >= r;
      out(r, c) = given ? a(r, c) : conj_of(a(c, r));
      if (r == c) out(r, c) = T(real_of(a(r, c)));
    }
  return out;
}
void run_eigh(const Frame& f) {
  const Tensor a = f.in(0);
  in_field(f, [&]<class T>(T) {
    const Matrices<T> all(a, batch_of(a));
    Results<double> values;
    Results<T> vectors;
    for (int64_t i = 0; i < count_of(batch_of(a)); ++i) {
      const Eigen<T> e = eigh(hermitian_of(all[i], f.text("UPLO", "L") != "U"));
      values.push(e.values);
      vectors.push(e.vectors);
    }
    values.write(f, 0);
    if (f.flag("compute_v", true)) vectors.write(f, 1);
  });
}

// U, S, Vh
void run_svd(const Frame& f) {
  const Tensor a = f.in(0);
  const bool full = f.flag("full_matrices", f.row().name == "aten.linalg_svd");
  in_field(f, [&]<class T>(T) {
    const Matrices<T> all(a, batch_of(a));
    Results<double> s;
    Results<T> u, vh;
    for (int64_t i = 0; i < count_of(batch_of(a)); ++i) {
      const Svd<T> d = svd(all[i]);
      s.push(d.s);
      u.push(full ? complete_basis(d.u, d.u.rows) : d.u);
      vh.push(full ? complete_basis(d.v, d.v.rows).adjoint() : d.v.adjoint());
    }
    s.write(f, 1);
    if (!f.flag("compute_uv", true)) return;
    u.write(f, 0);
    vh.write(f, 2);
  });
}
void run_svdvals(const Frame& f) {
  const Tensor a = f.in(0);
  in_field(f, [&]<class T>(T) {
    const Matrices<T> all(a, batch_of(a));
    Results<double> s;
    for (int64_t i = 0; i < count_of(batch_of(a)); ++i) s.push(svd(all[i]).s);
    s.write(f, 0);
  });
}

// ---- General matrices: the shifted QR algorithm on the complex Hessenberg form ----

using Matrixc = Matrix<Complex>;

// h = q^H a q with zeros below the first subdiagonal.
void to_hessenberg(Matrixc& h, Matrixc& q) {
  const int64_t n = h.rows;
  for (int64_t k = 0; k + 2 < n; ++k) {
    std::vector<Complex> v(n, 0);
    double norm = 0;
    for (int64_t r = k + 1; r < n; ++r) norm += std::norm(v[r] = h(r, k));
    norm = std::sqrt(norm);
    if (norm == 0) continue;
    const Complex phase = v[k + 1] == Complex(0) ? Complex(1) : v[k + 1] / std::abs(v[k + 1]);
    v[k + 1] += phase * norm;
    double length = 0;
    for (const Complex& x : v) length += std::norm(x);
    const auto reflect_left = [&](Matrixc& m) {
      for (int64_t c = 0; c < n; ++c) {
        Complex dot = 0;
        for (int64_t r = k + 1; r < n; ++r) dot += std::conj(v[r]) * m(r, c);
        for (int64_t r = k + 1; r < n; ++r) m(r, c) -= 2.0 / length * dot * v[r];
      }
    };
    const auto reflect_right = [&](Matrixc& m) {
      for (int64_t r = 0; r < n; ++r) {
        Complex dot = 0;
        for (int64_t c = k + 1; c < n; ++c) dot += m(r, c) * v[c];
        for (int64_t c = k + 1; c < n; ++c) m(r, c) -= 2.0 / length * dot * std::conj(v[c]);
      }
    };
    reflect_left(h);
    reflect_right(h);
    reflect_right(q);
  }
}

// a = q t q^H with t upper triangular.
void schur(Matrixc& t, Matrixc& q) {
  const int64_t n = t.rows;
  q = Matrixc::identity(n);
  to_hessenberg(t, q);
  int64_t last = n - 1;
  for (int64_t rounds = 0; last > 0 && rounds < 200 * n; ++rounds) {
    int64_t first = last;
    for (; first > 0; --first) {
      const double around = std::abs(t(first, first)) + std::abs(t(first - 1, first - 1));
      if (std::abs(t(first, first - 1)) <= 1e-16 * (around > 0 ? around : 1)) break;
    }
    if (first > 0) t(first, first - 1) = 0;
    if (first == last) {
      --last;
      continue;
    }
    // The eigenvalue of the last 2 x 2 block nearest to its corner.
    const Complex a = t(last - 1, last - 1), b = t(last - 1, last), c = t(last, last - 1),
                  d = t(last, last);
    const Complex root = std::sqrt((a - d) * (a - d) / 4.0 + b * c), middle = (a + d) / 2.0;
    Complex shift =
        std::abs(middle + root - d) < std::abs(middle - root - d) ? middle + root : middle - root;
    if (rounds % 20 == 19) shift += std::abs(c);  // out of a cycle
    std::vector<std::pair<double, Complex>> turns;
    for (int64_t k = first; k <= last; ++k) t(k, k) -= shift;
    for (int64_t k = first; k < last; ++k) {
      const double length = std::hypot(std::abs(t(k, k)), std::abs(t(k + 1, k)));
      Complex x = length == 0 ? Complex(1) : t(k, k) / length;
      const Complex y = length == 0 ? Complex(0) : t(k + 1, k) / length;
      const Complex phase = std::abs(x) == 0 ? Complex(1) : x / std::abs(x);
      const double cosine = std::abs(x);
      const Complex sine = y * std::conj(phase);
      turns.emplace_back(cosine, sine);
      for (int64_t j = 0; j < n; ++j) {
        const Complex u = t(k, j), v = t(k + 1, j);
        t(k, j) = cosine * u + std::conj(sine) * v;
        t(k + 1, j) = -sine * u + cosine * v;
      }
    }
    for (int64_t k = first; k < last; ++k) {
      const auto [cosine, sine] = turns[k - first];
      const auto turn_columns = [&, cosine = cosine, sine = sine](Matrixc& m) {
        for (int64_t r = 0; r < n; ++r) {
          const Complex u = m(r, k), v = m(r, k + 1);
          m(r, k) = cosine * u + sine * v;
          m(r, k + 1) = -std::conj(sine) * u + cosine * v;
        }
      };
      turn_columns(t);
      turn_columns(q);
    }
    for (int64_t k = first; k <= last; ++k) t(k, k) += shift;
  }
}

// values[, vectors]: columns of unit length whose largest component is real, as LAPACK's.
template <bool kVectors>
void run_eig(const Frame& f) {
  const Tensor a = f.in(0);
  const Matrices<Complex> all(a, batch_of(a));
  Results<Complex> values, vectors;
  for (int64_t i = 0; i < count_of(batch_of(a)); ++i) {
    Matrixc t = all[i], q;
    const int64_t n = t.rows;
    check_finite(t, "linalg_eig");
    schur(t, q);
    for (int64_t k = 0; k < n; ++k) values.v.push_back(t(k, k));
    if (!kVectors) continue;
    Matrixc x(n, n);
    for (int64_t k = 0; k < n; ++k) {
      x(k, k) = 1;
      for (int64_t r = k; r-- > 0;) {
        Complex sum = 0;
        for (int64_t c = r + 1; c <= k; ++c) sum -= t(r, c) * x(c, k);
        Complex gap = t(r, r) - t(k, k);
        if (std::abs(gap) < 1e-300) gap = 1e-16 * (std::abs(t(k, k)) + 1e-300);
        x(r, k) = sum / gap;
      }
    }
    x = q * x;
    for (int64_t c = 0; c < n; ++c) {
      double norm = 0;
      int64_t largest = 0;
      for (int64_t r = 0; r < n; ++r) {
        norm += std::norm(x(r, c));
        if (std::abs(x(r, c)) > std::abs(x(largest, c)) * (1 + 1e-9)) largest = r;
      }
      const Complex phase = std::conj(x(largest, c)) / std::abs(x(largest, c));
      for (int64_t r = 0; r < n; ++r) x(r, c) *= phase / std::sqrt(norm);
    }
    vectors.push(x);
  }
  values.write(f, 0);
  if (kVectors) vectors.write(f, 1);
}

constexpr KernelRow kRows[] = {
    {"aten._linalg_eigh", run_eigh, true},
    {"aten.linalg_eigh", run_eigh, true},
    {"aten.linalg_eigvalsh", run_eigh, true},
    {"aten._linalg_svd", run_svd, true},
    {"aten.linalg_svd", run_svd, true},
    {"aten.linalg_svdvals", run_svdvals, true},
    {"aten.linalg_eig", run_eig<true>, true},
    {"aten._linalg_eigvals", run_eig<false>, true},
    {"aten.linalg_eigvals", run_eig<false>, true},
};

}  // namespace

KernelRows spectral_kernels() { return kRows; }

}  // namespace backplane::reference
