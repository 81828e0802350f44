// Reductions.
#include "kernels/reduce.h"

#include <cmath>
#include <numeric>

#include "kernel_registry.h"
#include "kernels/pointwise.h"

namespace backplane::reference {
namespace {

using std::int64_t;

template <class T>
bool is_nan(T v) {
  return v != v;
}

void run_sum(const Frame& f) {
  const Reduction r = arrange(f, f.in(0));
  in_domain({f.out().type}, [&]<class T>(T) {
    store(f.out(), reduce_runs_as<T>(f.out().type, r, [](const T* v, int64_t n) {
            T sum(0);
            for (int64_t i = 0; i < n; ++i) sum = add(sum, v[i]);
            return sum;
          }));
  });
}
void run_nansum(const Frame& f) {
  const Reduction r = arrange(f, f.in(0));
  in_domain({f.out().type}, [&]<class T>(T) {
    store(f.out(), reduce_runs_as<T>(f.out().type, r, [](const T* v, int64_t n) {
            T sum(0);
            for (int64_t i = 0; i < n; ++i)
              if (!is_nan(v[i])) sum = add(sum, v[i]);
            return sum;
          }));
  });
}
void run_mean(const Frame& f) {
  const Reduction r = arrange(f, f.in(0));
  // PyTorch rounds the mean alone to a half.
  const Type as = bytes_of(f.out().type) == 2 ? Type::kF32 : f.out().type;
  in_domain({f.out().type, Type::kF64}, [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, int64_t>)
      store(f.out(), reduce_runs_as<T>(as, r, [](const T* v, int64_t n) {
              return std::accumulate(v, v + n, T(0)) / T(static_cast<double>(n));
            }));
  });
}
void run_prod(const Frame& f) {
  const Reduction r = arrange(f, f.in(0));
  in_domain({f.out().type}, [&]<class T>(T) {
    store(f.out(), reduce_runs_as<T>(f.out().type, r, [](const T* v, int64_t n) {
            T out(1);
            for (int64_t i = 0; i < n; ++i) out = mul(out, v[i]);
            return out;
          }));
  });
}

// Index of the extreme element, the first of equals; the first NaN wins.
template <bool kMax, class T>
int64_t extreme(const T* v, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (is_nan(v[i])) return i;
    if (kMax ? v[i] > v[best] : v[i] < v[best]) best = i;
  }
  return best;
}
template <bool kMax>
void write_extreme(const Frame& f, const Reduction& r, int64_t values, int64_t indices) {
  if (r.length == 0) {
    if (r.kept) throw KernelError("extreme of an empty dimension");
    return;
  }
  in_real_domain(r.tensor.type, [&]<class T>(T) {
    const std::vector<T> v = load<T>(r.tensor);
    std::vector<T> best(r.kept);
    std::vector<int64_t> at(r.kept);
    for (int64_t i = 0; i < r.kept; ++i) {
      at[i] = extreme<kMax>(v.data() + i * r.length, r.length);
      best[i] = v[i * r.length + at[i]];
    }
    if (values >= 0 && f.wants(values)) store(f.out(values), best);
    if (indices >= 0 && f.wants(indices)) store(f.out(indices), at);
  });
}
template <bool kMax>
void run_extreme(const Frame& f) {
  write_extreme<kMax>(f, arrange(f, f.in(0)), 0, -1);
}
template <bool kMax>
void run_extreme_dim(const Frame& f) {
  write_extreme<kMax>(f, arrange(f, f.in(0)), 0, 1);
}
template <bool kMax>
void run_arg_extreme(const Frame& f) {
  write_extreme<kMax>(f, arrange(f, f.in(0)), -1, 0);
}
void run_aminmax(const Frame& f) {
  const Reduction r = arrange(f, f.in(0));
  write_extreme<false>(f, r, 0, -1);
  write_extreme<true>(f, r, 1, -1);
}

template <bool kAll>
void run_truth(const Frame& f) {
  const Reduction r = arrange(f, f.in(0));
  in_domain({f.in(0).type}, [&]<class T>(T) {
    store(f.out(), reduce_runs<T>(r, [](const T* v, int64_t n) {
            for (int64_t i = 0; i < n; ++i)
              if ((v[i] != T(0)) != kAll) return int64_t{!kAll};
            return int64_t{kAll};
          }));
  });
}
void run_count_nonzero(const Frame& f) {
  const Reduction r = arrange(f, f.in(0));
  in_domain({f.in(0).type}, [&]<class T>(T) {
    store(f.out(), reduce_runs<T>(r, [](const T* v, int64_t n) {
            return static_cast<int64_t>(n - std::count(v, v + n, T(0)));
          }));
  });
}

// Sum of squared distances from the mean, and the mean.
struct Moments {
  Complex mean;
  double squares;
};
template <class T>
Moments moments(const T* v, int64_t n) {
  T mean(0);
  for (int64_t i = 0; i < n; ++i) mean += v[i];
  mean /= static_cast<double>(n);
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += std::norm(v[i] - mean);
  return {Complex(mean), squares};
}
template <bool kRoot, bool kMean>
void run_variance(const Frame& f) {
  const Reduction r = arrange(f, f.in(0));
  double correction = 1;
  if (f.present("correction"))
    correction = f.real("correction", 1);
  else if (f.present("unbiased"))
    correction = f.flag("unbiased", true) ? 1 : 0;
  std::vector<Moments> all;
  if (is_complex(f.in(0).type))
    all = reduce_runs<Complex>(r, [](const Complex* v, int64_t n) { return moments(v, n); });
  else
    all = reduce_runs<double>(r, [](const double* v, int64_t n) { return moments(v, n); });
  std::vector<double> variance;
  std::vector<Complex> mean;
  // Of nothing it is NaN, whatever the correction.
  const double divisor =
      r.length == 0 ? 0 : std::fmax(0.0, static_cast<double>(r.length) - correction);
  for (const Moments& m : all) {
    variance.push_back(kRoot ? std::sqrt(m.squares / divisor) : m.squares / divisor);
    mean.push_back(m.mean);
  }
  store(f.out(0), variance);
  if (kMean && f.wants(1)) store(f.out(1), mean);
}

void run_norm(const Frame& f) {
  const Reduction r = arrange(f, f.in(0));
  const double p = f.present("ord") ? f.real("ord", 2) : f.real("p", 2);
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    store(f.out(), reduce_runs<T>(r, [&](const T* v, int64_t n) {
            std::vector<double> magnitude(n);
            for (int64_t i = 0; i < n; ++i) magnitude[i] = std::abs(v[i]);
            return norm_of(magnitude, p);
          }));
  };
  if (is_complex(f.in(0).type))
    run(Complex{});
  else
    run(double{});
}
void run_renorm(const Frame& f) {
  const Tensor in = f.in(0);
  const double p = f.real("p", 2), limit = f.real("maxnorm", 1);
  const int64_t dim = wrap_dim(f.integer("dim", 0), in.rank());
  for (int64_t i = 0; i < in.dims[dim]; ++i) {
    const Tensor from = in.select(dim, i);
    in_domain({in.type, Type::kF64}, [&]<class T>(T) {
      if constexpr (!std::is_same_v<T, int64_t>) {
        std::vector<T> v = load<T>(from);
        std::vector<double> magnitude;
        for (const T& x : v) magnitude.push_back(std::abs(x));
        const double norm = norm_of(magnitude, p);
        if (norm > limit)
          for (T& x : v) x *= limit / (norm + 1e-7);
        store(f.out().select(dim, i), v);
      }
    });
  }
}

void run_logsumexp(const Frame& f) {
  const Reduction r = arrange(f, f.in(0));
  if (is_complex(f.in(0).type)) {
    store(f.out(), reduce_runs<Complex>(r, [](const Complex* v, int64_t n) {
            double best = -INFINITY;
            for (int64_t i = 0; i < n; ++i) best = std::fmax(best, v[i].real());
            if (std::isinf(best)) best = 0;
            Complex sum = 0;
            for (int64_t i = 0; i < n; ++i) sum += std::exp(v[i] - best);
            return std::log(sum) + best;
          }));
    return;
  }
  store(f.out(), reduce_runs<double>(r, [](const double* v, int64_t n) {
          double best = -INFINITY;
          for (int64_t i = 0; i < n; ++i) {
            if (std::isnan(v[i])) return v[i];
            best = std::fmax(best, v[i]);
          }
          if (std::isinf(best)) return best;
          double sum = 0;
          for (int64_t i = 0; i < n; ++i) sum += std::exp(v[i] - best);
          return std::log(sum) + best;
        }));
}
void run_trace(const Frame& f) {
  Tensor in = f.in(0);
  in.dims = {std::min(in.dims[0], in.dims[1])};
  in.strides = {in.strides[0] + in.strides[1]};
  in_domain({f.out().type}, [&]<class T>(T) {
    const std::vector<T> v = load<T>(in);
    const T sum = std::accumulate(v.begin(), v.end(), T(0));
    store(f.out(), &sum);
  });
}
void run_equal(const Frame& f) {
  const Tensor a = f.in(0), b = f.in(1);
  int64_t same = a.dims == b.dims;
  if (same)
    in_domain({a.type, b.type}, [&]<class T>(T) { same = load<T>(a) == load<T>(b) ? 1 : 0; });
  store(f.out(), &same);
}

constexpr KernelRow kRows[] = {
    {"aten.sum", run_sum, true},
    {"aten.sum.dim_IntList", run_sum, true},
    {"aten.nansum", run_nansum},
    {"aten.mean", run_mean, true},
    {"aten.mean.dim", run_mean, true},
    {"aten.prod", run_prod, true},
    {"aten.prod.dim_int", run_prod, true},
    {"aten.amax", run_extreme<true>},
    {"aten.amin", run_extreme<false>},
    {"aten.aminmax", run_aminmax},
    {"aten.max", run_extreme<true>},
    {"aten.min", run_extreme<false>},
    {"aten.max.dim", run_extreme_dim<true>},
    {"aten.min.dim", run_extreme_dim<false>},
    {"aten.argmax", run_arg_extreme<true>},
    {"aten.argmin", run_arg_extreme<false>},
    {"aten.any", run_truth<false>, true},
    {"aten.any.dim", run_truth<false>, true},
    {"aten.any.dims", run_truth<false>, true},
    {"aten.all", run_truth<true>, true},
    {"aten.all.dim", run_truth<true>, true},
    {"aten.all.dims", run_truth<true>, true},
    {"aten.count_nonzero", run_count_nonzero, true},
    {"aten.count_nonzero.dim_IntList", run_count_nonzero, true},
    {"aten.var", run_variance<false, false>, true},
    {"aten.var.dim", run_variance<false, false>, true},
    {"aten.var.correction", run_variance<false, false>, true},
    {"aten.std", run_variance<true, false>, true},
    {"aten.std.dim", run_variance<true, false>, true},
    {"aten.std.correction", run_variance<true, false>, true},
    {"aten.var_mean.correction", run_variance<false, true>, true},
    {"aten.var_mean.dim", run_variance<false, true>, true},
    {"aten.var_mean", run_variance<false, true>, true},
    {"aten.std_mean.correction", run_variance<true, true>, true},
    {"aten.linalg_vector_norm", run_norm, true},
    {"aten.norm.Scalar", run_norm, true},
    {"aten.norm.ScalarOpt_dim", run_norm, true},
    {"aten.norm.ScalarOpt_dtype", run_norm, true},
    {"aten.norm.ScalarOpt_dim_dtype", run_norm, true},
    {"aten.renorm", run_renorm, true},
    {"aten.logsumexp", run_logsumexp, true},
    {"aten.trace", run_trace, true},
    {"aten.equal", run_equal, true},
};

}  // namespace

KernelRows reduction_kernels() { return kRows; }

}  // namespace backplane::reference
