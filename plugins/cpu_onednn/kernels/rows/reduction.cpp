// Reductions over any dims, of tensors of any strides: what the row programs leave.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/kernel_registry.h"
#include "kernels/rows/block.h"
#include "kernels/rows/emitter.h"
#include "kernels/simd/vector_table.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

using sdk::KernelCall;
using sdk::StepContext;
using sdk::TensorSpec;

// A reduction as kept dims and reduced dims of one operand.
struct Plan {
  Shape kept, kept_from, kept_to;  // sizes; strides in the operand and in the result
  Shape reduced, reduced_from;
  std::int64_t count = 1;  // of reduced elements
  Type from = Type::kF32, to = Type::kF32;
};

std::vector<std::size_t> listed_dims(const StepContext& context) {
  const std::size_t rank = context.operand(0).rank();
  std::vector<std::size_t> dims;
  const bp_attribute* a = context.node().attribute("dim");
  if (a && a->kind == BP_ATTRIBUTE_INT) {
    if (rank) dims.push_back(static_cast<std::size_t>(wrap_dim(a->integer, rank)));
  } else if (a) {
    for (std::size_t i = 0; i < a->count && rank; ++i)
      dims.push_back(static_cast<std::size_t>(wrap_dim(a->integers[i], rank)));
  }
  if (dims.empty())
    for (std::size_t d = 0; d < rank; ++d) dims.push_back(d);
  std::sort(dims.begin(), dims.end());
  return dims;
}

Plan plan_of(const StepContext& context, std::size_t result = 0) {
  const TensorSpec &in = context.operand(0), &out = context.result(result);
  const auto dims = listed_dims(context);
  Plan p;
  p.from = known_type(in.dtype);
  p.to = known_type(out.dtype);
  const bool keeps = out.rank() == in.rank();
  std::size_t at = 0;
  for (std::size_t d = 0; d < in.rank(); ++d) {
    if (std::binary_search(dims.begin(), dims.end(), d)) {
      p.reduced.push_back(in.dims[d]);
      p.reduced_from.push_back(in.strides[d]);
      p.count *= in.dims[d];
      if (keeps) ++at;
      continue;
    }
    p.kept.push_back(in.dims[d]);
    p.kept_from.push_back(in.strides[d]);
    p.kept_to.push_back(out.strides[at++]);
  }
  return p;
}

// ---- Sums of floats: columns and rows by vector kernels
// ------------------------------------------

// Adds whole vectors where the kept dims vary fastest, as over the batch in a bias gradient.
class ColumnSum : public sdk::Kernel {
 public:
  ColumnSum(const Plan& p, double scale)
      : outer_(p.kept, {p.kept_from, p.kept_to}),
        rows_(p.reduced, {p.reduced_from}),
        from_(p.from),
        to_(p.to),
        scale_(scale) {
    outer_.merge();
    rows_.sort_by(0);
    width_ = outer_.inner();
    slices_ = outer_.rows();
    count_ = p.count;
    threads_ = omp_get_max_threads();
  }
  static bool suits(const Plan& p) {
    if ((p.from != Type::kF32 && p.from != Type::kBF16) ||
        (p.to != Type::kF32 && p.to != Type::kBF16))
      return false;
    Walk kept(p.kept, {p.kept_from, p.kept_to});
    kept.merge();
    return kept.inner() >= 8 && kept.inner_stride(0) == 1 && kept.inner_stride(1) == 1;
  }
  // Per thread a row of sums, and one for conversion.
  std::uint64_t scratch_bytes() const override {
    return static_cast<std::uint64_t>((width_ + 16) * 2 * (threads_ + 1)) * sizeof(float);
  }
  sdk::Status run(const KernelCall& call) const override {
    if (width_ * slices_ == 0) return {};
    const LoadFunction load = load_function(from_, Domain::kF32);
    const StoreFunction store = store_function(to_, Domain::kF32);
    auto* scratch = reinterpret_cast<float*>(call.scratch);
    const std::int64_t total_rows = rows_.rows() * rows_.inner();
    const std::int64_t step = (width_ + 16) * 2;
    // Few slices: threads share one; each keeps partial sums that are added at the end.
    if (slices_ < threads_) {
      RowCursor<2> at(outer_, 0);
      for (std::int64_t s = 0; s < slices_; ++s, at.next()) {
        const std::byte* from = call.operands[0] + at.offset(0) * bytes_of(from_);
        const int team =
            team_size(std::min<std::int64_t>(threads_, total_rows), total_rows * width_);
        for (int t = 0; t < team; ++t) std::fill_n(scratch + t * step, width_, 0.0F);
        parallel_ranges(team, total_rows * width_, [&](int, std::int64_t begin, std::int64_t end) {
          for (std::int64_t t = begin; t < end; ++t)
            add(from, total_rows * t / team, total_rows * (t + 1) / team, scratch + t * step, load);
        });
        for (int t = 1; t < team; ++t)
          vector_table().add_columns(scratch, nullptr, scratch + t * step, nullptr, 0, 0, width_);
        finish(scratch, call.results[0] + at.offset(1) * bytes_of(to_), store);
      }
      return {};
    }
    parallel_ranges(
        slices_, slices_ * count_ * width_, [&](int thread, std::int64_t begin, std::int64_t end) {
          RowCursor<2> at(outer_, begin);
          float* sums = scratch + std::min<std::int64_t>(thread, threads_ - 1) * step;
          for (std::int64_t s = begin; s < end; ++s, at.next()) {
            std::fill_n(sums, width_, 0.0F);
            add(call.operands[0] + at.offset(0) * bytes_of(from_), 0, total_rows, sums, load);
            finish(sums, call.results[0] + at.offset(1) * bytes_of(to_), store);
          }
        });
    return {};
  }

 private:
  void add(const std::byte* from, std::int64_t begin, std::int64_t end, float* sums,
           LoadFunction load) const {
    if (begin >= end) return;
    float* row = sums + width_ + 16;
    const std::int64_t inner = rows_.inner();
    RowCursor<1> at(rows_, begin / inner);
    std::int64_t i = begin % inner;
    for (std::int64_t r = begin; r < end; ++r) {
      const std::byte* source = from + (at.offset(0) + i * rows_.inner_stride(0)) * bytes_of(from_);
      const float* values = reinterpret_cast<const float*>(source);
      if (from_ != Type::kF32) {
        load(row, source, 1, width_);
        values = row;
      }
      vector_table().add_columns(sums, nullptr, values, nullptr, 0, 0, width_);
      if (++i == inner) {
        i = 0;
        at.next();
      }
    }
  }
  void finish(float* sums, std::byte* to, StoreFunction store) const {
    if (scale_ != 1)
      for (std::int64_t i = 0; i < width_; ++i) sums[i] *= static_cast<float>(scale_);
    store(to, 1, sums, width_);
  }

  Walk outer_, rows_;
  Type from_, to_;
  double scale_;
  std::int64_t width_, slices_, count_, threads_;
};

// The largest or smallest of columns of floats, a block of neighbours at a time.
class ColumnExtreme : public sdk::Kernel {
 public:
  ColumnExtreme(const Plan& p, bool largest)
      : kept_(p.kept, {p.kept_from, p.kept_to}),
        rows_(p.reduced, {p.reduced_from}),
        count_(p.count),
        better_(block_function(largest ? Opcode::kMax : Opcode::kMin, Domain::kF32)) {
    kept_.merge();
    rows_.sort_by(0);
  }
  static bool suits(const Plan& p) {
    return p.from == Type::kF32 && p.to == Type::kF32 && p.count != 0 && ColumnSum::suits(p);
  }
  sdk::Status run(const KernelCall& call) const override {
    const std::int64_t inner = kept_.inner(), blocks = (inner + kColumns - 1) / kColumns;
    parallel_ranges(kept_.rows() * blocks, kept_.rows() * inner * count_,
                    [&](int, std::int64_t begin, std::int64_t end) {
                      alignas(64) float best[kColumns], part[kLanes];
                      for (std::int64_t u = begin; u < end; ++u) {
                        RowCursor<2> at(kept_, u / blocks);
                        const std::int64_t first = u % blocks * kColumns;
                        const std::int64_t width = std::min(kColumns, inner - first);
                        const std::int64_t whole = width / kLanes * kLanes;
                        const auto* from =
                            reinterpret_cast<const float*>(call.operands[0]) + at.offset(0) + first;
                        std::copy_n(from, width, best);
                        RowCursor<1> row(rows_, 0);
                        for (std::int64_t r = 0; r < rows_.rows(); ++r, row.next())
                          for (std::int64_t k = 0; k < rows_.inner(); ++k) {
                            const float* values = from + row.offset(0) + k * rows_.inner_stride(0);
                            if (whole > 0) better_({best, nullptr, {best, values}, {1, 1}, whole});
                            if (whole == width) continue;
                            // Whole vectors are read: those beyond the row are not ours.
                            std::copy_n(values + whole, width - whole, part);
                            std::fill(part + (width - whole), part + kLanes, part[0]);
                            better_({best + whole, nullptr, {best + whole, part}, {1, 1}, kLanes});
                          }
                        std::copy_n(
                            best, width,
                            reinterpret_cast<float*>(call.results[0]) + at.offset(1) + first);
                      }
                    });
    return {};
  }

 private:
  static constexpr std::int64_t kColumns = 256;  // whole vectors
  Walk kept_, rows_;
  std::int64_t count_;
  BlockFunction better_;
};

// ---- Floats that lie side by side: vector kernels over runs, joined in double

class FloatRuns : public sdk::Kernel {
 public:
  enum class Kind : std::uint8_t { kSum, kMean, kMax, kMin, kLength };

  FloatRuns(const Plan& p, Kind kind)
      : kept_(p.kept, {p.kept_from, p.kept_to}),
        reduced_(p.reduced, {p.reduced_from}),
        kind_(kind),
        to_(p.to),
        count_(p.count) {
    kept_.merge();
    reduced_.sort_by(0);
    const Opcode op = kind == Kind::kMax      ? Opcode::kRowMax
                      : kind == Kind::kMin    ? Opcode::kRowMin
                      : kind == Kind::kLength ? Opcode::kRowDot
                                              : Opcode::kRowSum;
    reduce_ = block_function(op, Domain::kF32);
  }
  static bool suits(const Plan& p) {
    if (p.from != Type::kF32 || !is_float(p.to) || p.count == 0) return false;
    Walk reduced(p.reduced, {p.reduced_from});
    reduced.sort_by(0);
    return reduced.inner() >= kShortest && reduced.inner_stride(0) == 1;
  }
  sdk::Status run(const KernelCall& call) const override {
    const std::int64_t inner = kept_.inner(), results = kept_.rows() * inner;
    if (results == 0) return {};
    const StoreFunction store = store_function(to_, Domain::kF64);
    parallel_ranges(results, results * count_, [&](int, std::int64_t begin, std::int64_t end) {
      for (std::int64_t u = begin; u < end; ++u) {
        RowCursor<2> at(kept_, u / inner);
        const std::int64_t i = u % inner;
        const auto* from = reinterpret_cast<const float*>(call.operands[0]) + at.offset(0) +
                           i * kept_.inner_stride(0);
        const double result = reduced(from);
        store(call.results[0] + (at.offset(1) + i * kept_.inner_stride(1)) * bytes_of(to_), 1,
              &result, 1);
      }
    });
    return {};
  }

 private:
  static constexpr std::int64_t kShortest = 32;
  static constexpr std::int64_t kRun = 2048;  // sums of floats stay short

  double reduced(const float* from) const {
    if (kind_ == Kind::kLength && count_ == 1) return std::abs(*from);  // no square overflows
    const bool is_sum = kind_ != Kind::kMax && kind_ != Kind::kMin;
    double total = is_sum ? 0 : *from;
    RowCursor<1> row(reduced_, 0);
    for (std::int64_t r = 0; r < reduced_.rows(); ++r, row.next())
      for (std::int64_t k = 0; k < reduced_.inner(); k += kRun) {
        const float* run = from + row.offset(0) + k;
        alignas(64) float value[kLanes];
        reduce_({value, nullptr, {run, run}, {1, 1}, std::min(kRun, reduced_.inner() - k)});
        const double found = value[0];
        if (is_sum)
          total += found;
        else if (found != found || (kind_ == Kind::kMax ? found > total : found < total))
          total = found;
      }
    if (kind_ == Kind::kMean) return total / static_cast<double>(count_);
    return kind_ == Kind::kLength ? std::sqrt(total) : total;
  }

  Walk kept_, reduced_;
  Kind kind_;
  Type to_;
  std::int64_t count_;
  BlockFunction reduce_;
};
std::unique_ptr<sdk::Kernel> float_runs(const StepContext& context, FloatRuns::Kind kind) {
  const Plan p = plan_of(context);
  return FloatRuns::suits(p) ? std::make_unique<FloatRuns>(p, kind) : nullptr;
}

// ---- Everything else: one result at a time, in double or int64
// ------------------------------------

// A reducer works in T (double or int64): add(state, value, index), result(state, count). Where it
// has one, add_block(state, values, n) takes elements together, whatever their positions.
template <class R, class T>
concept TakesBlocks = requires(const R& reducer, typename R::State& state, const T* values) {
  reducer.add_block(state, values, std::int64_t{});
};

template <class T, class Reducer>
class GeneralReduction : public sdk::Kernel {
 public:
  GeneralReduction(Plan p, Reducer reducer)
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
  static constexpr std::int64_t kBlock = 256, kColumns = 64;
  static constexpr Domain kDomain = std::is_same_v<T, double> ? Domain::kF64 : Domain::kI64;
  static constexpr Domain kResultDomain = Reducer::kIndex ? Domain::kI64 : kDomain;

  // Neighbours of kept dims lie side by side: a state for each, and all are loaded together.
  void run_by_columns(const KernelCall& call) const {
    const std::int64_t inner = kept_.inner(), blocks = (inner + kColumns - 1) / kColumns;
    const LoadFunction load = load_function(plan_.from, kDomain);
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
    const LoadFunction load = load_function(plan_.from, kDomain);
    const StoreFunction store = store_function(plan_.to, kResultDomain);
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
                for (std::int64_t k = 0; k < reduced_.inner(); k += kBlock) {
                  const std::int64_t n = std::min(kBlock, reduced_.inner() - k);
                  load(block,
                       from + (row.offset(0) + k * reduced_.inner_stride(0)) * bytes_of(plan_.from),
                       reduced_.inner_stride(0), n);
                  if constexpr (TakesBlocks<Reducer, T>)
                    reducer_.add_block(state, block, n);
                  else
                    for (std::int64_t j = 0; j < n; ++j) reducer_.add(state, block[j], index++);
                }
            }
            const auto result = reducer_.result(state, plan_.count);
            store(call.results[0] + (at.offset(1) + i * kept_.inner_stride(1)) * bytes_of(plan_.to),
                  1, &result, 1);
          }
        });
  }

  Walk kept_, reduced_;
  Plan plan_;
  Reducer reducer_;
  bool by_columns_ = false;
};

// Independent sums, so that none waits for the one before.
constexpr std::int64_t kChains = 8;
template <class T, class Term>
T sum_in_lanes(std::int64_t n, const Term& term) {
  T lanes[kChains] = {};
  std::int64_t i = 0;
  for (; i + kChains <= n; i += kChains)
    for (std::int64_t l = 0; l < kChains; ++l) lanes[l] += term(i + l);
  T total = 0;
  for (; i < n; ++i) total += term(i);
  for (const T lane : lanes) total += lane;
  return total;
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
    s.total += sum_in_lanes<T>(n, [&](std::int64_t i) { return v[i]; });
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
  T result(const State& s, std::int64_t) const { return s.total; }
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
    T lanes[kChains];
    std::fill_n(lanes, kChains, s.at < 0 ? v[0] : s.best);
    std::int64_t i = 0;
    for (; i + kChains <= n; i += kChains)
      for (std::int64_t l = 0; l < kChains; ++l) lanes[l] = better_of(lanes[l], v[i + l]);
    for (; i < n; ++i) lanes[0] = better_of(lanes[0], v[i]);
    for (std::int64_t l = 1; l < kChains; ++l) lanes[0] = better_of(lanes[0], lanes[l]);
    s.best = lanes[0];
    s.at = 0;
  }
  // NaN stays: no comparison with it holds.
  static T better_of(T best, T v) { return (kSign > 0 ? v > best : v < best) || v != v ? v : best; }
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
    const double center = sum_in_lanes<double>(n, [&](std::int64_t i) { return v[i]; }) / count;
    const double squares =
        sum_in_lanes<double>(n, [&](std::int64_t i) { return (v[i] - center) * (v[i] - center); });
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
    s.total += sum_in_lanes<double>(n, [&](std::int64_t i) { return v[i] * v[i]; });
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
MadeKernel general(const StepContext& context, R reducer, std::size_t result = 0) {
  return std::unique_ptr<sdk::Kernel>(
      std::make_unique<GeneralReduction<T, R>>(plan_of(context, result), reducer));
}
bool real(const StepContext& context) {
  return is_float(known_type(context.operand(0).dtype)) ||
         is_float(known_type(context.result().dtype));
}
MadeKernel column_or(const StepContext& context, bool mean) {
  const Plan p = plan_of(context);
  if (ColumnSum::suits(p))
    return std::unique_ptr<sdk::Kernel>(
        std::make_unique<ColumnSum>(p, mean ? 1 / static_cast<double>(p.count) : 1));
  if (auto runs = float_runs(context, mean ? FloatRuns::Kind::kMean : FloatRuns::Kind::kSum))
    return runs;
  if (mean) return general<double>(context, Mean{});
  return real(context) ? general<double>(context, Sum<double>{})
                       : general<std::int64_t>(context, Sum<std::int64_t>{});
}
MadeKernel sum(const StepContext& context) { return column_or(context, false); }
MadeKernel mean(const StepContext& context) { return column_or(context, true); }
MadeKernel prod(const StepContext& context) {
  return real(context) ? general<double>(context, Prod<double>{})
                       : general<std::int64_t>(context, Prod<std::int64_t>{});
}
template <int kSign>
MadeKernel extreme(const StepContext& context) {
  if (const Plan p = plan_of(context); ColumnExtreme::suits(p))
    return std::unique_ptr<sdk::Kernel>(std::make_unique<ColumnExtreme>(p, kSign > 0));
  if (auto runs = float_runs(context, kSign > 0 ? FloatRuns::Kind::kMax : FloatRuns::Kind::kMin))
    return runs;
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
    if (auto runs = float_runs(context, FloatRuns::Kind::kLength)) return runs;
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
