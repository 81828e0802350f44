// Reductions over any dims, of tensors of any strides: what the row programs leave.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/kernel_registry.h"
#include "kernels/rows/block.h"
#include "kernels/rows/float_reductions.h"
#include "kernels/simd/processor_loops.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

using sdk::KernelCall;
using sdk::StepContext;

// A reducer works in T (double or int64): add(state, value, index), result(state, count). Where it
// has one, add_block(state, values, n) takes elements together, whatever their positions.
template <class R, class T>
concept TakesBlocks = requires(const R& reducer, typename R::State& state, const T* values) {
  reducer.add_block(state, values, std::int64_t{});
};

template <class T, class Reducer>
class GeneralReduction : public sdk::Kernel {
 public:
  GeneralReduction(ReductionPlan p, Reducer reducer)
      : kept_(p.kept, {p.kept_from, p.kept_to}),
        reduced_(p.reduced, {p.reduced_from}),
        plan_(std::move(p)),
        reducer_(std::move(reducer)) {
    kept_.merge();
    if constexpr (!Reducer::kOrdered)
      reduced_.sort_by(0);
    else
      reduced_.merge();
    by_columns_ = kept_.inner() >= 8 && kept_.inner_stride(0) == 1 &&
                  (reduced_.inner_stride(0) != 1 || reduced_.inner() < 8);
  }
  sdk::Status run(const KernelCall& call) const override {
    if (kept_.rows() * kept_.inner() == 0) return {};
    if (by_columns_)
      run_by_columns(call);
    else
      run_by_rows(call);
    return {};
  }

 private:
  static constexpr std::int64_t kBlock = ConvertingLoad::kMost, kColumns = 64;
  static constexpr Domain kDomain = std::is_same_v<T, double> ? Domain::kF64 : Domain::kI64;
  static constexpr Domain kResultDomain = Reducer::kIndex ? Domain::kI64 : kDomain;

  // Neighbours of kept dims lie side by side: a state for each, and all are loaded together.
  void run_by_columns(const KernelCall& call) const {
    const std::int64_t inner = kept_.inner(), blocks = (inner + kColumns - 1) / kColumns;
    const ConvertingLoad load(plan_.from, plan_.as, kDomain);
    const StoreFunction store = store_function(plan_.to, kResultDomain);
    parallel_ranges(
        kept_.rows() * blocks, kept_.rows() * inner * plan_.count,
        [&](int, std::int64_t begin, std::int64_t end) {
          T values[kColumns];
          for (std::int64_t u = begin; u < end; ++u) {
            RowCursor<2> at(kept_, u / blocks);
            const std::int64_t first = u % blocks * kColumns;
            const std::int64_t width = std::min(kColumns, inner - first);
            const std::byte* from =
                call.operands[0] + (at.offset(0) + first) * bytes_of(plan_.from);
            std::array<typename Reducer::State, kColumns> states{};
            if (plan_.count != 0) {
              RowCursor<1> row(reduced_, 0);
              std::int64_t index = 0;
              for (std::int64_t r = 0; r < reduced_.rows(); ++r, row.next())
                for (std::int64_t k = 0; k < reduced_.inner(); ++k, ++index) {
                  load(values,
                       from + (row.offset(0) + k * reduced_.inner_stride(0)) * bytes_of(plan_.from),
                       1, width);
                  for (std::int64_t j = 0; j < width; ++j)
                    reducer_.add(states[static_cast<std::size_t>(j)], values[j], index);
                }
            }
            std::byte* to = call.results[0] +
                            (at.offset(1) + first * kept_.inner_stride(1)) * bytes_of(plan_.to);
            for (std::int64_t j = 0; j < width; ++j) {
              const auto result = reducer_.result(states[static_cast<std::size_t>(j)], plan_.count);
              store(to + j * kept_.inner_stride(1) * bytes_of(plan_.to), 1, &result, 1);
            }
          }
        });
  }

  void run_by_rows(const KernelCall& call) const {
    const std::int64_t inner = kept_.inner(), rows = kept_.rows();
    const ConvertingLoad load(plan_.from, plan_.as, kDomain);
    const StoreFunction store = store_function(plan_.to, kResultDomain);
    const bool in_place =
        reduced_.inner_stride(0) == 1 && same_bits(plan_.from, kDomain) && !load.converts();
    const std::int64_t step = in_place ? std::max<std::int64_t>(reduced_.inner(), 1) : kBlock;
    parallel_ranges(
        rows * inner, rows * inner * plan_.count, [&](int, std::int64_t begin, std::int64_t end) {
          T block[kBlock];
          for (std::int64_t u = begin; u < end; ++u) {
            RowCursor<2> at(kept_, u / inner);
            const std::int64_t i = u % inner;
            const std::byte* from = call.operands[0] + (at.offset(0) + i * kept_.inner_stride(0)) *
                                                           bytes_of(plan_.from);
            typename Reducer::State state{};
            if (plan_.count != 0) {
              RowCursor<1> row(reduced_, 0);
              std::int64_t index = 0;
              for (std::int64_t r = 0; r < reduced_.rows(); ++r, row.next())
                for (std::int64_t k = 0; k < reduced_.inner(); k += step) {
                  const std::int64_t n = std::min(step, reduced_.inner() - k);
                  const std::byte* place =
                      from + (row.offset(0) + k * reduced_.inner_stride(0)) * bytes_of(plan_.from);
                  const T* values = reinterpret_cast<const T*>(place);
                  if (!in_place) {
                    load(block, place, reduced_.inner_stride(0), n);
                    values = block;
                  }
                  if constexpr (TakesBlocks<Reducer, T>)
                    reducer_.add_block(state, values, n);
                  else
                    for (std::int64_t j = 0; j < n; ++j) reducer_.add(state, values[j], index++);
                }
            }
            const auto result = reducer_.result(state, plan_.count);
            store(call.results[0] + (at.offset(1) + i * kept_.inner_stride(1)) * bytes_of(plan_.to),
                  1, &result, 1);
          }
        });
  }

  Walk kept_, reduced_;
  ReductionPlan plan_;
  Reducer reducer_;
  bool by_columns_ = false;
};

// Independent totals, so that none waits for the one before.
constexpr std::int64_t kChains = 32;

template <class T>
struct Value {
  static constexpr T kStart = 0;
  BP_LOOP void add(T& total, T v, T) { total += v; }
};
template <class T>
struct Factor {
  static constexpr T kStart = 1;
  BP_LOOP void add(T& total, T v, T) { total *= v; }
};
struct SquareFrom {
  static constexpr double kStart = 0;
  BP_LOOP void add(double& total, double v, double center) { total += (v - center) * (v - center); }
};
template <class T, class Term>
struct TotalOfBlock {
  BP_LOOP void run(const T* v, std::int64_t n, T center, T* result) {
    T lanes[kChains];
    for (T& lane : lanes) lane = Term::kStart;
    std::int64_t i = 0;
    for (; i + kChains <= n; i += kChains)
      for (std::int64_t l = 0; l < kChains; ++l) Term::add(lanes[l], v[i + l], center);
    for (; i < n; ++i) Term::add(lanes[0], v[i], center);
    for (std::int64_t half = kChains / 2; half > 0; half /= 2)
      for (std::int64_t l = 0; l < half; ++l)
        if constexpr (Term::kStart == 1)
          lanes[l] *= lanes[l + half];
        else
          lanes[l] += lanes[l + half];
    *result = lanes[0];
  }
};
template <class T, class Term>
T total_of(const T* v, std::int64_t n, T center = 0) {
  static const auto loop = processor_loop<TotalOfBlock<T, Term>>();
  T result;
  loop(v, n, center, &result);
  return result;
}

struct Base {
  static constexpr bool kOrdered = false, kIndex = false;
};
template <class T>
struct Sum : Base {
  struct State {
    T total = 0;
  };
  void add(State& s, T v, std::int64_t) const { s.total += v; }
  void add_block(State& s, const T* v, std::int64_t n) const {
    s.total += total_of<T, Value<T>>(v, n);
  }
  T result(const State& s, std::int64_t) const { return s.total; }
};
struct Mean : Sum<double> {
  double result(const State& s, std::int64_t n) const { return s.total / static_cast<double>(n); }
};
template <class T>
struct Prod : Base {
  struct State {
    T total = 1;
  };
  void add(State& s, T v, std::int64_t) const { s.total *= v; }
  void add_block(State& s, const T* v, std::int64_t n) const {
    s.total *= total_of<T, Factor<T>>(v, n);
  }
  T result(const State& s, std::int64_t) const { return s.total; }
};
template <class T, int kSign>
struct BestOfBlock {
  BP_LOOP void run(const T* v, std::int64_t n, T start, T* result) {
    T lanes[kChains];
    for (T& lane : lanes) lane = start;
    std::int64_t i = 0;
    for (; i + kChains <= n; i += kChains)
      for (std::int64_t l = 0; l < kChains; ++l) lanes[l] = better_of(lanes[l], v[i + l]);
    for (; i < n; ++i) lanes[0] = better_of(lanes[0], v[i]);
    for (std::int64_t l = 1; l < kChains; ++l) lanes[0] = better_of(lanes[0], lanes[l]);
    *result = lanes[0];
  }
  // NaN stays: no comparison with it holds.
  BP_LOOP T better_of(T best, T v) {
    return (kSign > 0 ? v > best : v < best) || v != v ? v : best;
  }
};
// The first of the largest (sign 1) or smallest (-1); NaN wins.
template <class T, int kSign, bool kPosition>
struct Extreme : Base {
  static constexpr bool kOrdered = true, kIndex = kPosition;
  struct State {
    T best = 0;
    std::int64_t at = -1;
  };
  void add(State& s, T v, std::int64_t index) const {
    const bool better =
        s.at < 0 || (s.best == s.best && (v != v || (kSign > 0 ? v > s.best : v < s.best)));
    if (!better) return;
    s.best = v;
    s.at = index;
  }
  void add_block(State& s, const T* v, std::int64_t n) const requires(!kPosition) {
    static const auto loop = processor_loop<BestOfBlock<T, kSign>>();
    loop(v, n, s.at < 0 ? v[0] : s.best, &s.best);
    s.at = 0;
  }
  auto result(const State& s, std::int64_t) const {
    if constexpr (kPosition)
      return s.at;
    else
      return s.best;
  }
};
template <bool kAll>
struct Truth : Base {
  static constexpr bool kIndex = true;  // stored as int64
  struct State {
    bool any = false, all = true;
  };
  void add(State& s, double v, std::int64_t) const {
    if (v != 0)
      s.any = true;
    else
      s.all = false;
  }
  std::int64_t result(const State& s, std::int64_t) const { return kAll ? s.all : s.any; }
};
// Welford's.
struct Variance : Base {
  double correction;
  bool root, mean;
  struct State {
    double mean = 0, squares = 0;
    std::int64_t n = 0;
  };
  void add(State& s, double v, std::int64_t) const {
    const double d = v - s.mean;
    s.mean += d / static_cast<double>(++s.n);
    s.squares += d * (v - s.mean);
  }
  // Of the block by itself, then joined (Chan).
  void add_block(State& s, const double* v, std::int64_t n) const {
    const auto count = static_cast<double>(n);
    const double center = total_of<double, Value<double>>(v, n) / count;
    const double squares = total_of<double, SquareFrom>(v, n, center);
    const auto before = static_cast<double>(s.n);
    s.n += n;
    const double share = count / static_cast<double>(s.n), d = center - s.mean;
    s.mean += d * share;
    s.squares += squares + d * d * before * share;
  }
  double result(const State& s, std::int64_t n) const {
    if (mean) return n == 0 ? std::numeric_limits<double>::quiet_NaN() : s.mean;
    // Of nothing it is NaN, whatever the correction.
    const double left = n == 0 ? 0 : static_cast<double>(n) - correction;
    const double v = s.squares / (left > 0 ? left : 0);  // a correction may be NaN
    return root ? std::sqrt(v) : v;
  }
};
// Square root of the sum of squares.
struct Length : Base {
  struct State {
    double total = 0, last = 0;
  };
  void add(State& s, double v, std::int64_t) const {
    s.last = std::abs(v);
    s.total += v * v;
  }
  void add_block(State& s, const double* v, std::int64_t n) const {
    s.last = std::abs(v[n - 1]);
    s.total += total_of<double, SquareFrom>(v, n);
  }
  double result(const State& s, std::int64_t n) const {
    return n == 1 ? s.last : std::sqrt(s.total);  // of one no square overflows
  }
};
struct Norm : Base {
  double p;
  struct State {
    double total = 0, last = 0;
    bool any = false;
  };
  void add(State& s, double v, std::int64_t) const {
    const double a = std::abs(v);
    s.last = a;
    if (p == 1)
      s.total += a;
    else if (p == 0)
      s.total += a != 0;
    else if (std::isinf(p)) {
      const bool better = !s.any || a != a || (p > 0 ? a > s.total : a < s.total);
      if (better && s.total == s.total) s.total = a;
    } else
      s.total += std::pow(a, p);
    s.any = true;
  }
  double result(const State& s, std::int64_t n) const {
    if (n == 0) return p < 0 ? INFINITY : 0;  // whatever p is, NaN too
    if (n == 1 && p != 0) return s.last;      // no power of it overflows
    if (p == 1 || p == 0 || std::isinf(p)) return s.total;
    return std::pow(s.total, 1 / p);
  }
};

template <class T, class R>
MadeKernel general_of(ReductionPlan plan, R reducer) {
  return std::unique_ptr<sdk::Kernel>(
      std::make_unique<GeneralReduction<T, R>>(std::move(plan), reducer));
}
template <class T, class R>
MadeKernel general(const StepContext& context, R reducer, std::size_t result = 0) {
  return general_of<T>(reduction_plan(context, result), reducer);
}
bool real(const StepContext& context) { return is_float(known_type(context.result().dtype)); }
MadeKernel sum(const StepContext& context) {
  const ReductionPlan plan = converting_plan(context);
  if (auto kernel = make_float_reduction(plan, FloatReduction::kSum)) return kernel;
  return real(context) ? general_of<double>(plan, Sum<double>{})
                       : general_of<std::int64_t>(plan, Sum<std::int64_t>{});
}
MadeKernel mean(const StepContext& context) {
  ReductionPlan plan = converting_plan(context);
  if (bytes_of(plan.to) == 2) plan.as = Type::kF32;  // PyTorch rounds the mean alone to a half
  if (auto kernel = make_float_reduction(plan, FloatReduction::kMean)) return kernel;
  return general_of<double>(plan, Mean{});
}
MadeKernel prod(const StepContext& context) {
  const ReductionPlan plan = converting_plan(context);
  return real(context) ? general_of<double>(plan, Prod<double>{})
                       : general_of<std::int64_t>(plan, Prod<std::int64_t>{});
}
template <int kSign>
MadeKernel extreme(const StepContext& context) {
  const auto kind = kSign > 0 ? FloatReduction::kMax : FloatReduction::kMin;
  if (auto kernel = make_float_reduction(reduction_plan(context), kind)) return kernel;
  return real(context) ? general<double>(context, Extreme<double, kSign, false>{})
                       : general<std::int64_t>(context, Extreme<std::int64_t, kSign, false>{});
}
template <int kSign>
MadeKernel extreme_index(const StepContext& context) {
  return is_float(known_type(context.operand(0).dtype))
             ? general<double>(context, Extreme<double, kSign, true>{})
             : general<std::int64_t>(context, Extreme<std::int64_t, kSign, true>{});
}
// Two results from one operand: two passes.
class Pair : public sdk::Kernel {
 public:
  Pair(std::unique_ptr<sdk::Kernel> first, std::unique_ptr<sdk::Kernel> second)
      : first_(std::move(first)), second_(std::move(second)) {}
  sdk::Status run(const KernelCall& call) const override {
    if (call.results[0]) BP_SDK_RETURN_IF_ERROR(first_->run(call));
    if (call.results[1]) return second_->run({call.operands, call.results + 1, call.scratch});
    return {};
  }

 private:
  std::unique_ptr<sdk::Kernel> first_, second_;
};
MadeKernel pair(MadeKernel first, MadeKernel second) {
  if (!first.ok()) return first;
  if (!second.ok()) return second;
  return std::unique_ptr<sdk::Kernel>(
      std::make_unique<Pair>(std::move(*first), std::move(*second)));
}
template <int kSign>
MadeKernel extreme_pair(const StepContext& context) {
  if (is_float(known_type(context.operand(0).dtype)))
    return pair(general<double>(context, Extreme<double, kSign, false>{}),
                general<double>(context, Extreme<double, kSign, true>{}, 1));
  return pair(general<std::int64_t>(context, Extreme<std::int64_t, kSign, false>{}),
              general<std::int64_t>(context, Extreme<std::int64_t, kSign, true>{}, 1));
}
MadeKernel any(const StepContext& context) { return general<double>(context, Truth<false>{}); }
MadeKernel all(const StepContext& context) { return general<double>(context, Truth<true>{}); }

Variance variance(const StepContext& context, bool root, bool mean) {
  double correction = context.node().real_or("correction", 1);
  if (const bp_attribute* a = context.node().attribute("unbiased"))
    correction = a->integer != 0 ? 1 : 0;
  return {{}, correction, root, mean};
}
MadeKernel var(const StepContext& context) {
  return general<double>(context, variance(context, false, false));
}
MadeKernel std_of(const StepContext& context) {
  return general<double>(context, variance(context, true, false));
}
MadeKernel var_mean(const StepContext& context) {
  return pair(general<double>(context, variance(context, false, false)),
              general<double>(context, variance(context, false, true), 1));
}
MadeKernel std_mean(const StepContext& context) {
  return pair(general<double>(context, variance(context, true, false)),
              general<double>(context, variance(context, false, true), 1));
}
MadeKernel vector_norm(const StepContext& context) {
  const char* name = context.node().attribute("p") ? "p" : "ord";
  const double p = context.node().real_or(name, 2);
  if (p == 2)
    if (auto kernel = make_float_reduction(reduction_plan(context), FloatReduction::kLength))
      return kernel;
  return p == 2 ? general<double>(context, Length{}) : general<double>(context, Norm{{}, p});
}

std::optional<sdk::Refusal> refuse_empty(const sdk::NodeView& node) {
  for (const bp_dim d : node.operand(0).dims())
    if (d == 0) return refusal(BP_REFUSED_SHAPE, "an empty operand");
  return std::nullopt;
}
std::optional<sdk::Refusal> refuse_unless_float(const sdk::NodeView& node) {
  return is_float(*type_of(node.result().dtype()))
             ? std::nullopt
             : refusal(BP_REFUSED_DTYPE, "floating point results only");
}

constexpr KernelRow kRows[] = {
    {"aten.sum", sum},
    {"aten.sum.dim_IntList", sum},
    {"aten.mean", mean, refuse_unless_float},
    {"aten.mean.dim", mean, refuse_unless_float},
    {"aten.prod", prod},
    {"aten.prod.dim_int", prod},
    {"aten.amax", extreme<1>, refuse_empty},
    {"aten.amin", extreme<-1>, refuse_empty},
    {"aten.max", extreme<1>, refuse_empty},
    {"aten.min", extreme<-1>, refuse_empty},
    {"aten.max.dim", extreme_pair<1>, refuse_empty},
    {"aten.min.dim", extreme_pair<-1>, refuse_empty},
    {"aten.argmax", extreme_index<1>, refuse_empty},
    {"aten.argmin", extreme_index<-1>, refuse_empty},
    {"aten.any", any},
    {"aten.any.dim", any},
    {"aten.any.dims", any},
    {"aten.all", all},
    {"aten.all.dim", all},
    {"aten.all.dims", all},
    {"aten.var.correction", var, refuse_unless_float},
    {"aten.var.dim", var, refuse_unless_float},
    {"aten.std.correction", std_of, refuse_unless_float},
    {"aten.std.dim", std_of, refuse_unless_float},
    {"aten.var_mean.correction", var_mean, refuse_unless_float},
    {"aten.std_mean.correction", std_mean, refuse_unless_float},
    {"aten.linalg_vector_norm", vector_norm, refuse_unless_float},
    {"aten.norm.ScalarOpt_dim", vector_norm, refuse_unless_float},
    {"aten.norm.Scalar", vector_norm, refuse_unless_float},
};

}  // namespace

KernelRows reduction_kernels() { return kRows; }

}  // namespace backplane::onednn
