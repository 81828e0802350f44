// Layer, group and batch normalization, forward and backward.
#include <cmath>

#include "kernel_registry.h"

namespace backplane::reference {
namespace {

using std::int64_t;
using Values = std::vector<double>;

Values load_or(const Frame& f, int64_t i, int64_t n, double fallback) {
  return f.has(i) ? load<double>(f.in(i)) : Values(n, fallback);
}
void store_if(const Frame& f, int64_t i, const Values& v) {
  if (f.wants(i) && f.out(i).elements() == static_cast<int64_t>(v.size())) store(f.out(i), v);
}

struct Stat {
  double mean, rstd, squares;  // of the distances from the mean
};
Stat stat_of(const double* v, int64_t n, double eps) {
  double mean = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) mean += v[i];
  mean /= static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) squares += (v[i] - mean) * (v[i] - mean);
  return {mean, 1 / std::sqrt(squares / static_cast<double>(n) + eps), squares};
}

// ---- Layer norm: rows of n ----

void run_layer_norm(const Frame& f) {
  const Tensor in = f.in(0);
  const int64_t n = product(f.ints("normalized_shape")), rows = n ? in.elements() / n : 0;
  const Values x = load<double>(in), w = load_or(f, 1, n, 1), b = load_or(f, 2, n, 0);
  Values y(x.size()), mean(rows), rstd(rows);
  for (int64_t r = 0; r < rows; ++r) {
    const Stat s = stat_of(x.data() + r * n, n, f.real("eps", 1e-5));
    mean[r] = s.mean;
    rstd[r] = s.rstd;
    for (int64_t i = 0; i < n; ++i) y[r * n + i] = (x[r * n + i] - s.mean) * s.rstd * w[i] + b[i];
  }
  store_if(f, 0, y);
  store_if(f, 1, mean);
  store_if(f, 2, rstd);
}

// Gradient of a normalized run with respect to its input; g is already times the weight.
void input_gradient(const double* g, const double* x, Stat s, int64_t n, double* out) {
  double sum_g = 0, sum_gx = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum_g += g[i];
    sum_gx += g[i] * (x[i] - s.mean) * s.rstd;
  }
  const auto length = static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i)
    out[i] = s.rstd * (g[i] - sum_g / length - (x[i] - s.mean) * s.rstd * sum_gx / length);
}

void run_layer_norm_backward(const Frame& f) {
  const Tensor in = f.in(1);
  const int64_t n = product(f.ints("normalized_shape")), rows = n ? in.elements() / n : 0;
  const Values g = load<double>(f.in(0)), x = load<double>(in);
  const Values mean = load<double>(f.in(2)), rstd = load<double>(f.in(3));
  const Values w = load_or(f, 4, n, 1);
  Values gx(x.size()), gw(n), gb(n), scaled(n);
  for (int64_t r = 0; r < rows; ++r) {
    const double *gr = g.data() + r * n, *xr = x.data() + r * n;
    for (int64_t i = 0; i < n; ++i) {
      scaled[i] = gr[i] * w[i];
      gw[i] += gr[i] * (xr[i] - mean[r]) * rstd[r];
      gb[i] += gr[i];
    }
    input_gradient(scaled.data(), xr, {mean[r], rstd[r], 0}, n, gx.data() + r * n);
  }
  store_if(f, 0, gx);
  store_if(f, 1, gw);
  store_if(f, 2, gb);
}

void run_rms_norm(const Frame& f) {
  const Tensor in = f.in(0);
  const int64_t n = product(f.ints("normalized_shape")), rows = n ? in.elements() / n : 0;
  double eps = 0x1p-23;
  if (in.type == Type::kF64) eps = 0x1p-52;
  eps = f.real("eps", eps);
  const Values x = load<double>(in), w = load_or(f, 1, n, 1);
  Values y(x.size()), rstd(rows);
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t i = 0; i < n; ++i) squares += x[r * n + i] * x[r * n + i];
    rstd[r] = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
    for (int64_t i = 0; i < n; ++i) y[r * n + i] = x[r * n + i] * rstd[r] * w[i];
  }
  store_if(f, 0, y);
  store_if(f, 1, rstd);
}
void run_rms_norm_backward(const Frame& f) {
  const Tensor in = f.in(1);
  const int64_t n = product(f.ints("normalized_shape")), rows = n ? in.elements() / n : 0;
  const Values g = load<double>(f.in(0)), x = load<double>(in), rstd = load<double>(f.in(2));
  const Values w = load_or(f, 3, n, 1);
  Values gx(x.size()), gw(n);
  for (int64_t r = 0; r < rows; ++r) {
    const double *gr = g.data() + r * n, *xr = x.data() + r * n;
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      sum += gr[i] * w[i] * xr[i] * rstd[r];
      gw[i] += gr[i] * xr[i] * rstd[r];
    }
    for (int64_t i = 0; i < n; ++i)
      gx[r * n + i] = rstd[r] * (gr[i] * w[i] - xr[i] * rstd[r] * sum / static_cast<double>(n));
  }
  store_if(f, 0, gx);
  store_if(f, 1, gw);
}

// ---- Group norm: runs of C/group channels ----

struct Groups {
  explicit Groups(const Frame& f)
      : n(f.integer("N", 1)),
        c(f.integer("C", 1)),
        area(f.integer("HxW", 1)),
        groups(f.integer("group", 1)),
        run(c / groups * area) {}
  int64_t n, c, area, groups, run;
};
void run_group_norm(const Frame& f) {
  const Groups s(f);
  const Values x = load<double>(f.in(0)), w = load_or(f, 1, s.c, 1), b = load_or(f, 2, s.c, 0);
  Values y(x.size()), mean(s.n * s.groups), rstd(s.n * s.groups);
  for (int64_t r = 0; r < s.n * s.groups; ++r) {
    const Stat stat = stat_of(x.data() + r * s.run, s.run, f.real("eps", 1e-5));
    mean[r] = stat.mean;
    rstd[r] = stat.rstd;
    for (int64_t i = r * s.run; i < (r + 1) * s.run; ++i) {
      const int64_t c = i / s.area % s.c;
      y[i] = (x[i] - stat.mean) * stat.rstd * w[c] + b[c];
    }
  }
  store_if(f, 0, y);
  store_if(f, 1, mean);
  store_if(f, 2, rstd);
}
void run_group_norm_backward(const Frame& f) {
  const Groups s(f);
  const Values g = load<double>(f.in(0)), x = load<double>(f.in(1));
  const Values mean = load<double>(f.in(2)), rstd = load<double>(f.in(3));
  const Values w = load_or(f, 4, s.c, 1);
  Values gx(x.size()), gw(s.c), gb(s.c), scaled(s.run);
  for (int64_t r = 0; r < s.n * s.groups; ++r) {
    for (int64_t i = 0; i < s.run; ++i) {
      const int64_t at = r * s.run + i, c = at / s.area % s.c;
      scaled[i] = g[at] * w[c];
      gw[c] += g[at] * (x[at] - mean[r]) * rstd[r];
      gb[c] += g[at];
    }
    input_gradient(scaled.data(), x.data() + r * s.run, {mean[r], rstd[r], 0}, s.run,
                   gx.data() + r * s.run);
  }
  store_if(f, 0, gx);
  store_if(f, 1, gw);
  store_if(f, 2, gb);
}

// ---- Batch norm: per channel, over all other dimensions ----

Tensor channels_first(const Tensor& t) {
  Tensor out = t;
  std::swap(out.dims[0], out.dims[1]);
  std::swap(out.strides[0], out.strides[1]);
  return out;
}
// Where the results of an op's variant stand; -1: it has none.
struct BatchNormForm {
  bool running = true;                // operands 3, 4
  int training = -1;                  // -1: attribute
  int64_t mean_out = 3, var_out = 4;  // new running statistics
};
template <BatchNormForm kForm>
void run_batch_norm(const Frame& f) {
  const Tensor in = f.in(0);
  const int64_t channels = in.dims[1], n = channels ? in.elements() / channels : 0;
  const bool training = kForm.training < 0 ? f.flag("training", false) : kForm.training != 0;
  const double momentum = f.real("momentum", 0.1), eps = f.real("eps", 1e-5);
  const Values x = load<double>(channels_first(in));
  const Values w = load_or(f, 1, channels, 1), b = load_or(f, 2, channels, 0);
  Values mean(channels), rstd(channels), y(x.size()), running_mean, running_var;
  if (kForm.running) {
    running_mean = load_or(f, 3, channels, 0);
    running_var = load_or(f, 4, channels, 1);
  }
  for (int64_t c = 0; c < channels; ++c) {
    if (training) {
      const Stat s = stat_of(x.data() + c * n, n, eps);
      mean[c] = s.mean;
      rstd[c] = s.squares == 0 && eps == 0 ? 0 : s.rstd;  // equal values become zeros
      if (kForm.running) {
        running_mean[c] += momentum * (s.mean - running_mean[c]);
        running_var[c] += momentum * (s.squares / static_cast<double>(n - 1) - running_var[c]);
      }
    } else {
      mean[c] = running_mean[c];
      rstd[c] = 1 / std::sqrt(running_var[c] + eps);
    }
    for (int64_t i = c * n; i < (c + 1) * n; ++i) y[i] = (x[i] - mean[c]) * rstd[c] * w[c] + b[c];
  }
  store(channels_first(f.out()), y);
  store_if(f, 1, mean);
  store_if(f, 2, rstd);
  if (kForm.running && kForm.mean_out >= 0) {
    store_if(f, kForm.mean_out, running_mean);
    store_if(f, kForm.var_out, running_var);
  }
}

// grad_out, input, weight?, running_mean?, running_var?, save_mean?, save_invstd?
void batch_norm_backward(const Frame& f, bool training) {
  const Tensor in = f.in(1);
  const int64_t channels = in.dims[1], n = channels ? in.elements() / channels : 0;
  const double eps = f.real("eps", 1e-5);
  const Values g = load<double>(channels_first(f.in(0))), x = load<double>(channels_first(in));
  const Values w = load_or(f, 2, channels, 1);
  Values mean, rstd;
  if (training) {
    mean = load<double>(f.in(5));
    rstd = load<double>(f.in(6));
  } else {
    mean = load<double>(f.in(3));
    rstd = load<double>(f.in(4));
    for (double& v : rstd) v = 1 / std::sqrt(v + eps);
  }
  Values gx(x.size()), gw(channels), gb(channels), scaled(n);
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = c * n + i;
      scaled[i] = g[at] * w[c];
      gw[c] += g[at] * (x[at] - mean[c]) * rstd[c];
      gb[c] += g[at];
    }
    if (training)
      input_gradient(scaled.data(), x.data() + c * n, {mean[c], rstd[c], 0}, n, gx.data() + c * n);
    else
      for (int64_t i = 0; i < n; ++i) gx[c * n + i] = scaled[i] * rstd[c];
  }
  if (f.wants(0)) store(channels_first(f.out()), gx);
  store_if(f, 1, gw);
  store_if(f, 2, gb);
}
void run_native_batch_norm_backward(const Frame& f) {
  batch_norm_backward(f, f.flag("train", true));
}
void run_batch_norm_backward(const Frame& f) { batch_norm_backward(f, f.flag("update", true)); }

constexpr BatchNormForm kPlain{true, -1, -1, -1};
constexpr BatchNormForm kFunctional{};
constexpr BatchNormForm kNoStats{false, 1, -1, -1};
constexpr BatchNormForm kInference{true, 0, -1, -1};
constexpr BatchNormForm kUpdate{true, 1, 4, 5};

constexpr KernelRow kRows[] = {
    {"aten.native_layer_norm", run_layer_norm},
    {"aten.layer_norm", run_layer_norm},
    {"aten.native_layer_norm_backward", run_layer_norm_backward},
    {"aten._fused_rms_norm", run_rms_norm},
    {"aten._fused_rms_norm_backward", run_rms_norm_backward},
    {"aten.rms_norm", run_rms_norm},
    {"aten.native_group_norm", run_group_norm},
    {"aten.native_group_norm_backward", run_group_norm_backward},
    {"aten.native_batch_norm", run_batch_norm<kPlain>},
    {"aten._native_batch_norm_legit", run_batch_norm<kPlain>},
    {"aten._native_batch_norm_legit_functional", run_batch_norm<kFunctional>},
    {"aten._native_batch_norm_legit.no_stats", run_batch_norm<kNoStats>},
    {"aten._native_batch_norm_legit_no_training", run_batch_norm<kInference>},
    {"aten._batch_norm_no_update", run_batch_norm<kInference>},
    {"aten._batch_norm_with_update_functional", run_batch_norm<kUpdate>},
    {"aten.native_batch_norm_backward", run_native_batch_norm_backward},
    {"aten.batch_norm_backward", run_batch_norm_backward},
};

}  // namespace

KernelRows normalization_kernels() { return kRows; }

}  // namespace backplane::reference
