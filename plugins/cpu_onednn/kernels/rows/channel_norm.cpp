// Batch norm and group norm. Both are made of pieces: a channel's plane of one image, or, where
// channels lie next to each other in memory, a channel's column of rows. Statistics are merged
// over sets of pieces: a channel of all images, or the channels of a group.
#include <algorithm>
#include <cmath>

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

// Elements summed in float before the sums go to doubles; of a column, rows.
constexpr std::int64_t kChunk = 2048, kChunkRows = 64, kShiftRows = 32;
constexpr std::int64_t kColumns = 64;  // whose sums are kept together

// sums[0] += sum of (x - shift), sums[1] += sum of squares of the same.
template <class T>
struct PlaneSums {
  BP_LOOP void run(const T* x, std::int64_t n, float shift, double* sums) {
    for (std::int64_t begin = 0; begin < n; begin += kChunk) {
      const std::int64_t size = std::min(kChunk, n - begin), half = size / (2 * kLanes) * kLanes;
      const T *a = x + begin, *b = a + half;
      // Two of each hide the latency of additions.
      float s0 = 0, s1 = 0, q0 = 0, q1 = 0;
#pragma omp simd reduction(+ : s0, s1, q0, q1)
      for (std::int64_t i = 0; i < half; ++i) {
        const float u = Lane::read(a[i]) - shift, v = Lane::read(b[i]) - shift;
        s0 += u;
        s1 += v;
        q0 += u * u;
        q1 += v * v;
      }
#pragma omp simd reduction(+ : s0, q0)
      for (std::int64_t i = 2 * half; i < size; ++i) {
        const float u = Lane::read(a[i]) - shift;
        s0 += u;
        q0 += u * u;
      }
      sums[0] += static_cast<double>(s0) + static_cast<double>(s1);
      sums[1] += static_cast<double>(q0) + static_cast<double>(q1);
    }
  }
};
// The same of columns [0, n) of rows that are `step` elements apart: shift and sums per column.
template <class T>
struct ColumnSums {
  BP_LOOP void run(const T* x, std::int64_t rows, std::int64_t n, std::int64_t step,
                   const float* shift, double* sums, double* squares) {
    for (std::int64_t c = 0; c < n; c += kColumns) {
      const std::int64_t width = std::min(kColumns, n - c);
      for (std::int64_t begin = 0; begin < rows; begin += kChunkRows) {
        const std::int64_t end = std::min(begin + kChunkRows, rows);
        float s[kColumns] = {}, q[kColumns] = {};
        for (std::int64_t r = begin; r < end; ++r) {
          const T* row = x + r * step + c;
#pragma omp simd
          for (std::int64_t k = 0; k < width; ++k) {
            const float u = Lane::read(row[k]) - shift[c + k];
            s[k] += u;
            q[k] += u * u;
          }
        }
        for (std::int64_t k = 0; k < width; ++k) {
          sums[c + k] += static_cast<double>(s[k]);
          squares[c + k] += static_cast<double>(q[k]);
        }
      }
    }
  }
};
template <class T>
struct PlaneApply {
  BP_LOOP void run(T* y, const T* x, std::int64_t n, float center, float scale, float shift) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i)
      Lane::write(y[i], (Lane::read(x[i]) - center) * scale + shift);
  }
};
template <class T>
struct RowsApply {
  BP_LOOP void run(T* y, const T* x, std::int64_t rows, std::int64_t n, const float* center,
                   const float* scale, const float* shift) {
    for (std::int64_t r = 0; r < rows; ++r, y += n, x += n) {
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i)
        Lane::write(y[i], (Lane::read(x[i]) - center[i]) * scale[i] + shift[i]);
    }
  }
};

template <class T>
struct Loops {
  decltype(processor_loop<PlaneSums<T>>()) plane_sums = processor_loop<PlaneSums<T>>();
  decltype(processor_loop<ColumnSums<T>>()) column_sums = processor_loop<ColumnSums<T>>();
  decltype(processor_loop<PlaneApply<T>>()) plane_apply = processor_loop<PlaneApply<T>>();
  decltype(processor_loop<RowsApply<T>>()) rows_apply = processor_loop<RowsApply<T>>();
};

struct Sets {
  bool inside;  // pieces are columns
  std::int64_t channels;
  std::int64_t pieces, size;    // size: elements of a piece
  std::int64_t blocks;          // of columns: pieces / channels
  std::int64_t count, per_set;  // piece i of set s is s * set_step + i * piece_step
  std::int64_t set_step, piece_step;
  double elements() const { return static_cast<double>(per_set) * static_cast<double>(size); }
};

Sets batch_norm_sets(const sdk::TensorSpec& in) {
  const std::int64_t images = in.dims[0], channels = in.dims[1],
                     area = product({in.dims.data() + 2, in.rank() - 2});
  if (area == 1 || channels_inside(in))
    return {true, channels, channels, images * area, 1, channels, 1, 1, 1};
  return {false, channels, images * channels, area, images, channels, images, 1, channels};
}
Sets group_norm_sets(const StepContext& context) {
  const std::int64_t images = context.int_or("N", 1), channels = context.int_or("C", 1),
                     groups = context.int_or("group", 1), wide = channels / groups;
  const std::int64_t area = context.int_or("HxW", 1);
  return {area == 1 || channels_inside(context.operand(0)),
          channels,
          images * channels,
          area,
          images,
          images * groups,
          wide,
          wide,
          1};
}

// What a norm reads and writes besides input, output, weight and bias.
struct Statistics {
  bool measured = true;  // else running mean and variance are used
  DenseOperand running_mean, running_variance;
  DenseResult mean, rstd, next_mean, next_variance;
  double momentum = 0, eps = 0;
  bool is_batch = false;  // of a batch norm, by which equal values become zeros where eps is 0
};

template <class T>
class ChannelNorm : public sdk::Kernel {
 public:
  ChannelNorm(const StepContext& context, const Sets& sets, ScratchPlan plan, Statistics statistics)
      : sets_(sets), plan_(plan), statistics_(std::move(statistics)) {
    const Shape order = channels_inside(context.operand(0))
                            ? channels_last_order(context.operand(0).dims)
                            : Shape{};
    input_ = DenseOperand(context, 0, plan_, order);
    weight_ = DenseOperand::optional(context, 1, plan_);
    bias_ = DenseOperand::optional(context, 2, plan_);
    if (result_wanted(context, 0, context.operand(0).rank()))
      output_ = DenseResult(context, 0, plan_, order);
    const std::int64_t threads = work() < kSmallWork ? 1 : omp_get_max_threads();
    // Enough parts of every block of columns for all threads.
    const std::int64_t blocks = std::max<std::int64_t>(sets_.blocks, 1);
    parts_ = sets_.inside
                 ? std::clamp<std::int64_t>((threads + blocks - 1) / blocks, 1,
                                            std::max<std::int64_t>(sets_.size / kShiftRows, 1))
                 : 1;
    by_set_ = !sets_.inside && sets_.count >= threads;
    parameters_ = plan_.take_floats(4 * sets_.channels);
    coefficients_ = plan_.take_floats(3 * sets_.pieces);  // scale, shift; guess, then center
    of_sets_ = plan_.take_floats(3 * sets_.count);        // mean, rstd, unbiased variance
    sums_ = plan_.take(2 * 8 * sets_.pieces * parts_);
  }

  std::uint64_t scratch_bytes() const override { return plan_.bytes(); }

  sdk::Status run(const KernelCall& call) const override {
    Memory m{};
    m.input = reinterpret_cast<const T*>(input_.get(call));
    m.output = reinterpret_cast<T*>(output_.get(call));
    m.weight = floats(call, parameters_);
    m.bias = m.weight + sets_.channels;
    m.running_mean = m.bias + sets_.channels;
    m.running_variance = m.running_mean + sets_.channels;
    m.scale = floats(call, coefficients_);
    m.shift = m.scale + sets_.pieces;
    m.guess = m.center = m.shift + sets_.pieces;
    m.mean = floats(call, of_sets_);
    m.rstd = m.mean + sets_.count;
    m.variance = m.rstd + sets_.count;
    m.sums = reinterpret_cast<double*>(call.scratch + sums_);
    m.squares = m.sums + sets_.pieces;
    load(call, weight_, m.weight, 1);
    load(call, bias_, m.bias, 0);
    load(call, statistics_.running_mean, m.running_mean, 0);
    load(call, statistics_.running_variance, m.running_variance, 0);
    if (sets_.inside)
      run_columns(m);
    else
      run_planes(m);
    output_.finish(call);
    write_statistics(call, m);
    return {};
  }

 private:
  struct Memory {
    const T* input;
    T* output;
    float *weight, *bias, *running_mean, *running_variance, *scale, *shift, *mean, *rstd, *variance;
    float* guess;            // per piece: close to its mean, which the sums are taken from
    float* center;           // in the same place, once the sums are used: what elements are near
    double *sums, *squares;  // per piece: of the differences from the guess
  };

  std::int64_t work() const { return sets_.pieces * sets_.size * 3; }
  static float* floats(const KernelCall& call, std::uint64_t at) {
    return reinterpret_cast<float*>(call.scratch + at);
  }
  void load(const KernelCall& call, const DenseOperand& from, float* to, float fallback) const {
    const std::byte* data = from.get(call);
    if (data != nullptr)
      load_function(from.type(), Domain::kF32)(to, data, 1, sets_.channels);
    else
      std::fill(to, to + sets_.channels, fallback);
  }

  // The statistics of a set and the coefficients of its pieces.
  void finish_set(const Memory& m, std::int64_t set) const {
    double mean = 0, variance = 0;
    const auto piece_of = [&](std::int64_t i) {
      return set * sets_.set_step + i * sets_.piece_step;
    };
    if (statistics_.measured) {
      const std::int64_t parts = joined() ? 1 : sets_.per_set;
      const auto size = static_cast<double>(joined() ? sets_.per_set * sets_.size : sets_.size);
      const auto mean_of = [&](std::int64_t p) {
        return static_cast<double>(m.guess[p]) + m.sums[p] / size;
      };
      for (std::int64_t i = 0; i < parts; ++i) mean += mean_of(piece_of(i));
      mean /= static_cast<double>(parts);
      double squares = 0;
      for (std::int64_t i = 0; i < parts; ++i) {
        const std::int64_t p = piece_of(i);
        const double away = mean_of(p) - mean, sum = m.sums[p];
        squares += std::max(m.squares[p] - sum * (sum / size), 0.0) + size * away * away;
      }
      if (sets_.elements() == 1) squares = 0;  // and no variance that is unbiased: NaN
      variance = squares / sets_.elements();
      m.variance[set] = static_cast<float>(squares / (sets_.elements() - 1));
    } else {
      mean = static_cast<double>(m.running_mean[set]);
      variance = static_cast<double>(m.running_variance[set]);
    }
    const double spread = variance + statistics_.eps;
    const bool is_flat = statistics_.is_batch && statistics_.measured && spread == 0;
    const double rstd = is_flat ? 0 : 1 / std::sqrt(spread);
    m.mean[set] = static_cast<float>(mean);
    m.rstd[set] = static_cast<float>(rstd);
    for (std::int64_t i = 0; i < sets_.per_set; ++i) {
      const std::int64_t p = piece_of(i), c = p % sets_.channels;
      const double scale = rstd * static_cast<double>(m.weight[c]);
      m.center[p] = finite_or_zero(mean);
      m.scale[p] = static_cast<float>(scale);
      m.shift[p] = static_cast<float>(static_cast<double>(m.bias[c]) -
                                      (mean - static_cast<double>(m.center[p])) * scale);
    }
  }

  static float finite_or_zero(double v) { return std::isfinite(v) ? static_cast<float>(v) : 0; }

  // Whether the planes of a set are one run of memory, and are measured as one.
  bool joined() const { return by_set_ && sets_.piece_step == 1; }

  // The mean of the first elements is close enough to the mean of all that the squares of
  // differences from it can be summed in one pass.
  void measure_plane(const Memory& m, std::int64_t piece, std::int64_t size) const {
    const T* x = m.input + piece * sets_.size;
    const std::int64_t head = std::min(size, std::clamp<std::int64_t>(size / 16, 64, kChunk));
    double first[2] = {0, 0}, all[2] = {0, 0};
    loops_.plane_sums(x, head, 0, first);
    const float guess = finite_or_zero(first[0] / static_cast<double>(head));
    loops_.plane_sums(x, size, guess, all);
    m.guess[piece] = guess;
    m.sums[piece] = all[0];
    m.squares[piece] = all[1];
  }
  void apply_plane(const Memory& m, std::int64_t piece) const {
    if (m.output == nullptr) return;
    loops_.plane_apply(m.output + piece * sets_.size, m.input + piece * sets_.size, sets_.size,
                       m.center[piece], m.scale[piece], m.shift[piece]);
  }
  void run_planes(const Memory& m) const {
    if (by_set_) {  // a set's planes are still in the cache when they are written
      parallel_ranges(sets_.count, work(), [&](int, std::int64_t begin, std::int64_t end) {
        for (std::int64_t set = begin; set < end; ++set) {
          const std::int64_t first = set * sets_.set_step;
          if (statistics_.measured && joined())
            measure_plane(m, first, sets_.per_set * sets_.size);
          else if (statistics_.measured)
            for (std::int64_t i = 0; i < sets_.per_set; ++i)
              measure_plane(m, first + i * sets_.piece_step, sets_.size);
          finish_set(m, set);
          for (std::int64_t i = 0; i < sets_.per_set; ++i)
            apply_plane(m, first + i * sets_.piece_step);
        }
      });
      return;
    }
    if (statistics_.measured)
      parallel_ranges(sets_.pieces, work(), [&](int, std::int64_t begin, std::int64_t end) {
        for (std::int64_t p = begin; p < end; ++p) measure_plane(m, p, sets_.size);
      });
    for (std::int64_t set = 0; set < sets_.count; ++set) finish_set(m, set);
    parallel_ranges(sets_.pieces, work(), [&](int, std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) apply_plane(m, p);
    });
  }

  // Every part of a block's rows has sums of its own until all are added to the first's.
  void measure_columns(const Memory& m) const {
    const std::int64_t n = sets_.channels, rows = sets_.size, all = 2 * sets_.pieces;
    std::fill(m.sums, m.sums + all * parts_, 0.0);
    const std::int64_t head = std::min(rows, kShiftRows);
    const auto units = [&](std::int64_t count, auto&& body) {
      parallel_ranges(count, work(), [&](int, std::int64_t begin, std::int64_t end) {
        for (std::int64_t u = begin; u < end; ++u) body(u);
      });
    };
    units(sets_.blocks, [&](std::int64_t block) {
      const std::int64_t at = block * n;
      double *sums = m.sums + at, *squares = m.squares + at;
      float* guess = m.guess + at;
      std::fill(guess, guess + n, 0.0F);
      loops_.column_sums(m.input + at * rows, head, n, n, guess, sums, squares);
      for (std::int64_t c = 0; c < n; ++c)
        guess[c] = finite_or_zero(sums[c] / static_cast<double>(head));
      std::fill(sums, sums + n, 0.0);
      std::fill(squares, squares + n, 0.0);
    });
    units(sets_.blocks * parts_, [&](std::int64_t u) {
      const std::int64_t at = u / parts_ * n, part = u % parts_;
      const std::int64_t first = rows * part / parts_, last = rows * (part + 1) / parts_;
      loops_.column_sums(m.input + at * rows + first * n, last - first, n, n, m.guess + at,
                         m.sums + part * all + at, m.squares + part * all + at);
    });
    for (std::int64_t part = 1; part < parts_; ++part)
      for (std::int64_t i = 0; i < all; ++i) m.sums[i] += m.sums[part * all + i];
  }
  void run_columns(const Memory& m) const {
    const std::int64_t n = sets_.channels, rows = sets_.size;
    if (statistics_.measured) measure_columns(m);
    for (std::int64_t set = 0; set < sets_.count; ++set) finish_set(m, set);
    if (m.output == nullptr) return;
    parallel_ranges(sets_.blocks * rows, work(), [&](int, std::int64_t begin, std::int64_t end) {
      while (begin < end) {
        const std::int64_t block = begin / rows, stop = std::min(end, (block + 1) * rows);
        loops_.rows_apply(m.output + begin * n, m.input + begin * n, stop - begin, n,
                          m.center + block * n, m.scale + block * n, m.shift + block * n);
        begin = stop;
      }
    });
  }

  void write_statistics(const KernelCall& call, const Memory& m) const {
    const auto put = [&](const DenseResult& to, const float* from, std::int64_t n) {
      if (!to.present() || n == 0) return;
      RowWriter(to.type()).put(to.get(call), 0, n, from);
      to.finish(call);
    };
    put(statistics_.mean, m.mean, sets_.count);
    put(statistics_.rstd, m.rstd, sets_.count);
    if (!statistics_.next_mean.present() && !statistics_.next_variance.present()) return;
    if (statistics_.measured) {
      const auto part = static_cast<float>(statistics_.momentum);
      for (std::int64_t c = 0; c < sets_.channels; ++c) {
        m.running_mean[c] = part * m.mean[c] + (1 - part) * m.running_mean[c];
        m.running_variance[c] = part * m.variance[c] + (1 - part) * m.running_variance[c];
      }
    }
    put(statistics_.next_mean, m.running_mean, sets_.channels);
    put(statistics_.next_variance, m.running_variance, sets_.channels);
  }

  Sets sets_;
  ScratchPlan plan_;
  Statistics statistics_;
  Loops<T> loops_;
  DenseOperand input_, weight_, bias_;
  DenseResult output_;
  std::int64_t parts_ = 1;
  bool by_set_ = false;
  std::uint64_t parameters_ = 0, coefficients_ = 0, of_sets_ = 0, sums_ = 0;
};

MadeKernel make_norm(const StepContext& context, const Sets& sets, ScratchPlan plan,
                     Statistics statistics) {
  if (known_type(context.operand(0).dtype) == Type::kBF16)
    return std::unique_ptr<sdk::Kernel>(
        std::make_unique<ChannelNorm<BFloat16>>(context, sets, plan, std::move(statistics)));
  return std::unique_ptr<sdk::Kernel>(
      std::make_unique<ChannelNorm<float>>(context, sets, plan, std::move(statistics)));
}
DenseResult statistic(const StepContext& context, std::size_t result, std::size_t rank,
                      ScratchPlan& plan) {
  return result_wanted(context, result, rank) ? DenseResult(context, result, plan) : DenseResult();
}

bool keeps_statistics(std::string_view op) {
  return op != "aten._native_batch_norm_legit.no_stats";
}
bool measures(const sdk::NodeView& node) {
  return node.op() != "aten._native_batch_norm_legit_no_training" && node.bool_or("training", true);
}
MadeKernel batch_norm(const StepContext& context) {
  ScratchPlan plan;
  Statistics s;
  const sdk::NodeView node = context.node();
  s.is_batch = true;
  s.measured = measures(node);
  if (s.measured && context.operand(0).elements() == 0)
    return sdk::Status(BP_INVALID_ARGUMENT, "batch norm has no elements to measure");
  s.eps = node.real_or("eps", 1e-5);
  s.momentum = node.real_or("momentum", 0.1);
  if (keeps_statistics(node.op())) {
    s.running_mean = DenseOperand::optional(context, 3, plan);
    s.running_variance = DenseOperand::optional(context, 4, plan);
  }
  s.mean = statistic(context, 1, 1, plan);
  s.rstd = statistic(context, 2, 1, plan);
  s.next_mean = statistic(context, 3, 1, plan);
  s.next_variance = statistic(context, 4, 1, plan);
  return make_norm(context, batch_norm_sets(context.operand(0)), plan, std::move(s));
}
MadeKernel group_norm(const StepContext& context) {
  ScratchPlan plan;
  Statistics s;
  s.eps = context.node().real_or("eps", 1e-5);
  s.mean = statistic(context, 1, 2, plan);
  s.rstd = statistic(context, 2, 2, plan);
  return make_norm(context, group_norm_sets(context), plan, std::move(s));
}

std::optional<sdk::Refusal> refuse_types(const sdk::NodeView& node, std::size_t rank) {
  for (std::size_t i = 0; i < node.operand_count(); ++i)
    if (node.has_operand(i) && !is_f32_or_bf16(node.operand(i).dtype()))
      return refusal(BP_REFUSED_DTYPE, "norms of float32 and bfloat16 only");
  for (std::size_t i = 0; i < node.result_count(); ++i)
    if (node.result_index(i) != BP_NONE && node.result(i).dtype().bits != 0 &&
        !is_f32_or_bf16(node.result(i).dtype()))
      return refusal(BP_REFUSED_DTYPE, "norms of float32 and bfloat16 only");
  if (node.operand(0).rank() < rank)
    return refusal(BP_REFUSED_SHAPE, "a norm over channels needs two dims");
  return std::nullopt;
}
std::optional<sdk::Refusal> refuse_batch_norm(const sdk::NodeView& node) {
  if (auto no = refuse_types(node, 2)) return no;
  const bool kept = keeps_statistics(node.op()) && node.has_operand(3) && node.has_operand(4);
  if (!measures(node) && !kept)
    return refusal(BP_REFUSED_ATTRIBUTE, "batch norm without the statistics of its mode");
  if (measures(node) && node.has_operand(3) &&
      (node.op() == "aten.native_batch_norm" || node.op() == "aten._native_batch_norm_legit"))
    return refusal(BP_REFUSED_OP, "batch norm that writes its operands");
  return std::nullopt;
}
std::optional<sdk::Refusal> refuse_group_norm(const sdk::NodeView& node) {
  return refuse_types(node, 2);
}

constexpr KernelRow kRows[] = {
    {"aten._native_batch_norm_legit_functional", batch_norm, refuse_batch_norm},
    {"aten._native_batch_norm_legit_no_training", batch_norm, refuse_batch_norm},
    {"aten._native_batch_norm_legit.no_stats", batch_norm, refuse_batch_norm},
    {"aten._native_batch_norm_legit", batch_norm, refuse_batch_norm},
    {"aten.native_batch_norm", batch_norm, refuse_batch_norm},
    {"aten.native_group_norm", group_norm, refuse_group_norm},
};

}  // namespace

KernelRows channel_norm_kernels() { return kRows; }

}  // namespace backplane::onednn
