// Pooling over two dims. Channels-last memory is pooled a block of channels of one pixel at a time;
// else rows of the window are joined over the whole width first and columns then, so that both
// steps run along memory.
#include <algorithm>
#include <utility>

#include "kernels/images/channels_last.h"
#include "kernels/kernel_registry.h"
#include "kernels/movement/dense_memory.h"
#include "kernels/rows/float_rows.h"
#include "kernels/simd/processor_loops.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

using sdk::KernelCall;
using sdk::StepContext;

constexpr std::int64_t kBlock = 64;  // channels
constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr std::int32_t kNowhere = std::numeric_limits<std::int32_t>::max();

// The elements of one result along one dim: start, start + step, ...
struct Window {
  std::int64_t start, count, step;
  std::int64_t size;  // what it counts in the divisor
};
using Windows = std::vector<Window>;

// Where a window lies in an image of channels-last memory.
struct Patch {
  const Window &row, &column;
  std::int64_t columns, channels;  // of the image
};

// Calls of Step over the window's elements, three at a time where the window is that wide: partial
// results then go through memory less often.
template <class Step, class T, class... Sums>
struct OverPatch {
  BP_LOOP void run(const T* image, const Patch& p, std::int64_t first, std::int64_t n,
                   Sums... sums) {
    const std::int64_t distance = p.column.step * p.channels;
    for (std::int64_t i = 0; i < p.row.count; ++i) {
      std::int64_t at = (p.row.start + i * p.row.step) * p.columns + p.column.start, j = 0;
      const T* x = image + at * p.channels + first;
      const auto go = [&](std::int64_t taps) __attribute__((always_inline)) {
        j += taps;
        at += taps * p.column.step;
        x += taps * distance;
      };
      for (; j + 3 <= p.column.count; go(3))
        taps(x, distance, at, p.column.step, n, std::make_index_sequence<3>(), sums...);
      for (; j + 2 <= p.column.count; go(2))
        taps(x, distance, at, p.column.step, n, std::make_index_sequence<2>(), sums...);
      for (; j < p.column.count; go(1))
        taps(x, distance, at, p.column.step, n, std::make_index_sequence<1>(), sums...);
    }
  }
  template <std::size_t... kTap>
  BP_LOOP void taps(const T* x, std::int64_t distance, std::int64_t at, std::int64_t step,
                    std::int64_t n, std::index_sequence<kTap...>, Sums... sums) {
#pragma omp simd
    for (std::int64_t k = 0; k < n; ++k)
      (Step::one(Lane::read(x[static_cast<std::int64_t>(kTap) * distance + k]),
                 static_cast<std::int32_t>(at + static_cast<std::int64_t>(kTap) * step),
                 sums[k]...),
       ...);
  }
};
struct MaxStep {  // as in ATen, the first of equals wins, the last of NaNs
  BP_LOOP void one(float v, std::int32_t at, float& best, std::int32_t& where) {
    const bool take = (v > best) | (v != v);
    best = take ? v : best;
    where = take ? at : where;
  }
};
struct SumStep {
  BP_LOOP void one(float v, std::int32_t, float& sum) { sum += v; }
};

// Of channels [first, first + n), n <= kBlock.
template <class T>
struct PatchMax {
  BP_LOOP void run(T* out, std::int64_t* indices, const T* image, const Patch& p,
                   std::int64_t first, std::int64_t n) {
    float best[kBlock];
    std::int32_t where[kBlock];
    const auto origin = static_cast<std::int32_t>(p.row.start * p.columns + p.column.start);
#pragma omp simd
    for (std::int64_t k = 0; k < kBlock; ++k) {
      best[k] = kLowest;
      where[k] = origin;
    }
    OverPatch<MaxStep, T, float*, std::int32_t*>::run(image, p, first, n, best, where);
#pragma omp simd
    for (std::int64_t k = 0; k < n; ++k) Lane::write(out[k], best[k]);
    if (indices == nullptr) return;
#pragma omp simd
    for (std::int64_t k = 0; k < n; ++k) indices[k] = where[k];
  }
};
template <class T>
struct PatchMean {
  BP_LOOP void run(T* out, const T* image, const Patch& p, std::int64_t first, std::int64_t n,
                   float divisor) {
    float sums[kBlock];
    std::fill(sums, sums + kBlock, 0.0F);
    OverPatch<SumStep, T, float*>::run(image, p, first, n, sums);
#pragma omp simd
    for (std::int64_t k = 0; k < n; ++k) Lane::write(out[k], sums[k] / divisor);
  }
};

// Rows of a plane joined into one row.
template <class T>
struct RowsMax {
  // `n` columns, which may be more than there are.
  BP_LOOP void run(float* best, std::int32_t* where, const T* plane, const Window& row,
                   std::int64_t columns, std::int64_t n) {
    const auto origin = static_cast<std::int32_t>(row.start * columns);
#pragma omp simd
    for (std::int64_t c = 0; c < n; ++c) {
      best[c] = kLowest;
      where[c] = origin + static_cast<std::int32_t>(c);
    }
    for (std::int64_t i = 0; i < row.count; ++i) {
      const std::int64_t at = (row.start + i * row.step) * columns;
      const T* x = plane + at;
      const auto index = static_cast<std::int32_t>(at);
#pragma omp simd
      for (std::int64_t c = 0; c < n; ++c) {
        const float v = Lane::read(x[c]);
        const bool take = (v > best[c]) | (v != v);
        best[c] = take ? v : best[c];
        where[c] = take ? index + static_cast<std::int32_t>(c) : where[c];
      }
    }
  }
};
template <class T>
struct RowsSum {
  BP_LOOP void run(float* sums, const T* plane, const Window& row, std::int64_t columns,
                   std::int64_t n) {
    if (row.count == 0) std::fill(sums, sums + n, 0.0F);
    for (std::int64_t i = 0; i < row.count; ++i) {
      const T* x = plane + (row.start + i * row.step) * columns;
      if (i == 0) {  // NOLINT(bugprone-branch-clone): = and += look alike to it under OpenMP
#pragma omp simd
        for (std::int64_t c = 0; c < n; ++c) sums[c] = Lane::read(x[c]);
      } else {
#pragma omp simd
        for (std::int64_t c = 0; c < n; ++c) sums[c] += Lane::read(x[c]);
      }
    }
  }
};

// Columns of the joined row: result j takes elements j * stride + tap * step. Ties go to the
// element that comes first in the plane, and so to the lower index.
struct ColumnsMax {
  BP_LOOP void join(float* best, std::int32_t* where, const float* v, const std::int32_t* at,
                    std::int64_t n, std::int64_t stride) {
#pragma omp simd
    for (std::int64_t j = 0; j < n; ++j) {
      const float x = v[j * stride], old = best[j];
      const std::int32_t index = at[j * stride], old_index = where[j];
      const bool later = index > old_index, both = (x != x) & (old != old);
      const bool take = (x > old) | ((x == old) & !later) | ((x != x) & (!both | later));
      best[j] = take ? x : old;
      where[j] = take ? index : old_index;
    }
  }
  BP_LOOP void run(float* best, std::int32_t* where, const float* v, const std::int32_t* at,
                   std::int64_t n, std::int64_t stride, std::int64_t taps, std::int64_t step) {
    std::fill(best, best + n, kLowest);
    std::fill(where, where + n, kNowhere);
    for (std::int64_t t = 0; t < taps; ++t, v += step, at += step) {
      // A constant stride lets the loads be shuffled instead of gathered.
      if (stride == 1)
        join(best, where, v, at, n, 1);
      else if (stride == 2)
        join(best, where, v, at, n, 2);
      else
        join(best, where, v, at, n, stride);
    }
  }
};
struct ColumnsSum {
  BP_LOOP void join(float* sums, const float* v, std::int64_t n, std::int64_t stride) {
#pragma omp simd
    for (std::int64_t j = 0; j < n; ++j) sums[j] += v[j * stride];
  }
  BP_LOOP void run(float* sums, const float* v, std::int64_t n, std::int64_t stride,
                   std::int64_t taps, std::int64_t step) {
    std::fill(sums, sums + n, 0.0F);
    for (std::int64_t t = 0; t < taps; ++t, v += step) {
      if (stride == 1)
        join(sums, v, n, 1);
      else if (stride == 2)
        join(sums, v, n, 2);
      else
        join(sums, v, n, stride);
    }
  }
};
template <class T>
struct PutRow {
  BP_LOOP void run(T* out, const float* from, std::int64_t n) {
#pragma omp simd
    for (std::int64_t j = 0; j < n; ++j) Lane::write(out[j], from[j]);
  }
};
template <class T>
struct PutMeans {
  BP_LOOP void run(T* out, const float* sums, const float* divisors, float factor, std::int64_t n) {
#pragma omp simd
    for (std::int64_t j = 0; j < n; ++j) Lane::write(out[j], sums[j] / (divisors[j] * factor));
  }
};
template <class T>
struct RunSum {
  BP_LOOP void run(float* out, const T* x, std::int64_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < n; ++i) sum += Lane::read(x[i]);
    *out = sum;
  }
};

template <class T>
struct Loops {
  decltype(processor_loop<PatchMax<T>>()) patch_max = processor_loop<PatchMax<T>>();
  decltype(processor_loop<PatchMean<T>>()) patch_mean = processor_loop<PatchMean<T>>();
  decltype(processor_loop<RowsMax<T>>()) rows_max = processor_loop<RowsMax<T>>();
  decltype(processor_loop<RowsSum<T>>()) rows_sum = processor_loop<RowsSum<T>>();
  decltype(processor_loop<ColumnsMax>()) columns_max = processor_loop<ColumnsMax>();
  decltype(processor_loop<ColumnsSum>()) columns_sum = processor_loop<ColumnsSum>();
  decltype(processor_loop<PutRow<T>>()) put_row = processor_loop<PutRow<T>>();
  decltype(processor_loop<PutMeans<T>>()) put_means = processor_loop<PutMeans<T>>();
  decltype(processor_loop<RunSum<T>>()) run_sum = processor_loop<RunSum<T>>();
};

// How windows lie along the columns, if regularly.
struct Grid {
  bool regular = false;
  std::int64_t stride = 1, taps = 0, step = 1;
  std::int64_t padding = 0;  // before the first column
};

struct Plan {
  bool maximum = false;
  Windows rows, columns;
  Grid grid;
  float divisor = 0;  // 0: by the windows' sizes
};

template <class T>
class Pooling : public sdk::Kernel {
 public:
  Pooling(const StepContext& context, Plan plan) : plan_(std::move(plan)) {
    const sdk::TensorSpec& in = context.operand(0);
    const std::size_t rank = in.rank();
    inside_ = rank == 4 && channels_inside(in);
    in_columns_ = in.dims[rank - 1];
    in_area_ = in.dims[rank - 2] * in_columns_;
    out_columns_ = static_cast<std::int64_t>(plan_.columns.size());
    out_rows_ = static_cast<std::int64_t>(plan_.rows.size());
    channels_ = in.dims[rank - 3];
    images_ = rank == 4 ? in.dims[0] : 1;
    Shape out_dims = in.dims;
    out_dims[rank - 2] = out_rows_;
    out_dims[rank - 1] = out_columns_;
    empty_ = product(out_dims) == 0;
    input_ = DenseOperand(context, 0, scratch_, inside_ ? channels_last_order(in.dims) : Shape{});
    const Shape order = inside_ ? channels_last_order(out_dims) : Shape{};
    if (result_wanted(context, 0, rank)) output_ = DenseResult(context, 0, scratch_, order);
    if (plan_.maximum && result_wanted(context, 1, rank))
      indices_ = DenseResult(context, 1, scratch_, order);
    for (const Window& w : plan_.columns) {
      sizes_.push_back(plan_.divisor != 0 ? plan_.divisor : static_cast<float>(w.size));
      if (w.start != 0 || w.count != in_columns_ || w.step != 1) whole_rows_ = false;
      if (w.count == 0) bare_columns_.push_back(&w - plan_.columns.data());
    }
    if (inside_) return;
    // The joined row with what windows of whole vectors reach before and behind it.
    const Grid& g = plan_.grid;
    wide_ = whole_lanes(out_columns_);
    const std::int64_t reach = g.regular ? wide_ * g.stride + g.taps * g.step : 0;
    row_ = std::max(g.padding + whole_lanes(in_columns_), whole_lanes(reach));
    room_ = 2 * row_ + 2 * wide_;
    parts_ = team_size(images_ * channels_ * out_rows_, work());
    rooms_ = scratch_.take_floats(room_ * parts_);
  }

  std::uint64_t scratch_bytes() const override { return scratch_.bytes(); }

  sdk::Status run(const KernelCall& call) const override {
    if (empty_) return {};
    const auto* in = reinterpret_cast<const T*>(input_.get(call));
    auto* out = reinterpret_cast<T*>(output_.get(call));
    auto* indices = reinterpret_cast<std::int64_t*>(indices_.get(call));
    if (inside_)
      run_pixels(in, out, indices);
    else
      run_planes(call, in, out, indices);
    output_.finish(call);
    indices_.finish(call);
    return {};
  }

 private:
  static std::int64_t whole_lanes(std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }
  std::int64_t work() const {
    const std::int64_t taps = plan_.rows.empty() || plan_.columns.empty()
                                  ? 0
                                  : plan_.rows.front().count + plan_.columns.front().count;
    return images_ * channels_ * out_rows_ * out_columns_ * (taps + 1);
  }
  float divisor(std::int64_t row) const {
    return plan_.divisor != 0 ? 1.0F : static_cast<float>(at(plan_.rows, row).size);
  }
  static const Window& at(const Windows& windows, std::int64_t i) {
    return windows[static_cast<std::size_t>(i)];
  }

  void run_pixels(const T* in, T* out, std::int64_t* indices) const {
    const std::int64_t blocks = (channels_ + kBlock - 1) / kBlock;
    const std::int64_t units = images_ * out_rows_ * out_columns_ * blocks;
    parallel_ranges(units, work(), [&](int, std::int64_t begin, std::int64_t end) {
      T unused[kBlock];
      std::int64_t first = begin % blocks * kBlock, pixel = begin / blocks,
                   column = pixel % out_columns_, row = pixel / out_columns_ % out_rows_,
                   image = pixel / out_columns_ / out_rows_;
      const auto next = [&] {
        if ((first += kBlock) < channels_) return;
        first = 0;
        ++pixel;
        if (++column < out_columns_) return;
        column = 0;
        if (++row < out_rows_) return;
        row = 0;
        ++image;
      };
      for (std::int64_t u = begin; u < end; ++u, next()) {
        const std::int64_t n = std::min(kBlock, channels_ - first);
        const T* x = in + image * in_area_ * channels_;
        const Patch patch{at(plan_.rows, row), at(plan_.columns, column), in_columns_, channels_};
        const std::int64_t to = pixel * channels_ + first;
        T* target = out ? out + to : unused;
        if (plan_.maximum)
          loops_.patch_max(target, indices ? indices + to : nullptr, x, patch, first, n);
        else
          loops_.patch_mean(target, x, patch, first, n,
                            sizes_[static_cast<std::size_t>(column)] * divisor(row));
      }
    });
  }

  void run_planes(const KernelCall& call, const T* in, T* out, std::int64_t* indices) const {
    parallel_ranges(parts_, work(), [&](int, std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) run_part(call, part, in, out, indices);
    });
  }
  // A part has its own room, however many threads there are by now.
  void run_part(const KernelCall& call, std::int64_t part, const T* in, T* out,
                std::int64_t* indices) const {
    const std::int64_t units = images_ * channels_ * out_rows_;
    const T* const in_end = in + images_ * channels_ * in_area_;
    float* joined = reinterpret_cast<float*>(call.scratch + rooms_) + part * room_;
    auto* joined_at = reinterpret_cast<std::int32_t*>(joined + row_);
    std::fill(joined, joined + row_, plan_.maximum ? kLowest : 0.0F);
    if (plan_.maximum) std::fill(joined_at, joined_at + row_, kNowhere);
    for (std::int64_t u = units * part / parts_; u < units * (part + 1) / parts_; ++u) {
      const T* plane = in + u / out_rows_ * in_area_;
      const std::int64_t row = u % out_rows_;
      // Whole vectors may run into the next row, though not past the end of the input.
      const Window& window = at(plan_.rows, row);
      const std::int64_t last = window.start + (window.count - 1) * window.step;
      std::int64_t n = whole_lanes(in_columns_);
      if (window.count > 0 && in_end - plane < last * in_columns_ + n) n = in_columns_;
      if (plan_.maximum)
        max_row(plane, window, n, joined, joined_at, out ? out + u * out_columns_ : nullptr,
                indices ? indices + u * out_columns_ : nullptr);
      else if (out != nullptr)
        mean_row(plane, row, n, joined, out + u * out_columns_);
    }
  }
  void max_row(const T* plane, const Window& row, std::int64_t n, float* joined,
               std::int32_t* joined_at, T* out, std::int64_t* indices) const {
    const Grid& g = plan_.grid;
    float* best = joined + 2 * row_;
    auto* where = reinterpret_cast<std::int32_t*>(best + wide_);
    loops_.rows_max(joined + g.padding, joined_at + g.padding, plane, row, in_columns_, n);
    std::fill(joined + g.padding + in_columns_, joined + g.padding + n, kLowest);
    std::fill(joined_at + g.padding + in_columns_, joined_at + g.padding + n, kNowhere);
    if (g.regular) {
      loops_.columns_max(best, where, joined, joined_at, wide_, g.stride, g.taps, g.step);
    } else {
      for (std::int64_t j = 0; j < out_columns_; ++j) {
        const Window& w = at(plan_.columns, j);
        loops_.columns_max(best + j, where + j, joined + w.start, joined_at + w.start, 1, 1,
                           w.count, w.step);
      }
    }
    if (out != nullptr) loops_.put_row(out, best, out_columns_);
    if (indices == nullptr) return;
    std::copy(where, where + out_columns_, indices);
    for (const std::int64_t j : bare_columns_)
      indices[j] = row.start * in_columns_ + at(plan_.columns, j).start;
  }
  void mean_row(const T* plane, std::int64_t row, std::int64_t n, float* joined, T* out) const {
    const Grid& g = plan_.grid;
    const Window& window = at(plan_.rows, row);
    float* sums = joined + 2 * row_;
    if (whole_rows_ && window.step == 1) {
      float sum = 0;
      loops_.run_sum(&sum, plane + window.start * in_columns_, window.count * in_columns_);
      std::fill(sums, sums + out_columns_, sum);
    } else {
      loops_.rows_sum(joined + g.padding, plane, window, in_columns_, n);
      std::fill(joined + g.padding + in_columns_, joined + g.padding + n, 0.0F);
      if (g.regular) {
        loops_.columns_sum(sums, joined, wide_, g.stride, g.taps, g.step);
      } else {
        for (std::int64_t j = 0; j < out_columns_; ++j) {
          const Window& w = at(plan_.columns, j);
          loops_.columns_sum(sums + j, joined + w.start, 1, 1, w.count, w.step);
        }
      }
    }
    loops_.put_means(out, sums, sizes_.data(), divisor(row), out_columns_);
  }

  Plan plan_;
  ScratchPlan scratch_;
  Loops<T> loops_;
  DenseOperand input_;
  DenseResult output_, indices_;
  std::vector<float> sizes_;                // divisors along the columns
  std::vector<std::int64_t> bare_columns_;  // of no elements: their index is the window's start
  std::int64_t images_ = 1, channels_ = 1, in_columns_ = 0, in_area_ = 0, out_rows_ = 0,
               out_columns_ = 0, wide_ = 0, row_ = 0, room_ = 0, parts_ = 1;
  std::uint64_t rooms_ = 0;
  bool inside_ = false, empty_ = false, whole_rows_ = true;
};

MadeKernel make_pooling(const StepContext& context, Plan plan) {
  const sdk::TensorSpec& in = context.operand(0);
  if (in.dims[in.rank() - 1] * in.dims[in.rank() - 2] >= kNowhere)
    return sdk::Status(BP_UNSUPPORTED, "a plane of 2^31 elements");
  if (known_type(in.dtype) == Type::kBF16)
    return std::unique_ptr<sdk::Kernel>(
        std::make_unique<Pooling<BFloat16>>(context, std::move(plan)));
  return std::unique_ptr<sdk::Kernel>(std::make_unique<Pooling<float>>(context, std::move(plan)));
}

// Of values or indices, whichever was asked for.
const Shape& result_dims(const StepContext& context) {
  return context.result(result_exists(context, 0, context.operand(0).rank()) ? 0 : 1).dims;
}

// Windows of kernel_size, stride, padding and dilation.
Plan sliding(const StepContext& context, bool maximum) {
  const Shape kernel = context.ints("kernel_size"), given = context.ints("stride"),
              pad = context.ints("padding"), dilation = context.ints("dilation");
  const Shape& stride = given.empty() ? kernel : given;
  const bool count_padding = context.node().bool_or("count_include_pad", true);
  const auto pick = [](const Shape& s, std::size_t d, std::int64_t fallback) {
    return s.empty() ? fallback : s[std::min(d, s.size() - 1)];
  };
  Plan plan;
  plan.maximum = maximum;
  const Shape &in = context.operand(0).dims, &out = result_dims(context);
  for (std::size_t d = 0; d < 2; ++d) {
    const std::int64_t size = in[in.size() - 2 + d], count = out[out.size() - 2 + d],
                       padding = pick(pad, d, 0), taps = pick(kernel, d, 1),
                       step = pick(dilation, d, 1), by = pick(stride, d, 1);
    Windows& windows = d == 0 ? plan.rows : plan.columns;
    for (std::int64_t o = 0; o < count; ++o) {
      const std::int64_t start = o * by - padding;
      const std::int64_t skipped = start < 0 ? (-start + step - 1) / step : 0;
      const std::int64_t inner = start + skipped * step;
      const std::int64_t inside = inner < size ? (size - inner + step - 1) / step : 0;
      const std::int64_t used = std::clamp<std::int64_t>(taps - skipped, 0, inside);
      const std::int64_t reach = std::min(start + taps, size + padding) - start;
      windows.push_back({inner, used, step, count_padding ? reach : used});
    }
    // Between a single window and the next, or a single tap and the next, any distance is legal.
    if (d == 1) plan.grid = {true, count > 1 ? by : 1, taps, taps > 1 ? step : 1, padding};
  }
  return plan;
}
MadeKernel max_pool(const StepContext& context) {
  return make_pooling(context, sliding(context, true));
}
MadeKernel average_pool(const StepContext& context) {
  Plan plan = sliding(context, false);
  plan.divisor = static_cast<float>(context.int_or("divisor_override", 0));
  // Windows wholly in the padding: no elements, and the sum of nothing is to be 0, not 0 / 0.
  for (Windows* windows : {&plan.rows, &plan.columns})
    for (Window& w : *windows)
      if (w.count == 0) w.size = 1;
  return make_pooling(context, std::move(plan));
}

MadeKernel adaptive_pool(const StepContext& context, bool maximum) {
  Plan plan;
  plan.maximum = maximum;
  const Shape &in = context.operand(0).dims, &out = result_dims(context);
  for (std::size_t d = 0; d < 2; ++d) {
    const std::int64_t size = in[in.size() - 2 + d], count = out[out.size() - 2 + d];
    Windows& windows = d == 0 ? plan.rows : plan.columns;
    for (std::int64_t o = 0; o < count; ++o) {
      const std::int64_t start = o * size / count, end = ((o + 1) * size + count - 1) / count;
      windows.push_back({start, end - start, 1, end - start});
    }
    if (d == 1 && count > 0 && size % count == 0)
      plan.grid = {true, size / count, size / count, 1, 0};
  }
  return make_pooling(context, std::move(plan));
}
MadeKernel adaptive_average_pool(const StepContext& context) {
  return adaptive_pool(context, false);
}
MadeKernel adaptive_max_pool(const StepContext& context) { return adaptive_pool(context, true); }

std::optional<sdk::Refusal> refuse_pooling(const sdk::NodeView& node) {
  if (!is_f32_or_bf16(node.operand(0).dtype()))
    return refusal(BP_REFUSED_DTYPE, "pooling of float32 and bfloat16 only");
  const std::size_t rank = node.operand(0).rank();
  if (rank != 3 && rank != 4) return refusal(BP_REFUSED_SHAPE, "pooling needs three dims or four");
  return std::nullopt;
}

constexpr KernelRow kRows[] = {
    {"aten.max_pool2d_with_indices", max_pool, refuse_pooling},
    {"aten.max_pool2d", max_pool, refuse_pooling},
    {"aten.avg_pool2d", average_pool, refuse_pooling},
    {"aten._adaptive_avg_pool2d", adaptive_average_pool, refuse_pooling},
    {"aten.adaptive_avg_pool2d", adaptive_average_pool, refuse_pooling},
    {"aten.adaptive_max_pool2d", adaptive_max_pool, refuse_pooling},
};

}  // namespace

KernelRows pooling_kernels() { return kRows; }

}  // namespace backplane::onednn
