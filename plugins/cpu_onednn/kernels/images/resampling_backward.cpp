// Gradients of resampling. A point collects the results that it went into: rows of the gradient are
// summed to one row first, the columns of that row then, so that every result is written once.
#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/images/resampling.h"
#include "kernels/kernel_registry.h"
#include "kernels/movement/dense_memory.h"
#include "kernels/simd/processor_loops.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

using sdk::KernelCall;
using sdk::ResampledInto;
using sdk::Resampling;
using sdk::ResamplingReaders;
using sdk::StepContext;

// A sum of more terms goes through a block of floats.
constexpr std::int64_t kTerms = 4;
constexpr std::int64_t kBlock = 64;

// Of `count` rows that lie `stride` apart, n elements.
template <class From, class To>
struct SumRows {
  BP_LOOP void run(To* out, const From* x, const float* weights, std::int64_t count,
                   std::int64_t stride, std::int64_t n) {
    if (count <= kTerms) return few<false>(out, nullptr, x, weights, count, stride, n);
    const std::int64_t last = (count - 1) / kTerms * kTerms;
    for (std::int64_t first = 0; first < n; first += kBlock) {
      const std::int64_t m = std::min(kBlock, n - first);
      float sums[kBlock];
      few<false>(sums, nullptr, x + first, weights, kTerms, stride, m);
      for (std::int64_t i = kTerms; i < last; i += kTerms)
        few<true>(sums, sums, x + i * stride + first, weights + i, kTerms, stride, m);
      few<true>(out + first, sums, x + last * stride + first, weights + last, count - last, stride,
                m);
    }
  }

 private:
  template <bool kAdds, class Target>
  BP_LOOP void few(Target* out, const float* base, const From* x, const float* weights,
                   std::int64_t count, std::int64_t stride, std::int64_t n) {
    switch (count) {
      case 0:
        return terms<kAdds>(out, base, x, weights, stride, n, std::make_index_sequence<0>());
      case 1:
        return terms<kAdds>(out, base, x, weights, stride, n, std::make_index_sequence<1>());
      case 2:
        return terms<kAdds>(out, base, x, weights, stride, n, std::make_index_sequence<2>());
      case 3:
        return terms<kAdds>(out, base, x, weights, stride, n, std::make_index_sequence<3>());
      default:
        return terms<kAdds>(out, base, x, weights, stride, n, std::make_index_sequence<kTerms>());
    }
  }
  template <bool kAdds, class Target, std::size_t... kTerm>
  BP_LOOP void terms(Target* out, [[maybe_unused]] const float* base,
                     [[maybe_unused]] const From* x, const float* weights,
                     [[maybe_unused]] std::int64_t stride, std::int64_t n,
                     std::index_sequence<kTerm...>) {
    [[maybe_unused]] const float w[] = {weights[kTerm]..., 0.0F};  // apart from what is written
#pragma omp simd
    for (std::int64_t k = 0; k < n; ++k) {
      float sum = 0;
      if constexpr (kAdds) sum = base[k];
      ((sum += w[kTerm] * Lane::read(x[static_cast<std::int64_t>(kTerm) * stride + k])), ...);
      Lane::write(out[k], sum);
    }
  }
};
// Every column is a pixel of `channels` elements.
template <class To>
struct SumPixels {
  BP_LOOP void run(To* out, const float* x, const ResamplingReaders& columns,
                   std::int64_t channels) {
    for (const ResampledInto& into : columns.points) {
      SumRows<float, To>::run(out, x + into.first * channels,
                              columns.weights.data() + into.weights_at, into.count, channels,
                              channels);
      out += channels;
    }
  }
};

// The readers of every column as arrays that vectorise: up to kTerms of each, then the rest.
class ColumnTerms {
 public:
  struct Rest {
    std::int32_t column, from;
    float weight;
  };

  explicit ColumnTerms(const ResamplingReaders& readers)
      : columns_(static_cast<std::int64_t>(readers.points.size())) {
    for (const ResampledInto& p : readers.points) width_ = std::max(width_, p.count);
    width_ = width_ > 2 ? kTerms : width_;
    from_.resize(static_cast<std::size_t>(width_ * columns_));
    weights_.assign(from_.size(), std::numeric_limits<float>::quiet_NaN());
    for (std::int64_t c = 0; c < columns_; ++c) {
      const ResampledInto& p = readers.points[static_cast<std::size_t>(c)];
      for (std::int64_t k = 0; k < p.count; ++k) {
        const auto from = static_cast<std::int32_t>(p.first + k);
        const float weight = readers.weights[p.weights_at + static_cast<std::size_t>(k)];
        const auto at = static_cast<std::size_t>(k * columns_ + c);
        if (k < width_) {
          from_[at] = from;
          weights_[at] = weight;
        } else {
          rest_.push_back({static_cast<std::int32_t>(c), from, weight});
        }
      }
    }
  }
  std::int64_t width() const { return width_; }
  std::int64_t columns() const { return columns_; }
  const std::int32_t* from() const { return from_.data(); }
  const float* weights() const { return weights_.data(); }
  const std::vector<Rest>& rest() const { return rest_; }

 private:
  std::int64_t columns_, width_ = 1;
  std::vector<std::int32_t> from_;  // [term, column]; of weight NaN where there is no reader
  std::vector<float> weights_;
  std::vector<Rest> rest_;
};
struct SumColumns {
  BP_LOOP void run(float* out, const float* x, const ColumnTerms& c) {
    if (c.width() == 1)
      terms(out, x, c, std::make_index_sequence<1>());
    else if (c.width() == 2)
      terms(out, x, c, std::make_index_sequence<2>());
    else
      terms(out, x, c, std::make_index_sequence<kTerms>());
    for (const ColumnTerms::Rest& r : c.rest()) out[r.column] += r.weight * x[r.from];
  }

 private:
  template <std::size_t... kTerm>
  BP_LOOP void terms(float* out, const float* x, const ColumnTerms& c,
                     std::index_sequence<kTerm...>) {
    const std::int64_t n = c.columns();
    const std::int32_t* from = c.from();
    const float* weights = c.weights();
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      float sum = 0;
      ((sum += term(weights[static_cast<std::int64_t>(kTerm) * n + i],
                    x[from[static_cast<std::int64_t>(kTerm) * n + i]])),
       ...);
      out[i] = sum;
    }
  }
  // What is read with a weight of zero may be infinite, as what is not read.
  BP_LOOP float term(float weight, float x) { return weight == weight ? weight * x : 0.0F; }
};
template <class T>
struct PutRow {
  BP_LOOP void run(T* out, const float* x, std::int64_t n) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) Lane::write(out[i], x[i]);
  }
};

template <class T>
class Backward : public sdk::Kernel {
 public:
  Backward(const StepContext& context, Resampling method)
      : image_(context.operand(0), context.result().dims, context.operand(0).dims),
        rows_(sdk::transposed(resampled(context, method, 0, true), image_.in_rows)),
        columns_(sdk::transposed(resampled(context, method, 1, true), image_.in_columns)),
        terms_(columns_),
        grad_(context, 0, scratch_, image_.order(context.operand(0).dims)),
        output_(context, 0, scratch_, image_.order(context.result().dims)) {
    out_row_ = image_.out_columns * image_.channels;
    work_ = image_.planes *
            (image_.out_rows * out_row_ * 2 + image_.in_rows * image_.in_columns * image_.channels);
    parts_ = team_size(image_.planes * image_.in_rows, work_);
    room_ = whole_lanes(out_row_) + whole_lanes(image_.in_columns);
    rooms_ = scratch_.take_floats(room_ * parts_);
  }
  std::uint64_t scratch_bytes() const override { return scratch_.bytes(); }

  sdk::Status run(const KernelCall& call) const override {
    const auto* grad = reinterpret_cast<const T*>(grad_.get(call));
    auto* out = reinterpret_cast<T*>(output_.get(call));
    const std::int64_t units = image_.planes * image_.in_rows;
    parallel_ranges(parts_, work_, [&](int, std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        float* room = reinterpret_cast<float*>(call.scratch + rooms_) + part * room_;
        for (std::int64_t u = units * part / parts_; u < units * (part + 1) / parts_; ++u)
          row(u, grad, out + u * image_.in_columns * image_.channels, room);
      }
    });
    output_.finish(call);
    return {};
  }

 private:
  void row(std::int64_t u, const T* grad, T* out, float* room) const {
    const ResampledInto& into = rows_.points[static_cast<std::size_t>(u % image_.in_rows)];
    const std::int64_t from = u / image_.in_rows * image_.out_rows + into.first;
    sum_rows_(room, grad + from * out_row_, rows_.weights.data() + into.weights_at, into.count,
              out_row_, out_row_);
    if (image_.channels > 1) return sum_pixels_(out, room, columns_, image_.channels);
    if constexpr (std::is_same_v<T, float>) {
      sum_columns_(out, room, terms_);
    } else {
      float* sums = room + whole_lanes(out_row_);
      sum_columns_(sums, room, terms_);
      put_row_(out, sums, image_.in_columns);
    }
  }

  ScratchPlan scratch_;
  Image image_;
  ResamplingReaders rows_, columns_;
  ColumnTerms terms_;
  DenseOperand grad_;
  DenseResult output_;
  decltype(processor_loop<SumRows<T, float>>()) sum_rows_ = processor_loop<SumRows<T, float>>();
  decltype(processor_loop<SumPixels<T>>()) sum_pixels_ = processor_loop<SumPixels<T>>();
  decltype(processor_loop<SumColumns>()) sum_columns_ = processor_loop<SumColumns>();
  decltype(processor_loop<PutRow<T>>()) put_row_ = processor_loop<PutRow<T>>();
  std::int64_t out_row_ = 0, work_ = 0, room_ = 0, parts_ = 1;
  std::uint64_t rooms_ = 0;
};

template <Resampling kMethod>
MadeKernel backward(const StepContext& context) {
  if (known_type(context.operand(0).dtype) == Type::kBF16)
    return std::unique_ptr<sdk::Kernel>(std::make_unique<Backward<BFloat16>>(context, kMethod));
  return std::unique_ptr<sdk::Kernel>(std::make_unique<Backward<float>>(context, kMethod));
}

std::optional<sdk::Refusal> refuse_backward(const sdk::NodeView& node) {
  if (!is_f32_or_bf16(node.operand(0).dtype()))
    return refusal(BP_REFUSED_DTYPE, "gradients of resampling in float32 and bfloat16 only");
  return std::nullopt;
}

constexpr auto kNearest = backward<Resampling::kNearest>;
constexpr auto kNearestExact = backward<Resampling::kNearestExact>;
constexpr auto kLinear = backward<Resampling::kLinear>;

constexpr KernelRow kRows[] = {
    {"aten.upsample_linear1d_backward", kLinear, refuse_backward},
    {"aten.upsample_bilinear2d_backward", kLinear, refuse_backward},
    {"aten.upsample_nearest1d_backward", kNearest, refuse_backward},
    {"aten.upsample_nearest2d_backward", kNearest, refuse_backward},
    {"aten._upsample_nearest_exact1d_backward", kNearestExact, refuse_backward},
    {"aten._upsample_nearest_exact2d_backward", kNearestExact, refuse_backward},
};

}  // namespace

KernelRows resampling_backward_kernels() { return kRows; }

}  // namespace backplane::onednn
