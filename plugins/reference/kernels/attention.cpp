// Scaled dot product attention, forward and backward. [batch, heads, length, width]; fewer heads
// of keys and values than of queries are shared by groups.
#include <cmath>
#include <limits>

#include "kernel_registry.h"
#include "kernels/gemm.h"

namespace backplane::reference {
namespace {

using std::int64_t;
using Values = std::vector<double>;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct Sizes {
  Sizes(const Tensor& q, const Tensor& k, const Tensor& v)
      : heads(q.dims[1]),
        shared(heads / std::max<int64_t>(k.dims[1], 1)),
        l(q.dims[2]),
        s(k.dims[2]),
        e(q.dims[3]),
        ev(v.dims[3]),
        count(q.dims[0] * heads) {}
  // Which head of keys belongs to a head of queries, both counted through the batch.
  int64_t key_head(int64_t i) const { return i / heads * (heads / shared) + i % heads / shared; }
  int64_t heads, shared, l, s, e, ev, count;
};

Values transposed(const double* v, int64_t rows, int64_t columns) {
  Values out(rows * columns);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) out[c * rows + r] = v[r * columns + c];
  return out;
}

struct Scores {
  Scores(const Frame& f, const Sizes& sizes, int64_t mask_operand) : n(sizes) {
    scale = f.present("scale") ? f.real("scale", 1) : 1 / std::sqrt(static_cast<double>(n.e));
    causal = f.flag("is_causal", false);
    if (f.has(mask_operand)) {
      mask = f.in(mask_operand);
      mask = mask.broadcast({n.count / n.heads, n.heads, n.l, n.s});
    }
  }
  // Masked and scaled scores of one head.
  Values of(int64_t head, const double* q, const double* k) const {
    Values out(n.l * n.s);
    const Values kt = transposed(k, n.s, n.e);
    gemm(n.l, n.s, n.e, q, kt.data(), out.data());
    Values bias;
    if (mask.type != Type::kNone)
      bias = load<double>(mask.select(0, head / n.heads).select(0, head % n.heads));
    for (int64_t i = 0; i < n.l * n.s; ++i) {
      out[i] *= scale;
      if (causal && i % n.s > i / n.s)
        out[i] = kMinusInfinity;
      else if (mask.type == Type::kBool)
        out[i] = bias[i] != 0 ? out[i] : kMinusInfinity;
      else if (!bias.empty())
        out[i] += bias[i];
    }
    return out;
  }
  const Sizes& n;
  double scale;
  bool causal;
  Tensor mask;
};

// query, key, value, attn_mask? -> output, logsumexp
void run_flash(const Frame& f) {
  const Sizes n(f.in(0), f.in(1), f.in(2));
  const Scores scores(f, n, 3);
  const Values q = load<double>(f.in(0)), k = load<double>(f.in(1)), v = load<double>(f.in(2));
  Values out(n.count * n.l * n.ev), log_sum(n.count * n.l);
  for (int64_t h = 0; h < n.count; ++h) {
    const int64_t kh = n.key_head(h);
    Values p = scores.of(h, q.data() + h * n.l * n.e, k.data() + kh * n.s * n.e);
    for (int64_t i = 0; i < n.l; ++i) {
      double* row = p.data() + i * n.s;
      double best = kMinusInfinity, sum = 0;
      for (int64_t j = 0; j < n.s; ++j) best = std::isnan(row[j]) || row[j] > best ? row[j] : best;
      const double base = best == kMinusInfinity ? 0 : best;  // a fully masked row gives zeros
      for (int64_t j = 0; j < n.s; ++j) sum += row[j] = std::exp(row[j] - base);
      for (int64_t j = 0; j < n.s; ++j) row[j] = sum == 0 ? 0 : row[j] / sum;
      log_sum[h * n.l + i] = base + std::log(sum);
    }
    gemm(n.l, n.ev, n.s, p.data(), v.data() + kh * n.s * n.ev, out.data() + h * n.l * n.ev);
  }
  store(f.out(0), out);
  if (f.wants(1) && f.out(1).elements() == n.count * n.l) store(f.out(1), log_sum);
}

// grad_out, query, key, value, out, logsumexp, attn_mask? -> gradients of query, key, value
void run_flash_backward(const Frame& f) {
  const Sizes n(f.in(1), f.in(2), f.in(3));
  const Scores scores(f, n, 6);
  const Values g = load<double>(f.in(0)), q = load<double>(f.in(1)), k = load<double>(f.in(2));
  const Values v = load<double>(f.in(3)), out = load<double>(f.in(4));
  const Values log_sum = load<double>(f.in(5));
  Values gq(q.size()), gk(k.size()), gv(v.size());
  for (int64_t h = 0; h < n.count; ++h) {
    const int64_t kh = n.key_head(h);
    const double *qh = q.data() + h * n.l * n.e, *kk = k.data() + kh * n.s * n.e;
    const double *gh = g.data() + h * n.l * n.ev, *vh = v.data() + kh * n.s * n.ev;
    Values p = scores.of(h, qh, kk), gp(n.l * n.s);
    for (int64_t i = 0; i < n.l * n.s; ++i) {
      const double base = log_sum[h * n.l + i / n.s];
      p[i] = base == kMinusInfinity ? 0 : std::exp(p[i] - base);
    }
    gemm(n.s, n.ev, n.l, transposed(p.data(), n.l, n.s).data(), gh, gv.data() + kh * n.s * n.ev);
    gemm(n.l, n.s, n.ev, gh, transposed(vh, n.s, n.ev).data(), gp.data());
    for (int64_t i = 0; i < n.l; ++i) {
      double dot = 0;
      for (int64_t c = 0; c < n.ev; ++c) dot += gh[i * n.ev + c] * out[(h * n.l + i) * n.ev + c];
      for (int64_t j = 0; j < n.s; ++j)
        gp[i * n.s + j] = p[i * n.s + j] * (gp[i * n.s + j] - dot) * scores.scale;
    }
    gemm(n.l, n.e, n.s, gp.data(), kk, gq.data() + h * n.l * n.e);
    gemm(n.s, n.e, n.l, transposed(gp.data(), n.l, n.s).data(), qh, gk.data() + kh * n.s * n.e);
  }
  if (f.wants(0)) store(f.out(0), gq);
  if (f.wants(1)) store(f.out(1), gk);
  if (f.wants(2)) store(f.out(2), gv);
}

constexpr KernelRow kRows[] = {
    {"aten._scaled_dot_product_flash_attention_for_cpu", run_flash},
    {"aten.scaled_dot_product_attention", run_flash},
    {"aten._scaled_dot_product_flash_attention_for_cpu_backward", run_flash_backward},
};

}  // namespace

KernelRows attention_kernels() { return kRows; }

}  // namespace backplane::reference
