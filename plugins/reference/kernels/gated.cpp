// Gated and recurrent layers, and pointwise ops with several results.
#include <cmath>

#include "kernel_registry.h"

namespace backplane::reference {
namespace {

using std::int64_t;
using Values = std::vector<double>;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

void store_if(const Frame& f, int64_t result, const Values& v) {
  if (f.wants(result)) store(f.out(result), v);
}

void run_glu(const Frame& f) {
  const Tensor in = f.in(0);
  const int64_t dim = f.integer("dim", -1), half = in.size(dim) / 2;
  const Values a = load<double>(in.slice(dim, 0, half));
  Values b = load<double>(in.slice(dim, half, half));
  for (std::size_t i = 0; i < a.size(); ++i) b[i] = a[i] * sigmoid(b[i]);
  store(f.out(), b);
}
// grad_output, self
void run_glu_backward(const Frame& f) {
  const Tensor in = f.in(1), out = f.out();
  const int64_t dim = f.integer("dim", -1), half = in.size(dim) / 2;
  const Values g = load<double>(f.in(0));
  Values a = load<double>(in.slice(dim, 0, half)), b = load<double>(in.slice(dim, half, half));
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double s = sigmoid(b[i]);
    b[i] = g[i] * a[i] * s * (1 - s);
    a[i] = g[i] * s;
  }
  store(out.slice(dim, 0, half), a);
  store(out.slice(dim, half, half), b);
}

// grad_output, self, weight -> gradients of both, before the weight's is summed
void run_prelu_backward(const Frame& f) {
  const Shape dims = f.out(f.wants(0) ? 0 : 1).dims;
  const auto wide = [&](int64_t operand) { return load<double>(f.in(operand).broadcast(dims)); };
  const Values g = wide(0), x = wide(1), w = wide(2);
  Values gx(x.size()), gw(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    gx[i] = x[i] > 0 ? g[i] : w[i] * g[i];
    gw[i] = x[i] > 0 ? 0 : x[i] * g[i];
  }
  store_if(f, 0, gx);
  store_if(f, 1, gw);
}
void run_log_sigmoid(const Frame& f) {
  Values x = load<double>(f.in(0)), z(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    z[i] = std::exp(-std::abs(x[i]));
    x[i] = std::fmin(x[i], 0.0) - std::log1p(z[i]) + (std::isnan(x[i]) ? x[i] : 0);
  }
  store(f.out(0), x);
  store_if(f, 1, z);
}
void run_frexp(const Frame& f) {
  Values x = load<double>(f.in(0));
  std::vector<int64_t> exponent(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    int e = 0;
    x[i] = std::frexp(x[i], &e);
    exponent[i] = e;
  }
  store_if(f, 0, x);
  if (f.wants(1)) store(f.out(1), exponent);
}
// self, min?, max?
void run_clamp(const Frame& f) {
  const Tensor out = f.out();
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    std::vector<T> x = load<T>(f.in(0).broadcast(out.dims));
    for (int64_t side = 1; side <= 2; ++side) {
      if (!f.has(side)) continue;
      const std::vector<T> limit = load<T>(f.in(side).broadcast(out.dims));
      for (std::size_t i = 0; i < x.size(); ++i) {
        const T l = limit[i];
        if (x[i] != x[i]) continue;
        if (l != l || (side == 1 ? x[i] < l : x[i] > l)) x[i] = l;
      }
    }
    store(out, x);
  };
  if (is_integral(out.type))
    run(int64_t{});
  else
    run(double{});
}

// grad, mask -> grad where mask is set, scaled
void run_masked_scale(const Frame& f) {
  const Shape dims = f.out().dims;
  Values g = load<double>(f.in(0).broadcast(dims));
  const Values mask = load<double>(f.in(1).broadcast(dims));
  for (std::size_t i = 0; i < g.size(); ++i) g[i] *= mask[i] * f.real("scale", 1);
  store(f.out(), g);
}

// ---- v g / |v|, the norm over all dimensions but one ----

struct Directions {
  Directions(const Tensor& v, int64_t d) : dim(wrap_dim(d, v.rank())), slices(v.dims[dim]) {}
  int64_t dim, slices;
};
void run_weight_norm(const Frame& f) {
  const Tensor v = f.in(0), out = f.out(0);
  const Directions s(v, f.integer("dim", 0));
  const Values g = load<double>(f.in(1));
  Values norms;
  for (int64_t i = 0; i < s.slices; ++i) {
    Values x = load<double>(v.select(s.dim, i));
    double sum = 0;
    for (double e : x) sum += e * e;
    norms.push_back(std::sqrt(sum));
    for (double& e : x) e *= g[i] / norms.back();
    store(out.select(s.dim, i), x);
  }
  store_if(f, 1, norms);
}
// grad_w, v, g, norms -> gradients of v and g
void run_weight_norm_backward(const Frame& f) {
  const Tensor v = f.in(1);
  const Directions s(v, f.integer("dim", 0));
  const Values g = load<double>(f.in(2)), norms = load<double>(f.in(3));
  Values gg;
  for (int64_t i = 0; i < s.slices; ++i) {
    Values gw = load<double>(f.in(0).select(s.dim, i));
    const Values x = load<double>(v.select(s.dim, i));
    double dot = 0;
    for (std::size_t k = 0; k < x.size(); ++k) dot += gw[k] * x[k];
    gg.push_back(dot / norms[i]);
    for (std::size_t k = 0; k < x.size(); ++k)
      gw[k] = g[i] / norms[i] * (gw[k] - x[k] * dot / (norms[i] * norms[i]));
    if (f.wants(0)) store(f.out(0).select(s.dim, i), gw);
  }
  store_if(f, 1, gg);
}

// ---- One layer of a recurrent network over time: [time, batch, ...] ----

enum CellKind : int64_t { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };

// input, w_ih, w_hh, b_ih, b_hh, hx, cx -> output, hy, cy
void run_rnn_layer(const Frame& f) {
  Tensor in = f.in(0), out = f.out(0);
  if (f.flag("batch_first", false)) {
    in = in.permuted({1, 0, 2});
    out = out.permuted({1, 0, 2});
  }
  const int64_t time = in.dims[0], batch = in.dims[1], width = in.dims[2];
  const int64_t hidden = f.integer("hidden_size", 1), mode = f.integer("mode", kLstm);
  const int64_t gates = mode == kLstm ? 4 : mode == kGru ? 3 : 1;
  const bool biased = f.flag("has_biases", true);
  const Values x = load<double>(in), w = load<double>(f.in(1)), u = load<double>(f.in(2));
  const Values b = biased ? load<double>(f.in(3)) : Values(gates * hidden);
  const Values d = biased ? load<double>(f.in(4)) : Values(gates * hidden);
  Values h = load<double>(f.in(5)), c = load<double>(f.in(6)), y(time * batch * hidden);
  c.resize(h.size());
  Values from_input(gates * hidden), from_state(gates * hidden);
  for (int64_t step = 0; step < time; ++step) {
    const int64_t t = f.flag("reverse", false) ? time - 1 - step : step;
    for (int64_t n = 0; n < batch; ++n) {
      const double* xn = x.data() + (t * batch + n) * width;
      double *hn = h.data() + n * hidden, *cn = c.data() + n * hidden;
      for (int64_t g = 0; g < gates * hidden; ++g) {
        from_input[g] = b[g];
        from_state[g] = d[g];
        for (int64_t k = 0; k < width; ++k) from_input[g] += w[g * width + k] * xn[k];
        for (int64_t k = 0; k < hidden; ++k) from_state[g] += u[g * hidden + k] * hn[k];
      }
      const auto gate = [&](int64_t g, int64_t k) {
        return from_input[g * hidden + k] + from_state[g * hidden + k];
      };
      for (int64_t k = 0; k < hidden; ++k) {
        if (mode == kLstm) {  // input, forget, cell, output
          cn[k] = sigmoid(gate(1, k)) * cn[k] + sigmoid(gate(0, k)) * std::tanh(gate(2, k));
          hn[k] = sigmoid(gate(3, k)) * std::tanh(cn[k]);
        } else if (mode == kGru) {  // reset, update, new
          const double fresh = std::tanh(from_input[2 * hidden + k] +
                                         sigmoid(gate(0, k)) * from_state[2 * hidden + k]);
          hn[k] = fresh + sigmoid(gate(1, k)) * (hn[k] - fresh);
        } else {
          hn[k] = mode == kTanh ? std::tanh(gate(0, k)) : gate(0, k) < 0 ? 0 : gate(0, k);
        }
        y[(t * batch + n) * hidden + k] = hn[k];
      }
    }
  }
  store(out, y);
  store_if(f, 1, h);
  store_if(f, 2, c);
}

constexpr KernelRow kRows[] = {
    {"aten.glu", run_glu},
    {"aten.glu_backward", run_glu_backward},
    {"aten._prelu_kernel_backward", run_prelu_backward},
    {"aten.log_sigmoid_forward", run_log_sigmoid},
    {"aten.frexp.Tensor", run_frexp},
    {"aten.clamp.Tensor", run_clamp},
    {"aten.native_dropout_backward", run_masked_scale},
    {"aten._masked_scale", run_masked_scale},
    {"aten._weight_norm_interface", run_weight_norm},
    {"aten._weight_norm", run_weight_norm},
    {"aten._weight_norm_interface_backward", run_weight_norm_backward},
    {"aten.mkldnn_rnn_layer", run_rnn_layer},
};

}  // namespace

KernelRows gated_kernels() { return kRows; }

}  // namespace backplane::reference
