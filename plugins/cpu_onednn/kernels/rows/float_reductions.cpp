#include "kernels/rows/float_reductions.h"

#include <algorithm>
#include <cmath>

#include "kernels/rows/block.h"
#include "kernels/simd/vector_table.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

using sdk::KernelCall;

// Whether results lie side by side, and so do the elements of which they are made.
bool has_columns(const ReductionPlan& p) {
  Walk kept(p.kept, {p.kept_from, p.kept_to});
  kept.merge();
  return kept.inner() >= 8 && kept.inner_stride(0) == 1 && kept.inner_stride(1) == 1;
}

// Adds whole vectors where the kept dims vary fastest, as over the batch in a bias gradient: runs
// of rows in float, joined in double.
class ColumnSum : public sdk::Kernel {
 public:
  ColumnSum(const ReductionPlan& p, double scale)
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
    is_long_ = rows_.rows() * rows_.inner() > kRun;
  }
  static bool suits(const ReductionPlan& p) {
    const auto is_known = [](Type t) { return t == Type::kF32 || t == Type::kBF16; };
    return is_known(p.from) && is_known(p.to) && has_columns(p);
  }
  // Per thread a row of sums, one for conversion, and one of doubles where there are many rows.
  std::uint64_t scratch_bytes() const override {
    return static_cast<std::uint64_t>(step() * (threads_ + 1)) * sizeof(float);
  }
  sdk::Status run(const KernelCall& call) const override {
    if (width_ * slices_ == 0) return {};
    auto* scratch = reinterpret_cast<float*>(call.scratch);
    const std::int64_t total_rows = rows_.rows() * rows_.inner();
    // Few slices: threads share one; each keeps partial sums that are added at the end.
    if (slices_ < threads_) {
      RowCursor<2> at(outer_, 0);
      for (std::int64_t s = 0; s < slices_; ++s, at.next()) {
        const std::byte* from = call.operands[0] + at.offset(0) * bytes_of(from_);
        const int team =
            team_size(std::min<std::int64_t>(threads_, total_rows), total_rows * width_);
        parallel_ranges(team, total_rows * width_, [&](int, std::int64_t begin, std::int64_t end) {
          for (std::int64_t t = begin; t < end; ++t)
            add(from, total_rows * t / team, total_rows * (t + 1) / team, scratch + t * step());
        });
        for (int t = 1; t < team; ++t) join(scratch, scratch + t * step());
        finish(scratch, call.results[0] + at.offset(1) * bytes_of(to_));
      }
      return {};
    }
    parallel_ranges(slices_, slices_ * count_ * width_,
                    [&](int thread, std::int64_t begin, std::int64_t end) {
                      RowCursor<2> at(outer_, begin);
                      float* sums = scratch + std::min<std::int64_t>(thread, threads_ - 1) * step();
                      for (std::int64_t s = begin; s < end; ++s, at.next()) {
                        add(call.operands[0] + at.offset(0) * bytes_of(from_), 0, total_rows, sums);
                        finish(sums, call.results[0] + at.offset(1) * bytes_of(to_));
                      }
                    });
    return {};
  }

 private:
  static constexpr std::int64_t kRun = 256;  // sums of floats stay short

  // Of one thread's scratch, in floats.
  std::int64_t step() const { return (width_ + 16) * (is_long_ ? 4 : 2); }
  double* totals(float* sums) const { return reinterpret_cast<double*>(sums + 2 * (width_ + 16)); }

  void add(const std::byte* from, std::int64_t begin, std::int64_t end, float* sums) const {
    std::fill_n(sums, width_, 0.0F);
    if (is_long_) std::fill_n(totals(sums), width_, 0.0);
    if (begin >= end) return;
    const LoadFunction load = load_function(from_, Domain::kF32);
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
      if (is_long_ && ((r - begin) % kRun == kRun - 1 || r + 1 == end)) {
        double* total = totals(sums);
        for (std::int64_t c = 0; c < width_; ++c) total[c] += sums[c];
        std::fill_n(sums, width_, 0.0F);
      }
      if (++i == inner) {
        i = 0;
        at.next();
      }
    }
  }
  void join(float* sums, float* others) const {
    if (!is_long_) return vector_table().add_columns(sums, nullptr, others, nullptr, 0, 0, width_);
    for (std::int64_t c = 0; c < width_; ++c) totals(sums)[c] += totals(others)[c];
  }
  void finish(float* sums, std::byte* to) const {
    if (is_long_) {
      for (std::int64_t c = 0; c < width_; ++c)
        sums[c] = static_cast<float>(totals(sums)[c] * scale_);
    } else if (scale_ != 1) {
      for (std::int64_t c = 0; c < width_; ++c) sums[c] *= static_cast<float>(scale_);
    }
    store_function(to_, Domain::kF32)(to, 1, sums, width_);
  }

  Walk outer_, rows_;
  Type from_, to_;
  double scale_;
  std::int64_t width_, slices_, count_, threads_;
  bool is_long_ = false;
};

// The largest or smallest of columns of floats, a block of neighbours at a time.
class ColumnExtreme : public sdk::Kernel {
 public:
  ColumnExtreme(const ReductionPlan& p, bool largest)
      : kept_(p.kept, {p.kept_from, p.kept_to}),
        rows_(p.reduced, {p.reduced_from}),
        count_(p.count),
        better_(block_function(largest ? Opcode::kMax : Opcode::kMin, Domain::kF32)) {
    kept_.merge();
    rows_.sort_by(0);
  }
  static bool suits(const ReductionPlan& p) {
    return p.from == Type::kF32 && p.to == Type::kF32 && p.count != 0 && has_columns(p);
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

// Elements that lie side by side: runs of them, joined in double.
class FloatRuns : public sdk::Kernel {
 public:
  FloatRuns(const ReductionPlan& p, FloatReduction kind)
      : kept_(p.kept, {p.kept_from, p.kept_to}),
        reduced_(p.reduced, {p.reduced_from}),
        kind_(kind),
        to_(p.to),
        count_(p.count) {
    kept_.merge();
    reduced_.sort_by(0);
    const Opcode op = kind == FloatReduction::kMax      ? Opcode::kRowMax
                      : kind == FloatReduction::kMin    ? Opcode::kRowMin
                      : kind == FloatReduction::kLength ? Opcode::kRowDot
                                                        : Opcode::kRowSum;
    reduce_ = block_function(op, Domain::kF32);
  }
  static bool suits(const ReductionPlan& p) {
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
    if (kind_ == FloatReduction::kLength && count_ == 1)
      return std::abs(*from);  // no square overflows
    const bool is_sum = kind_ != FloatReduction::kMax && kind_ != FloatReduction::kMin;
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
        else if (found != found || (kind_ == FloatReduction::kMax ? found > total : found < total))
          total = found;
      }
    if (kind_ == FloatReduction::kMean) return total / static_cast<double>(count_);
    return kind_ == FloatReduction::kLength ? std::sqrt(total) : total;
  }

  Walk kept_, reduced_;
  FloatReduction kind_;
  Type to_;
  std::int64_t count_;
  BlockFunction reduce_;
};

}  // namespace

std::unique_ptr<sdk::Kernel> make_float_reduction(const ReductionPlan& plan, FloatReduction kind) {
  if (!holds(plan.as, plan.from)) return nullptr;  // reads elements as they are
  const bool largest = kind == FloatReduction::kMax;
  if (largest || kind == FloatReduction::kMin) {
    if (ColumnExtreme::suits(plan)) return std::make_unique<ColumnExtreme>(plan, largest);
  } else if (kind != FloatReduction::kLength && ColumnSum::suits(plan)) {
    const bool mean = kind == FloatReduction::kMean;
    return std::make_unique<ColumnSum>(plan, mean ? 1 / static_cast<double>(plan.count) : 1);
  }
  return FloatRuns::suits(plan) ? std::make_unique<FloatRuns>(plan, kind) : nullptr;
}

}  // namespace backplane::onednn
