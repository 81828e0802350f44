// Gradients of batch norm and group norm. A channel's plane of an image is one run of memory; where
// channels lie next to each other (channels-last memory, or images of one element) rows of all
// channels are.
#include <algorithm>
#include <cmath>

#include "kernels/images/channels_last.h"
#include "kernels/kernel_registry.h"
#include "kernels/movement/dense_memory.h"
#include "kernels/rows/column_runs.h"
#include "kernels/rows/float_rows.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

using sdk::KernelCall;
using sdk::StepContext;

constexpr std::int64_t kChunk = 2048;  // elements converted at a time: three stay in the cache

// What both norms share: images [N, C, area], weight, gradients and how to walk planes.
class ChannelNormBackward : public sdk::Kernel {
 public:
  std::uint64_t scratch_bytes() const override { return plan_.bytes(); }

 protected:
  ChannelNormBackward(const StepContext& context, std::int64_t images, std::int64_t channels,
                      std::int64_t area, const Shape& order)
      : images_(images),
        channels_(channels),
        area_(area),
        grad_(context, 0, plan_, order),
        input_(context, 1, plan_, order),
        grad_input_(DenseResult::optional(context, 0, plan_, order)),
        read_grad_(grad_.type()),
        read_input_(input_.type()) {
    grad_weight_ = DenseResult::optional(context, 1, plan_);
    grad_bias_ = DenseResult::optional(context, 2, plan_);
    if (grad_input_.present()) write_ = RowWriter(grad_input_.type());
    threads_ = omp_get_max_threads();
  }

  std::int64_t work() const { return images_ * channels_ * area_ * 4; }
  std::int64_t parts(std::int64_t units) const {
    return work() < kSmallWork ? 1 : std::clamp<std::int64_t>(units, 1, threads_);
  }
  float* floats(const KernelCall& call, std::uint64_t at) const {
    return reinterpret_cast<float*>(call.scratch + at);
  }
  // Of one type, planes are read where they lie; else converted in chunks.
  bool uniform() const {
    return grad_.type() == input_.type() &&
           (!grad_input_.present() || grad_input_.type() == grad_.type());
  }
  std::size_t kind() const { return grad_.type() == Type::kF32 ? 0 : 1; }

  // Sums of grad and grad * (input - mean) over one plane. `room` holds 3 * kChunk floats.
  RowSums plane_sums(const std::byte* grad, const std::byte* input, std::int64_t plane, float mean,
                     float* room) const {
    const RowLoops& table = row_loops();
    const std::int64_t first = plane * area_;
    if (uniform()) {
      const std::int64_t at = first * bytes_of(grad_.type());
      return table.plane_sums[kind()](grad + at, input + at, mean, area_);
    }
    RowSums sums{0, 0};
    for (std::int64_t at = 0; at < area_; at += kChunk) {
      const std::int64_t n = std::min(kChunk, area_ - at);
      const RowSums s =
          table.plane_sums[0](read_grad_(grad, first + at, n, room),
                              read_input_(input, first + at, n, room + kChunk), mean, n);
      sums.grad += s.grad;
      sums.product += s.product;
    }
    return sums;
  }
  void plane_apply(std::byte* out, const std::byte* grad, const std::byte* input,
                   std::int64_t plane, float mean, float a, float b, float c, float* room) const {
    const RowLoops& table = row_loops();
    const std::int64_t first = plane * area_;
    if (uniform()) {
      const std::int64_t at = first * bytes_of(grad_.type());
      table.plane_apply[kind()](out + at, grad + at, input ? input + at : nullptr, mean, a, b, c,
                                area_);
      return;
    }
    for (std::int64_t at = 0; at < area_; at += kChunk) {
      const std::int64_t n = std::min(kChunk, area_ - at);
      float* target = write_.begin(out, first + at, room + 2 * kChunk);
      table.plane_apply[0](target, read_grad_(grad, first + at, n, room),
                           input ? read_input_(input, first + at, n, room + kChunk) : nullptr, mean,
                           a, b, c, n);
      write_.commit(out, first + at, n, target);
    }
  }
  void put(const KernelCall& call, const DenseResult& result, const float* from) const {
    if (!result.present() || channels_ == 0) return;
    RowWriter(result.type()).put(result.get(call), 0, channels_, from);
    result.finish(call);
  }

  ScratchPlan plan_;
  std::int64_t images_, channels_, area_, threads_ = 1;
  DenseOperand grad_, input_;
  DenseResult grad_input_, grad_weight_, grad_bias_;
  RowReader read_grad_, read_input_;
  RowWriter write_;
};

Shape batch_norm_order(const StepContext& context) {
  const sdk::TensorSpec& in = context.operand(1);
  return channels_inside(in) ? channels_last_order(in.dims) : Shape{};
}

// grad, input, weight?, running mean?, running variance?, saved mean?, saved 1/deviation?
class BatchNormBackward : public ChannelNormBackward {
 public:
  BatchNormBackward(const StepContext& context, bool training)
      : ChannelNormBackward(
            context, context.operand(1).dims[0], context.operand(1).dims[1],
            product({context.operand(1).dims.data() + 2, context.operand(1).rank() - 2}),
            batch_norm_order(context)),
        training_(training),
        eps_(static_cast<float>(context.node().real_or("eps", 1e-5))) {
    inside_ = area_ == 1 || channels_inside(context.operand(1));
    weight_ = DenseOperand::optional(context, 2, plan_);
    mean_ = DenseOperand::optional(context, training ? 5 : 3, plan_);
    spread_ = DenseOperand::optional(context, training ? 6 : 4, plan_);
    rows_ = images_ * area_;
    parts_ = parts(inside_ ? rows_ : channels_);
    // Per channel: mean, 1/deviation, weight, and a, b, c of the gradient.
    table_ = plan_.take_floats(6 * channels_);
    sums_ = plan_.take_floats((inside_ ? parts_ : 1) * 2 * channels_);
    if (inside_) runs_ = plan_.take_floats(parts_ * 2 * channels_);
    rooms_ = plan_.take_floats(parts_ * 3 * (inside_ ? channels_ : kChunk));
  }

  sdk::Status run(const KernelCall& call) const override {
    if (channels_ == 0) return {};
    float* table = floats(call, table_);
    float* sums = floats(call, sums_);
    load_statistics(call, table);
    const std::byte *grad = grad_.get(call), *input = input_.get(call);
    std::byte* out = grad_input_.get(call);
    if (inside_) {
      run_columns(call, grad, input, out, table, sums);
    } else {
      parallel_ranges(parts_, work(), [&](int, std::int64_t begin, std::int64_t end) {
        for (std::int64_t part = begin; part < end; ++part)
          for (std::int64_t c = channels_ * part / parts_; c < channels_ * (part + 1) / parts_; ++c)
            channel(c, grad, input, out, table, sums, floats(call, rooms_) + part * 3 * kChunk);
      });
    }
    float* rstd = table + channels_;
    for (std::int64_t c = 0; c < channels_; ++c) sums[channels_ + c] *= rstd[c];
    put(call, grad_weight_, sums + channels_);
    put(call, grad_bias_, sums);
    grad_input_.finish(call);
    return {};
  }

 private:
  void load_statistics(const KernelCall& call, float* table) const {
    float *mean = table, *rstd = table + channels_, *weight = table + 2 * channels_;
    load_function(mean_.type(), Domain::kF32)(mean, mean_.get(call), 1, channels_);
    load_function(spread_.type(), Domain::kF32)(rstd, spread_.get(call), 1, channels_);
    if (!training_)
      for (std::int64_t c = 0; c < channels_; ++c) rstd[c] = 1 / std::sqrt(rstd[c] + eps_);
    if (weight_.present())
      load_function(weight_.type(), Domain::kF32)(weight, weight_.get(call), 1, channels_);
    else
      std::fill(weight, weight + channels_, 1.0F);
  }
  // The gradient of the input is a * grad + b * (input - mean) + c; with given statistics a * grad.
  void coefficients(float* table, std::int64_t c, float grad, float product) const {
    const float rstd = table[channels_ + c], scale = rstd * table[2 * channels_ + c];
    const auto count = static_cast<float>(rows_);
    table[3 * channels_ + c] = scale;
    table[4 * channels_ + c] = training_ ? -scale * rstd * rstd * product / count : 0;
    table[5 * channels_ + c] = training_ ? -scale * grad / count : 0;
  }

  void channel(std::int64_t c, const std::byte* grad, const std::byte* input, std::byte* out,
               float* table, float* sums, float* room) const {
    RowSums total{0, 0};
    for (std::int64_t image = 0; image < images_; ++image) {
      const RowSums s = plane_sums(grad, input, image * channels_ + c, table[c], room);
      total.grad += s.grad;
      total.product += s.product;
    }
    sums[c] = total.grad;
    sums[channels_ + c] = total.product;
    if (out == nullptr) return;
    coefficients(table, c, total.grad, total.product);
    if (!training_) input = nullptr;
    for (std::int64_t image = 0; image < images_; ++image)
      plane_apply(out, grad, input, image * channels_ + c, table[c], table[3 * channels_ + c],
                  table[4 * channels_ + c], table[5 * channels_ + c], room);
  }

  void run_columns(const KernelCall& call, const std::byte* grad, const std::byte* input,
                   std::byte* out, float* table, float* sums) const {
    const RowLoops& loops = row_loops();
    const std::int64_t n = channels_;
    const auto rows = [&](auto&& body) {
      parallel_ranges(parts_, work(), [&](int, std::int64_t begin, std::int64_t end) {
        for (std::int64_t part = begin; part < end; ++part)
          body(part, [&](auto&& one) {
            float* room = floats(call, rooms_) + part * 3 * n;
            for (std::int64_t r = rows_ * part / parts_; r < rows_ * (part + 1) / parts_; ++r)
              one(r * n, room);
          });
      });
    };
    const std::int64_t size = bytes_of(grad_.type());
    rows([&](std::int64_t part, auto&& each) {
      ColumnRuns runs(sums + part * 2 * n, floats(call, runs_) + part * 2 * n, 2 * n);
      each([&](std::int64_t at, float* room) {
        float* own = runs.next();
        if (uniform())
          loops.column_sums[kind()](own, own + n, grad + at * size, input + at * size, table, n);
        else
          loops.column_sums[0](own, own + n, read_grad_(grad, at, n, room),
                               read_input_(input, at, n, room + n), table, n);
      });
      runs.finish();
    });
    for (std::int64_t part = 1; part < parts_; ++part)
      loops.add_row(sums, sums + part * 2 * n, 1, 2 * n);
    if (out == nullptr) return;
    for (std::int64_t c = 0; c < n; ++c) coefficients(table, c, sums[c], sums[n + c]);
    rows([&](std::int64_t, auto&& each) {
      each([&](std::int64_t at, float* room) {
        if (uniform()) {
          loops.column_apply[kind()](out + at * size, grad + at * size,
                                     training_ ? input + at * size : nullptr, table, table + 3 * n,
                                     table + 4 * n, table + 5 * n, n);
          return;
        }
        float* target = write_.begin(out, at, room + 2 * n);
        loops.column_apply[0](target, read_grad_(grad, at, n, room),
                              training_ ? read_input_(input, at, n, room + n) : nullptr, table,
                              table + 3 * n, table + 4 * n, table + 5 * n, n);
        write_.commit(out, at, n, target);
      });
    });
  }

  bool training_, inside_ = false;
  float eps_;
  DenseOperand weight_, mean_, spread_;
  std::int64_t rows_ = 0, parts_ = 1;
  std::uint64_t table_ = 0, sums_ = 0, runs_ = 0, rooms_ = 0;
};

// grad, input, mean [N, groups], 1/deviation [N, groups], weight?
class GroupNormBackward : public ChannelNormBackward {
 public:
  explicit GroupNormBackward(const StepContext& context)
      : ChannelNormBackward(context, context.int_or("N", 1), context.int_or("C", 1),
                            context.int_or("HxW", 1), {}),
        groups_(context.int_or("group", 1)) {
    mean_ = DenseOperand(context, 2, plan_);
    rstd_ = DenseOperand(context, 3, plan_);
    weight_ = DenseOperand::optional(context, 4, plan_);
    parts_ = parts(images_ * groups_);
    statistics_ = plan_.take_floats(2 * images_ * groups_ + channels_);
    sums_ = plan_.take_floats(2 * (images_ + 1) * channels_);
    rooms_ = plan_.take_floats(parts_ * 3 * kChunk);
  }

  sdk::Status run(const KernelCall& call) const override {
    const std::int64_t units = images_ * groups_;
    float* sums = floats(call, sums_);
    std::fill(sums, sums + 2 * channels_, 0.0F);
    float* mean = floats(call, statistics_);
    float *rstd = mean + units, *weight = rstd + units;
    if (units != 0 && area_ != 0 && channels_ != 0) {
      load_function(mean_.type(), Domain::kF32)(mean, mean_.get(call), 1, units);
      load_function(rstd_.type(), Domain::kF32)(rstd, rstd_.get(call), 1, units);
      if (weight_.present())
        load_function(weight_.type(), Domain::kF32)(weight, weight_.get(call), 1, channels_);
      else
        std::fill(weight, weight + channels_, 1.0F);
      const std::byte *grad = grad_.get(call), *input = input_.get(call);
      std::byte* out = grad_input_.get(call);
      parallel_ranges(parts_, work(), [&](int, std::int64_t begin, std::int64_t end) {
        for (std::int64_t part = begin; part < end; ++part)
          for (std::int64_t u = units * part / parts_; u < units * (part + 1) / parts_; ++u)
            group(u, grad, input, out, mean[u], rstd[u], weight, sums + 2 * channels_,
                  floats(call, rooms_) + part * 3 * kChunk);
      });
      total(sums, rstd);
    }
    put(call, grad_weight_, sums + channels_);
    put(call, grad_bias_, sums);
    grad_input_.finish(call);
    return {};
  }

 private:
  // Leaves each plane's sums in `planes`: grads of all, then products of all.
  void group(std::int64_t unit, const std::byte* grad, const std::byte* input, std::byte* out,
             float mean, float rstd, const float* weight, float* planes, float* room) const {
    const std::int64_t wide = channels_ / groups_, image = unit / groups_, g = unit % groups_;
    RowSums sums{0, 0};
    for (std::int64_t c = g * wide; c < (g + 1) * wide; ++c) {
      const std::int64_t plane = image * channels_ + c;
      const RowSums s = plane_sums(grad, input, plane, mean, room);
      planes[plane] = s.grad;
      planes[images_ * channels_ + plane] = s.product;
      sums.grad += s.grad * weight[c];
      sums.product += s.product * weight[c];
    }
    if (out == nullptr) return;
    const auto count = static_cast<float>(wide * area_);
    for (std::int64_t c = g * wide; c < (g + 1) * wide; ++c)
      plane_apply(out, grad, input, image * channels_ + c, mean, rstd * weight[c],
                  -rstd * rstd * rstd * sums.product / count, -rstd * sums.grad / count, room);
  }
  void total(float* sums, const float* rstd) const {
    const float *grads = sums + 2 * channels_, *products = grads + images_ * channels_;
    const std::int64_t wide = channels_ / groups_;
    for (std::int64_t image = 0; image < images_; ++image)
      for (std::int64_t c = 0; c < channels_; ++c) {
        sums[c] += grads[image * channels_ + c];
        sums[channels_ + c] += products[image * channels_ + c] * rstd[image * groups_ + c / wide];
      }
  }

  std::int64_t groups_, parts_ = 1;
  DenseOperand mean_, rstd_, weight_;
  std::uint64_t statistics_ = 0, sums_ = 0, rooms_ = 0;
};

MadeKernel native_batch_norm_backward(const StepContext& context) {
  return std::unique_ptr<sdk::Kernel>(
      std::make_unique<BatchNormBackward>(context, context.node().bool_or("train", true)));
}
MadeKernel batch_norm_backward(const StepContext& context) {
  return std::unique_ptr<sdk::Kernel>(
      std::make_unique<BatchNormBackward>(context, context.node().bool_or("update", true)));
}
MadeKernel group_norm_backward(const StepContext& context) {
  return std::unique_ptr<sdk::Kernel>(std::make_unique<GroupNormBackward>(context));
}

std::optional<sdk::Refusal> refuse_types(const sdk::NodeView& node, std::size_t operands) {
  for (std::size_t i = 0; i < std::min(operands, node.operand_count()); ++i)
    if (node.has_operand(i) && !is_f32_or_bf16(node.operand(i).dtype()))
      return refusal(BP_REFUSED_DTYPE, "gradients of norms in float32 and bfloat16 only");
  return std::nullopt;
}
std::optional<sdk::Refusal> refuse_batch_norm(const sdk::NodeView& node) {
  if (auto no = refuse_types(node, 7)) return no;
  if (node.operand(1).rank() < 2) return refusal(BP_REFUSED_SHAPE, "batch norm needs two dims");
  const bool training = node.op() == "aten.batch_norm_backward" ? node.bool_or("update", true)
                                                                : node.bool_or("train", true);
  if (!node.has_operand(training ? 5 : 3) || !node.has_operand(training ? 6 : 4))
    return refusal(BP_REFUSED_ATTRIBUTE, "batch norm without the statistics of its mode");
  return std::nullopt;
}
std::optional<sdk::Refusal> refuse_group_norm(const sdk::NodeView& node) {
  return refuse_types(node, 5);
}

constexpr KernelRow kRows[] = {
    {"aten.native_batch_norm_backward", native_batch_norm_backward, refuse_batch_norm},
    {"aten.batch_norm_backward", batch_norm_backward, refuse_batch_norm},
    {"aten.native_group_norm_backward", group_norm_backward, refuse_group_norm},
};

}  // namespace

KernelRows channel_norm_backward_kernels() { return kRows; }

}  // namespace backplane::onednn
