// Nearest and linear resampling of the last one or two dims. Linear: pixels of channels-last memory
// are mixed of four; else a row of the image is stretched to the result's columns first, then two
// such rows are mixed, which neighbouring rows of the result share.
#include <algorithm>
#include <array>
#include <utility>

#include "kernels/images/resampling.h"
#include "kernels/kernel_registry.h"
#include "kernels/movement/dense_memory.h"
#include "kernels/simd/processor_loops.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

using sdk::KernelCall;
using sdk::ResampledFrom;
using sdk::Resampling;
using sdk::StepContext;

template <class T>
struct ToFloats {
  BP_LOOP void run(float* out, const T* x, std::int64_t n) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) out[i] = Lane::read(x[i]);
  }
};
// Weights and positions of the columns of a result, as arrays that vectorise.
struct Columns {
  const float *first_weight, *second_weight;
  const std::int32_t *first, *second;
  std::int64_t count;
};
struct StretchColumns {
  BP_LOOP void run(float* out, const float* x, const Columns& c) {
#pragma omp simd
    for (std::int64_t j = 0; j < c.count; ++j)
      out[j] = c.first_weight[j] * x[c.first[j]] + c.second_weight[j] * x[c.second[j]];
  }
};
// Without a second row the first alone: an image of one dim has none.
template <class T>
struct MixRows {
  BP_LOOP void run(T* out, const float* a, const float* b, float wa, float wb, std::int64_t n) {
    if (b == nullptr) {
#pragma omp simd
      for (std::int64_t k = 0; k < n; ++k) Lane::write(out[k], a[k]);
      return;
    }
#pragma omp simd
    for (std::int64_t k = 0; k < n; ++k) Lane::write(out[k], wa * a[k] + wb * b[k]);
  }
};

// Every column is a pixel of `channels` elements; `a` and `b` are the two rows of the image.
template <class T>
struct MixPixels {
  BP_LOOP void run(T* out, const T* a, const T* b, const ResampledFrom& row, const Columns& c,
                   std::int64_t channels) {
    for (std::int64_t j = 0; j < c.count; ++j, out += channels) {
      const std::int64_t first = c.first[j] * channels, second = c.second[j] * channels;
      const T *a0 = a + first, *a1 = a + second, *b0 = b + first, *b1 = b + second;
      const float w0 = c.first_weight[j], w1 = c.second_weight[j];
      const float wa0 = row.first_weight * w0, wa1 = row.first_weight * w1;
      const float wb0 = row.second_weight * w0, wb1 = row.second_weight * w1;
#pragma omp simd
      for (std::int64_t k = 0; k < channels; ++k)
        Lane::write(out[k], wa0 * Lane::read(a0[k]) + wa1 * Lane::read(a1[k]) +
                                wb0 * Lane::read(b0[k]) + wb1 * Lane::read(b1[k]));
    }
  }
};

template <class T>
class Linear : public sdk::Kernel {
 public:
  explicit Linear(const StepContext& context)
      : image_(context.operand(0), context.operand(0).dims, context.result().dims),
        has_rows_(context.result().dims.size() > 3),
        rows_(resampled(context, Resampling::kLinear, 0)),
        input_(context, 0, scratch_, image_.order(context.operand(0).dims)),
        output_(context, 0, scratch_, image_.order(context.result().dims)) {
    for (const ResampledFrom& c : resampled(context, Resampling::kLinear, 1)) {
      first_.push_back(static_cast<std::int32_t>(c.first));
      second_.push_back(static_cast<std::int32_t>(c.second));
      first_weight_.push_back(c.first_weight);
      second_weight_.push_back(c.second_weight);
    }
    out_row_ = image_.out_columns * image_.channels;
    const std::int64_t units = image_.planes * image_.out_rows;
    parts_ = team_size(units, 4 * units * out_row_);
    if (image_.channels == 1) room_ = 2 * whole_lanes(out_row_) + whole_lanes(image_.in_columns);
    rooms_ = scratch_.take_floats(room_ * parts_);
  }
  std::uint64_t scratch_bytes() const override { return scratch_.bytes(); }

  sdk::Status run(const KernelCall& call) const override {
    const std::int64_t units = image_.planes * image_.out_rows;
    if (units * out_row_ == 0) return {};
    const auto* in = reinterpret_cast<const T*>(input_.get(call));
    auto* out = reinterpret_cast<T*>(output_.get(call));
    parallel_ranges(parts_, 4 * units * out_row_, [&](int, std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        const std::int64_t first = units * part / parts_, last = units * (part + 1) / parts_;
        if (image_.channels > 1)
          mix_pixels(in, out, first, last);
        else
          mix_rows(in, out, first, last,
                   reinterpret_cast<float*>(call.scratch + rooms_) + part * room_);
      }
    });
    output_.finish(call);
    return {};
  }

 private:
  Columns columns() const {
    return {first_weight_.data(), second_weight_.data(), first_.data(), second_.data(),
            image_.out_columns};
  }
  void mix_pixels(const T* in, T* out, std::int64_t first, std::int64_t last) const {
    const std::int64_t in_row = image_.in_columns * image_.channels;
    for (std::int64_t u = first; u < last; ++u) {
      const ResampledFrom& row = rows_[static_cast<std::size_t>(u % image_.out_rows)];
      const T* plane = in + u / image_.out_rows * image_.in_rows * in_row;
      mix_pixels_(out + u * out_row_, plane + row.first * in_row, plane + row.second * in_row, row,
                  columns(), image_.channels);
    }
  }
  void mix_rows(const T* in, T* out, std::int64_t first, std::int64_t last, float* room) const {
    Stretched stretched(*this, in, room);
    for (std::int64_t u = first; u < last; ++u) {
      const ResampledFrom& row = rows_[static_cast<std::size_t>(u % image_.out_rows)];
      const std::int64_t plane = u / image_.out_rows * image_.in_rows;
      const float* a = stretched.row(plane + row.first, plane + row.second);
      const float* b = has_rows_ ? stretched.row(plane + row.second, plane + row.first) : nullptr;
      mix_rows_(out + u * out_row_, a, b, row.first_weight, row.second_weight, out_row_);
    }
  }

  // The last two rows that were stretched.
  class Stretched {
   public:
    Stretched(const Linear& kernel, const T* in, float* room)
        : kernel_(kernel), in_(in), room_(room) {}
    // Row `wanted` of all planes; the row `keep` stays.
    const float* row(std::int64_t wanted, std::int64_t keep) {
      for (std::size_t s = 0; s < 2; ++s)
        if (held_[s] == wanted) return slot(s);
      const std::size_t s = held_[0] == keep ? 1 : 0;
      held_[s] = wanted;
      kernel_.stretch(slot(s), in_ + wanted * kernel_.image_.in_columns, slot(2));
      return slot(s);
    }

   private:
    float* slot(std::size_t s) const {
      return room_ + static_cast<std::int64_t>(s) * whole_lanes(kernel_.out_row_);
    }
    const Linear& kernel_;
    const T* in_;
    float* room_;
    std::array<std::int64_t, 2> held_{-1, -1};
  };

  void stretch(float* out, const T* x, float* room) const {
    if constexpr (std::is_same_v<T, float>) {
      stretch_(out, x, columns());
    } else {
      to_floats_(room, x, image_.in_columns);
      stretch_(out, room, columns());
    }
  }

  ScratchPlan scratch_;
  Image image_;
  bool has_rows_;
  std::vector<ResampledFrom> rows_;
  std::vector<std::int32_t> first_, second_;
  std::vector<float> first_weight_, second_weight_;
  DenseOperand input_;
  DenseResult output_;
  decltype(processor_loop<ToFloats<T>>()) to_floats_ = processor_loop<ToFloats<T>>();
  decltype(processor_loop<StretchColumns>()) stretch_ = processor_loop<StretchColumns>();
  decltype(processor_loop<MixRows<T>>()) mix_rows_ = processor_loop<MixRows<T>>();
  decltype(processor_loop<MixPixels<T>>()) mix_pixels_ = processor_loop<MixPixels<T>>();
  std::int64_t out_row_ = 0, room_ = 0, parts_ = 1;
  std::uint64_t rooms_ = 0;
};

MadeKernel linear(const StepContext& context) {
  if (known_type(context.operand(0).dtype) == Type::kBF16)
    return std::unique_ptr<sdk::Kernel>(std::make_unique<Linear<BFloat16>>(context));
  return std::unique_ptr<sdk::Kernel>(std::make_unique<Linear<float>>(context));
}

// T is an unsigned integer of the element's size.
template <class T>
struct PickColumns {
  BP_LOOP void run(T* out, const T* x, const std::int32_t* from, std::int64_t n) {
#pragma omp simd
    for (std::int64_t j = 0; j < n; ++j) out[j] = x[from[j]];
  }
};
template <class T>
class Nearest : public sdk::Kernel {
 public:
  Nearest(const StepContext& context, Resampling method)
      : image_(context.operand(0), context.operand(0).dims, context.result().dims),
        rows_(resampled(context, method, 0)),
        input_(context, 0, scratch_, image_.order(context.operand(0).dims)),
        output_(context, 0, scratch_, image_.order(context.result().dims)) {
    for (const ResampledFrom& c : resampled(context, method, 1))
      columns_.push_back(static_cast<std::int32_t>(c.first));
  }
  std::uint64_t scratch_bytes() const override { return scratch_.bytes(); }

  sdk::Status run(const KernelCall& call) const override {
    const std::int64_t units = image_.planes * image_.out_rows, c = image_.channels;
    const std::int64_t row_size = image_.out_columns * c;
    if (units * row_size == 0) return {};
    const T* in = reinterpret_cast<const T*>(input_.get(call));
    T* out = reinterpret_cast<T*>(output_.get(call));
    parallel_ranges(units, units * row_size, [&](int, std::int64_t begin, std::int64_t end) {
      std::int64_t done = -1;  // the row of all planes that the last result was picked from
      for (std::int64_t u = begin; u < end; ++u) {
        const std::int64_t from = u / image_.out_rows * image_.in_rows +
                                  rows_[static_cast<std::size_t>(u % image_.out_rows)].first;
        T* to = out + u * row_size;
        if (from == std::exchange(done, from)) {
          std::copy(to - row_size, to, to);
          continue;
        }
        const T* row = in + from * image_.in_columns * c;
        if (c == 1) {
          pick_(to, row, columns_.data(), image_.out_columns);
          continue;
        }
        for (const std::int32_t column : columns_) to = std::copy_n(row + column * c, c, to);
      }
    });
    output_.finish(call);
    return {};
  }

 private:
  ScratchPlan scratch_;
  Image image_;
  std::vector<ResampledFrom> rows_;
  std::vector<std::int32_t> columns_;
  DenseOperand input_;
  DenseResult output_;
  decltype(processor_loop<PickColumns<T>>()) pick_ = processor_loop<PickColumns<T>>();
};

template <Resampling kMethod>
MadeKernel nearest(const StepContext& context) {
  return with_size(bytes_of(known_type(context.operand(0).dtype)), [&](auto element) -> MadeKernel {
    return std::unique_ptr<sdk::Kernel>(
        std::make_unique<Nearest<decltype(element)>>(context, kMethod));
  });
}

std::optional<sdk::Refusal> refuse_linear(const sdk::NodeView& node) {
  if (!is_f32_or_bf16(node.operand(0).dtype()))
    return refusal(BP_REFUSED_DTYPE, "linear resampling of float32 and bfloat16 only");
  return std::nullopt;
}

constexpr KernelRow kRows[] = {
    {"aten.upsample_linear1d", linear, refuse_linear},
    {"aten.upsample_bilinear2d", linear, refuse_linear},
    {"aten.upsample_nearest1d", nearest<Resampling::kNearest>},
    {"aten.upsample_nearest2d", nearest<Resampling::kNearest>},
    {"aten._upsample_nearest_exact1d", nearest<Resampling::kNearestExact>},
    {"aten._upsample_nearest_exact2d", nearest<Resampling::kNearestExact>},
};

}  // namespace

KernelRows resampling_kernels() { return kRows; }

}  // namespace backplane::onednn
