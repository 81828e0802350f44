// Gradients of layer norm and RMS norm: one pass over grad and input per row, the second reading of
// a row comes from the cache.
#include <algorithm>
#include <optional>

#include "kernels/kernel_registry.h"
#include "kernels/movement/dense_memory.h"
#include "kernels/rows/column_runs.h"
#include "kernels/rows/float_rows.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

using sdk::KernelCall;
using sdk::StepContext;

class LayerNormBackward : public sdk::Kernel {
 public:
  // Operands: grad, input, mean, rstd, weight, bias; of RMS norm: grad, input, rstd, weight.
  LayerNormBackward(const StepContext& context, bool centred) : centred_(centred) {
    const auto shape = context.ints("normalized_shape");
    n_ = product(shape);
    rows_ = n_ == 0 ? 0 : context.operand(1).elements() / n_;
    grad_ = DenseOperand(context, 0, plan_);
    input_ = DenseOperand(context, 1, plan_);
    if (centred) mean_ = DenseOperand(context, 2, plan_);
    rstd_ = DenseOperand(context, centred ? 3 : 2, plan_);
    weight_ = DenseOperand::optional(context, centred ? 4 : 3, plan_);
    grad_input_ = DenseResult::optional(context, 0, plan_);
    grad_weight_ = DenseResult::optional(context, 1, plan_);
    if (centred) grad_bias_ = DenseResult::optional(context, 2, plan_);

    read_grad_ = RowReader(grad_.type());
    read_input_ = RowReader(input_.type());
    if (grad_input_.present()) write_ = RowWriter(grad_input_.type());
    columns_ = grad_weight_.present() || grad_bias_.present();
    // Fixed parts with partial sums of their own: the order of additions is that of the plan, not
    // of the threads that come.
    parts_ = team_size(rows_, work());
    width_ = (n_ + 15) / 16 * 16;
    rooms_ = plan_.take_floats(parts_ * 3 * width_);
    if (columns_) {
      sums_ = plan_.take_floats(parts_ * 2 * width_);
      runs_ = plan_.take_floats(parts_ * 2 * width_);
    }
    statistics_ = plan_.take_floats(2 * rows_);
    weights_ = plan_.take_floats(width_);
  }

  std::uint64_t scratch_bytes() const override { return plan_.bytes(); }

  sdk::Status run(const KernelCall& call) const override {
    const std::byte *grad = grad_.get(call), *input = input_.get(call);
    const auto floats = [&](std::uint64_t at) {
      return reinterpret_cast<float*>(call.scratch + at);
    };
    float* room = floats(statistics_);
    const float* mean = nullptr;
    const float* rstd = nullptr;
    const float* weight = nullptr;
    if (rows_ != 0) {
      if (centred_) mean = RowReader(mean_.type())(mean_.get(call), 0, rows_, room);
      rstd = RowReader(rstd_.type())(rstd_.get(call), 0, rows_, room + rows_);
      if (weight_.present())
        weight = RowReader(weight_.type())(weight_.get(call), 0, n_, floats(weights_));
    }
    std::byte* out = grad_input_.get(call);
    parallel_ranges(parts_, work(), [&](int, std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        std::optional<ColumnRuns> runs;
        if (columns_)
          runs.emplace(floats(sums_) + part * 2 * width_, floats(runs_) + part * 2 * width_,
                       2 * width_);
        float* rooms = floats(rooms_) + part * 3 * width_;
        for (std::int64_t r = rows_ * part / parts_; r < rows_ * (part + 1) / parts_; ++r)
          row(r, grad, input, weight, mean ? mean[r] : 0.0F, rstd[r], out,
              runs ? runs->next() : nullptr, rooms);
        if (runs) runs->finish();
      }
    });
    if (columns_) reduce(call, floats(sums_));
    grad_input_.finish(call);
    return {};
  }

 private:
  std::int64_t work() const { return rows_ * n_ * 4; }

  void row(std::int64_t r, const std::byte* grad, const std::byte* input, const float* weight,
           float mean, float rstd, std::byte* out, float* sums, float* rooms) const {
    const RowLoops& table = row_loops();
    const std::int64_t first = r * n_;
    const NormRow row{read_grad_(grad, first, n_, rooms),
                      read_input_(input, first, n_, rooms + width_),
                      weight,
                      mean,
                      rstd,
                      n_,
                      sums,
                      sums ? sums + width_ : nullptr};
    const RowSums s = table.norm_sums(row);
    if (out == nullptr) return;
    const float count = static_cast<float>(n_);
    float* target = write_.begin(out, first, rooms + 2 * width_);
    table.norm_apply(target, row, rstd, -rstd * rstd * rstd * s.product / count,
                     centred_ ? -rstd * s.grad / count : 0.0F);
    write_.commit(out, first, n_, target);
  }

  // Sums of all parts, in order, to the first.
  void reduce(const KernelCall& call, float* sums) const {
    parallel_ranges(
        2 * width_ / 16, parts_ * 2 * width_, [&](int, std::int64_t begin, std::int64_t end) {
          for (std::int64_t part = 1; part < parts_; ++part)
            row_loops().add_row(sums + begin * 16, sums + part * 2 * width_ + begin * 16, 1,
                                (end - begin) * 16);
        });
    if (n_ == 0) return;
    if (grad_weight_.present()) {
      RowWriter(grad_weight_.type()).put(grad_weight_.get(call), 0, n_, sums + width_);
      grad_weight_.finish(call);
    }
    if (grad_bias_.present()) {
      RowWriter(grad_bias_.type()).put(grad_bias_.get(call), 0, n_, sums);
      grad_bias_.finish(call);
    }
  }

  bool centred_, columns_ = false;
  std::int64_t n_ = 0, rows_ = 0, parts_ = 1, width_ = 0;
  ScratchPlan plan_;
  DenseOperand grad_, input_, mean_, rstd_, weight_;
  DenseResult grad_input_, grad_weight_, grad_bias_;
  RowReader read_grad_, read_input_;
  RowWriter write_;
  std::uint64_t rooms_ = 0, sums_ = 0, runs_ = 0, statistics_ = 0, weights_ = 0;
};

MadeKernel layer_norm_backward(const StepContext& context) {
  return std::unique_ptr<sdk::Kernel>(std::make_unique<LayerNormBackward>(context, true));
}
MadeKernel rms_norm_backward(const StepContext& context) {
  return std::unique_ptr<sdk::Kernel>(std::make_unique<LayerNormBackward>(context, false));
}

std::optional<sdk::Refusal> refuse_norm(const sdk::NodeView& node) {
  for (std::size_t i = 0; i < node.operand_count(); ++i)
    if (node.has_operand(i) && !is_f32_or_bf16(node.operand(i).dtype()))
      return refusal(BP_REFUSED_DTYPE, "gradients of norms in float32 and bfloat16 only");
  return std::nullopt;
}

constexpr KernelRow kRows[] = {
    {"aten.native_layer_norm_backward", layer_norm_backward, refuse_norm},
    {"aten._fused_rms_norm_backward", rms_norm_backward, refuse_norm},
};

}  // namespace

KernelRows layer_norm_backward_kernels() { return kRows; }

}  // namespace backplane::onednn
