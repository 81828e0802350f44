// Losses and their gradients.
#include <cmath>
#include <limits>

#include "kernel_registry.h"
#include "kernels/pointwise.h"

namespace backplane::reference {
namespace {

using std::int64_t;
using Values = std::vector<double>;

enum Reduction : int64_t { kEach = 0, kMean = 1, kSum = 2 };

// Writes losses as they are, their sum or their mean.
void write_reduced(const Frame& f, const Values& each, double divisor) {
  const int64_t reduction = f.integer("reduction", kMean);
  if (reduction == kEach) return store(f.out(), each);
  double sum = 0;
  for (double v : each) sum += v;
  if (reduction == kMean) sum /= divisor;
  store(f.out(), &sum);
}
// The gradient that reaches each loss: grad_output, spread.
Values spread_gradient(const Tensor& grad, int64_t n, int64_t reduction, double divisor) {
  if (reduction == kEach) return load<double>(grad);
  Values g = load<double>(grad);
  return Values(n, reduction == kMean ? g.at(0) / divisor : g.at(0));
}

// ---- Of two tensors ----

Shape broadcast_shape(const Shape& a, const Shape& b) {
  Shape out = a.size() < b.size() ? b : a;
  const Shape& other = a.size() < b.size() ? a : b;
  for (std::size_t i = 1; i <= other.size(); ++i) {
    int64_t& dim = out[out.size() - i];
    if (dim == 1) dim = other[other.size() - i];
  }
  return out;
}

template <double (*kLoss)(double, double, const Frame&)>
void run_pairwise(const Frame& f) {
  const Shape dims = broadcast_shape(f.in(0).dims, f.in(1).dims);
  const Values a = load<double>(f.in(0).broadcast(dims)), b = load<double>(f.in(1).broadcast(dims));
  Values out(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) out[i] = kLoss(a[i], b[i], f);
  if (f.has(2)) {  // weights of binary cross entropy
    const Values w = load<double>(f.in(2).broadcast(dims));
    for (std::size_t i = 0; i < out.size(); ++i) out[i] *= w[i];
  }
  write_reduced(f, out, static_cast<double>(out.size()));
}
// grad_output, self, target[, weight] -> gradient of self
template <double (*kSlope)(double, double, const Frame&)>
void run_pairwise_backward(const Frame& f) {
  const Shape dims = f.out().dims;
  const Values a = load<double>(f.in(1).broadcast(dims)), b = load<double>(f.in(2).broadcast(dims));
  const auto n = static_cast<int64_t>(a.size());
  const auto given = static_cast<double>(f.in(1).elements());  // as PyTorch: before broadcasting
  const int64_t reduction = f.integer("reduction", kMean);
  Values g = reduction == kEach || f.in(0).elements() == n ? load<double>(f.in(0).broadcast(dims))
                                                           : Values(n, load<double>(f.in(0)).at(0));
  for (int64_t i = 0; i < n; ++i) {
    g[i] *= kSlope(a[i], b[i], f);
    if (reduction == kMean) g[i] /= given;
  }
  if (f.has(3)) {
    const Values w = load<double>(f.in(3).broadcast(dims));
    for (int64_t i = 0; i < n; ++i) g[i] *= w[i];
  }
  store(f.out(), g);
}

double square(double a, double b, const Frame&) { return (a - b) * (a - b); }
double square_slope(double a, double b, const Frame&) { return 2 * (a - b); }
double absolute(double a, double b, const Frame&) { return std::abs(a - b); }
double smooth(double a, double b, const Frame& f) {
  const double z = std::abs(a - b), beta = f.real("beta", 1);
  return z < beta ? 0.5 * z * z / beta : z - 0.5 * beta;
}
double smooth_slope(double a, double b, const Frame& f) {
  const double x = a - b, beta = f.real("beta", 1);
  return x <= -beta ? -1 : x >= beta ? 1 : beta == 0 ? 0 : x / beta;
}
double huber(double a, double b, const Frame& f) {
  const double z = std::abs(a - b), delta = f.real("delta", 1);
  return z < delta ? 0.5 * z * z : delta * (z - 0.5 * delta);
}
double huber_slope(double a, double b, const Frame& f) {
  const double x = a - b, delta = f.real("delta", 1);
  return x < -delta ? -delta : x > delta ? delta : x;
}
double cross_entropy(double x, double y, const Frame&) {
  if (!(x >= 0 && x <= 1 && y >= 0 && y <= 1))
    throw KernelError("binary_cross_entropy: not between 0 and 1");
  return (y - 1) * std::fmax(std::log1p(-x), -100) - y * std::fmax(std::log(x), -100);
}
double cross_entropy_slope(double x, double y, const Frame&) {
  return (x - y) / std::fmax((1 - x) * x, 1e-12);
}
double soft_margin(double x, double y, const Frame&) { return std::log1p(std::exp(-x * y)); }
double soft_margin_slope(double x, double y, const Frame&) { return -y / (1 + std::exp(x * y)); }

// self, target, weight?, pos_weight?
void run_logits(const Frame& f) {
  const Shape dims = f.in(0).dims;
  const Values x = load<double>(f.in(0)), y = load<double>(f.in(1).broadcast(dims));
  const Values w = f.has(2) ? load<double>(f.in(2).broadcast(dims)) : Values(x.size(), 1.0);
  const Values p = f.has(3) ? load<double>(f.in(3).broadcast(dims)) : Values{};
  Values each(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double log_rest = std::log1p(std::exp(-std::abs(x[i]))) + std::fmax(-x[i], 0);
    // A target may be infinite, which a weight of one must not multiply by zero.
    const double share = p.empty() ? 1 : 1 + (p[i] - 1) * y[i];
    each[i] = w[i] * ((1 - y[i]) * x[i] + share * log_rest);
  }
  write_reduced(f, each, static_cast<double>(each.size()));
}

// ---- Negative log likelihood: self [N, C, ...] or [C], target without C ----

struct Likelihood {
  Likelihood(const Frame& f, int64_t self)
      : classes(f.in(self).rank() == 1 ? f.in(self).dims[0] : f.in(self).dims[1]),
        inner(1),
        target(load<int64_t>(f.in(self + 1))),
        weight(f.has(self + 2) ? load<double>(f.in(self + 2)) : Values(classes, 1.0)),
        ignored(f.integer("ignore_index", -100)) {
    for (std::size_t d = 2; d < f.in(self).dims.size(); ++d) inner *= f.in(self).dims[d];
  }
  // Position of the target's class of sample i; -1 when it is ignored.
  int64_t at(int64_t i) const {
    const int64_t t = target[i];
    if (t == ignored) return -1;
    if (t < 0 || t >= classes) throw KernelError("nll_loss: target out of bounds");
    return (i / inner * classes + t) * inner + i % inner;
  }
  int64_t classes, inner;
  std::vector<int64_t> target;
  Values weight;
  int64_t ignored;
};
// -> output, total_weight
void run_nll(const Frame& f) {
  const Likelihood s(f, 0);
  const Values x = load<double>(f.in(0));
  Values each(s.target.size());
  double total = 0, sum = 0;
  for (std::size_t i = 0; i < each.size(); ++i) {
    const int64_t at = s.at(static_cast<int64_t>(i));
    if (at < 0) continue;
    const double w = s.weight[s.target[i]];
    sum += each[i] = -w * x[at];
    total += w;
  }
  const int64_t reduction = f.integer("reduction", kMean);
  if (reduction == kEach) {
    store(f.out(0), each);
    if (f.in(0).rank() > 1) total = 0;
  } else {
    if (reduction == kMean) sum /= total;
    store(f.out(0), &sum);
  }
  if (f.wants(1)) store(f.out(1), &total);
}
// grad_output, self, target, weight?, total_weight
void run_nll_backward(const Frame& f) {
  const Likelihood s(f, 1);
  const int64_t reduction = f.integer("reduction", kMean);
  const double total = load<double>(f.in(4)).at(0);
  const Values g =
      spread_gradient(f.in(0), static_cast<int64_t>(s.target.size()), reduction, total);
  Values out(f.out().elements());
  for (std::size_t i = 0; i < s.target.size(); ++i) {
    const int64_t at = s.at(static_cast<int64_t>(i));
    if (at >= 0) out[at] = -s.weight[s.target[i]] * g[i];
  }
  store(f.out(), out);
}

// ---- Margins over classes: self [N, C] or [C] ----

int64_t checked_target(int64_t target, int64_t classes) {
  if (target < 0 || target >= classes) throw KernelError("margin loss: target out of range");
  return target;
}
// The targets of multilabel_margin_loss, which end at the first -1.
std::vector<int64_t> checked_labels(const Tensor& t, int64_t classes) {
  std::vector<int64_t> labels = load<int64_t>(t);
  for (const int64_t label : labels)
    if (label != -1) checked_target(label, classes);
  return labels;
}
std::vector<int64_t> checked_targets(const Tensor& t, int64_t classes) {
  std::vector<int64_t> targets = load<int64_t>(t);
  for (const int64_t target : targets) checked_target(target, classes);
  return targets;
}

struct Rows2 {
  explicit Rows2(const Tensor& t)
      : classes(t.rank() ? t.dims.back() : 1), count(t.rank() < 2 ? 1 : t.dims[0]) {}
  int64_t classes, count;
};
void run_multi_margin_backward(const Frame& f) {
  const Rows2 s(f.in(1));
  const Values x = load<double>(f.in(1));
  const std::vector<int64_t> target = checked_targets(f.in(2), s.classes);
  const Values weight = f.has(3) ? load<double>(f.in(3)) : Values(s.classes, 1.0);
  const double p = f.real("p", 1), margin = f.real("margin", 1);
  const Values g = spread_gradient(f.in(0), s.count, f.integer("reduction", kMean),
                                   static_cast<double>(s.count));
  Values out(x.size());
  for (int64_t n = 0; n < s.count; ++n) {
    const double* row = x.data() + n * s.classes;
    double at_target = 0;
    for (int64_t c = 0; c < s.classes; ++c) {
      const double z = margin - row[target[n]] + row[c];
      if (c == target[n] || z <= 0) continue;
      const double h = (p == 1 ? 1 : 2 * z) * weight[target[n]] / static_cast<double>(s.classes);
      out[n * s.classes + c] = h;
      at_target -= h;
    }
    out[n * s.classes + target[n]] = at_target;
    // The 0s too: a gradient may be NaN.
    for (int64_t c = 0; c < s.classes; ++c) out[n * s.classes + c] *= g[n];
  }
  store(f.out(), out);
}
void run_multi_margin(const Frame& f) {
  const Rows2 s(f.in(0));
  const Values x = load<double>(f.in(0));
  const std::vector<int64_t> target = checked_targets(f.in(1), s.classes);
  const Values weight = f.has(2) ? load<double>(f.in(2)) : Values(s.classes, 1.0);
  const double p = f.real("p", 1), margin = f.real("margin", 1);
  Values each(s.count);
  for (int64_t n = 0; n < s.count; ++n) {
    for (int64_t c = 0; c < s.classes; ++c) {
      const double z = margin - x[n * s.classes + target[n]] + x[n * s.classes + c];
      if (c != target[n] && z > 0) each[n] += (p == 1 ? z : z * z) * weight[target[n]];
    }
    each[n] /= static_cast<double>(s.classes);
  }
  write_reduced(f, each, static_cast<double>(s.count));
}
// Targets of a row, up to the first negative one.
void run_multilabel_margin(const Frame& f) {
  const Rows2 s(f.in(0));
  const Values x = load<double>(f.in(0));
  const std::vector<int64_t> target = checked_labels(f.in(1), s.classes);
  Values each(s.count), is_target(x.size());
  for (int64_t n = 0; n < s.count; ++n) {
    const int64_t at = n * s.classes;
    for (int64_t c = 0; c < s.classes && target[at + c] >= 0; ++c)
      is_target[at + target[at + c]] = 1;
    for (int64_t t = 0; t < s.classes && target[at + t] >= 0; ++t)
      for (int64_t c = 0; c < s.classes; ++c)
        if (is_target[at + c] == 0) each[n] += std::fmax(0, 1 - x[at + target[at + t]] + x[at + c]);
    each[n] /= static_cast<double>(s.classes);
  }
  write_reduced(f, each, static_cast<double>(s.count));
  if (f.wants(1)) store(f.out(1), is_target);
}
// grad_output, self, target, is_target
void run_multilabel_margin_backward(const Frame& f) {
  const Rows2 s(f.in(1));
  const Values x = load<double>(f.in(1)), is_target = load<double>(f.in(3));
  const std::vector<int64_t> target = checked_labels(f.in(2), s.classes);
  const Values g = spread_gradient(f.in(0), s.count, f.integer("reduction", kMean),
                                   static_cast<double>(s.count));
  Values out(x.size());
  for (int64_t n = 0; n < s.count; ++n) {
    const int64_t at = n * s.classes;
    for (int64_t t = 0; t < s.classes && target[at + t] >= 0; ++t)
      for (int64_t c = 0; c < s.classes; ++c) {
        if (is_target[at + c] != 0 || 1 - x[at + target[at + t]] + x[at + c] <= 0) continue;
        const double h = 1 / static_cast<double>(s.classes);
        out[at + target[at + t]] -= h;
        out[at + c] += h;
      }
    for (int64_t c = 0; c < s.classes; ++c) out[at + c] *= g[n];
  }
  store(f.out(), out);
}

// ---- Connectionist temporal classification ----

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

double log_add(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return a + b;
  const double high = std::fmax(a, b);
  return high == kMinusInfinity ? high : high + std::log1p(std::exp(std::fmin(a, b) - high));
}
struct Alignment {
  // `first`: operand of log_probs; lengths are operands after the targets or attributes.
  Alignment(const Frame& f, int64_t first)
      : time(f.in(first).dims[0]),
        batch(f.in(first).rank() == 3 ? f.in(first).dims[1] : 1),
        classes(f.in(first).dims.back()),
        blank(f.integer("blank", 0)),
        probs(load<double>(f.in(first))),
        targets(load<int64_t>(f.in(first + 1))) {
    if (f.present("input_lengths")) {
      inputs = f.ints("input_lengths");
      lengths = f.ints("target_lengths");
    } else {
      inputs = load<int64_t>(f.in(first + 2));
      lengths = load<int64_t>(f.in(first + 3));
    }
    const bool padded = f.in(first + 1).rank() == 2;
    int64_t at = 0;
    for (int64_t b = 0; b < batch; ++b) {
      starts.push_back(padded ? b * f.in(first + 1).dims[1] : at);
      at += lengths[b];
      const int64_t end = starts.back() + lengths[b];
      if (inputs[b] < 0 || inputs[b] > time || lengths[b] < 0 ||
          end > static_cast<int64_t>(targets.size()))
        throw KernelError("ctc_loss: a length out of range");
      for (int64_t i = starts.back(); i < end; ++i)
        if (targets[i] < 0 || targets[i] >= classes)
          throw KernelError("ctc_loss: target out of range");
    }
  }
  double log_prob(int64_t t, int64_t b, int64_t label) const {
    return probs[(t * batch + b) * classes + label];
  }
  // The label with a blank between all, at state s.
  int64_t label(int64_t b, int64_t s) const {
    return s % 2 == 0 ? blank : targets[starts[b] + s / 2];
  }
  bool skips(int64_t b, int64_t s) const {  // from two states before
    return s >= 2 && s % 2 == 1 && label(b, s) != label(b, s - 2);
  }
  int64_t time, batch, classes, blank;
  Values probs;
  std::vector<int64_t> targets;
  Shape inputs, lengths, starts;
};
// -> neg_log_likelihood [N], log_alpha [N, T, 2 S + 1]
void run_ctc(const Frame& f) {
  const Alignment a(f, 0);
  const Tensor table = f.out(1);
  const int64_t states = table.dims.back(), time = table.dims[table.dims.size() - 2];
  Values loss(a.batch), alpha(a.batch * time * states, kMinusInfinity);
  for (int64_t b = 0; b < a.batch; ++b) {
    const int64_t count = 2 * a.lengths[b] + 1, end = a.inputs[b];
    double* row = alpha.data() + b * time * states;
    if (end == 0) {
      loss[b] = a.lengths[b] == 0 ? 0 : -kMinusInfinity;
      continue;
    }
    row[0] = a.log_prob(0, b, a.blank);
    if (count > 1) row[1] = a.log_prob(0, b, a.label(b, 1));
    for (int64_t t = 1; t < end; ++t)
      for (int64_t s = 0; s < count; ++s) {
        double sum = row[(t - 1) * states + s];
        if (s > 0) sum = log_add(sum, row[(t - 1) * states + s - 1]);
        if (a.skips(b, s)) sum = log_add(sum, row[(t - 1) * states + s - 2]);
        row[t * states + s] = sum + a.log_prob(t, b, a.label(b, s));
      }
    double total = row[(end - 1) * states + count - 1];
    if (count > 1) total = log_add(total, row[(end - 1) * states + count - 2]);
    loss[b] = -total;
  }
  store(f.out(0), loss);
  store(table, alpha);
}
// grad, log_probs, targets[, input_lengths, target_lengths], neg_log_likelihood, log_alpha
void run_ctc_backward(const Frame& f) {
  const Alignment a(f, 1);
  const int64_t last = f.operand_count() - 1, states = f.in(last).dims.back();
  const int64_t time = f.in(last).dims[f.in(last).dims.size() - 2];
  const Values grad = load<double>(f.in(0)), loss = load<double>(f.in(last - 1));
  const Values alpha = load<double>(f.in(last));
  const bool zero_infinity = f.flag("zero_infinity", false);
  Values out(a.probs.size());
  for (int64_t b = 0; b < a.batch; ++b) {
    const int64_t count = 2 * a.lengths[b] + 1, end = a.inputs[b];
    if (zero_infinity && std::isinf(loss[b])) continue;
    Values beta(end * states, kMinusInfinity);
    for (int64_t t = end; t-- > 0;) {
      Values sums(a.classes, kMinusInfinity);
      for (int64_t s = 0; s < count; ++s) {
        double sum = kMinusInfinity;
        if (t == end - 1) {
          if (s >= count - 2) sum = 0;
        } else {
          const double* next = beta.data() + (t + 1) * states;
          sum = next[s];
          if (s + 1 < count) sum = log_add(sum, next[s + 1]);
          if (s + 2 < count && a.skips(b, s + 2)) sum = log_add(sum, next[s + 2]);
        }
        const int64_t label = a.label(b, s);
        beta[t * states + s] = sum + a.log_prob(t, b, label);
        sums[label] =
            log_add(sums[label], alpha[(b * time + t) * states + s] + beta[t * states + s]);
      }
      for (int64_t c = 0; c < a.classes; ++c) {
        const double p = a.log_prob(t, b, c);
        out[(t * a.batch + b) * a.classes + c] =
            (std::exp(p) - std::exp(sums[c] + loss[b] - p)) * grad[b];
      }
    }
  }
  store(f.out(), out);
}

constexpr KernelRow kRows[] = {
    {"aten.mse_loss", run_pairwise<square>},
    {"aten.mse_loss_backward", run_pairwise_backward<square_slope>},
    {"aten.l1_loss", run_pairwise<absolute>},
    {"aten.smooth_l1_loss", run_pairwise<smooth>},
    {"aten.smooth_l1_loss_backward", run_pairwise_backward<smooth_slope>},
    {"aten.huber_loss", run_pairwise<huber>},
    {"aten.huber_loss_backward", run_pairwise_backward<huber_slope>},
    {"aten.binary_cross_entropy", run_pairwise<cross_entropy>},
    {"aten.binary_cross_entropy_backward", run_pairwise_backward<cross_entropy_slope>},
    {"aten.binary_cross_entropy_with_logits", run_logits},
    {"aten.soft_margin_loss", run_pairwise<soft_margin>},
    {"aten.soft_margin_loss_backward", run_pairwise_backward<soft_margin_slope>},
    {"aten.nll_loss_forward", run_nll},
    {"aten.nll_loss", run_nll},
    {"aten.nll_loss2d_forward", run_nll},
    {"aten.nll_loss2d", run_nll},
    {"aten.nll_loss_backward", run_nll_backward},
    {"aten.nll_loss2d_backward", run_nll_backward},
    {"aten.multi_margin_loss", run_multi_margin},
    {"aten.multi_margin_loss_backward", run_multi_margin_backward},
    {"aten.multilabel_margin_loss_forward", run_multilabel_margin},
    {"aten.multilabel_margin_loss_backward", run_multilabel_margin_backward},
    {"aten._ctc_loss", run_ctc},
    {"aten._ctc_loss.Tensor", run_ctc},
    {"aten._ctc_loss_backward", run_ctc_backward},
    {"aten._ctc_loss_backward.Tensor", run_ctc_backward},
};

}  // namespace

KernelRows loss_kernels() { return kRows; }

}  // namespace backplane::reference
