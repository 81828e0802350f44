// Gradient of an embedding's table: every row is written once, summed in float in the order of the
// indices, whatever the number of threads.
#include <algorithm>
#include <cstring>

#include "kernels/kernel_registry.h"
#include "kernels/movement/dense_memory.h"
#include "kernels/rows/float_rows.h"
#include "kernels/simd/row_loops.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

using sdk::KernelCall;
using sdk::StepContext;

class EmbeddingBackward : public sdk::Kernel {
 public:
  explicit EmbeddingBackward(const StepContext& context)
      : grad_(context, 0, plan_), indices_(context, 1, plan_), out_(context, 0, plan_) {
    count_ = context.operand(1).elements();
    rows_ = context.result().dims[0];
    width_ = context.result().dims[1];
    padding_ = context.int_or("padding_idx", -1);
    by_frequency_ = context.node().bool_or("scale_grad_by_freq", false);
    read_ = RowReader(grad_.type());
    write_ = RowWriter(out_.type());
    // More parts than threads: frequent indices gather in few rows.
    parts_ = std::max<std::int64_t>(team_size(rows_, work()), 1);
    if (parts_ > 1) parts_ = std::min(rows_, parts_ * 4);
    first_ = plan_.take(rows_ * 4);
    next_ = plan_.take(count_ * 4);
    bounds_ = plan_.take((parts_ + 1) * 8);
    rooms_ = plan_.take_floats(parts_ * 2 * width_);
  }

  std::uint64_t scratch_bytes() const override { return plan_.bytes(); }

  sdk::Status run(const KernelCall& call) const override {
    if (rows_ == 0 || width_ == 0) return {};
    const std::byte *grad = grad_.get(call), *indices = indices_.get(call);
    if (!link(call, indices)) return sdk::Status(BP_INVALID_ARGUMENT, "an index is out of range");
    std::byte* out = out_.get(call);
    const auto* bounds = reinterpret_cast<const std::int64_t*>(call.scratch + bounds_);
    parallel_ranges(parts_, work(), [&](int, std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part)
        rows(call, bounds[part], bounds[part + 1], grad, out,
             reinterpret_cast<float*>(call.scratch + rooms_) + part * 2 * width_);
    });
    out_.finish(call);
    return {};
  }

 private:
  std::int64_t work() const { return (rows_ + count_) * width_; }

  // Lists, per row, of the positions that name it, in order; and rows shared out by their cost.
  bool link(const KernelCall& call, const std::byte* indices) const {
    auto* first = reinterpret_cast<std::int32_t*>(call.scratch + first_);
    auto* next = reinterpret_cast<std::int32_t*>(call.scratch + next_);
    auto* bounds = reinterpret_cast<std::int64_t*>(call.scratch + bounds_);
    std::fill(first, first + rows_, -1);
    for (std::int64_t i = count_; i-- > 0;) {
      const std::int64_t at = indices_.type() == Type::kI64
                                  ? reinterpret_cast<const std::int64_t*>(indices)[i]
                                  : reinterpret_cast<const std::int32_t*>(indices)[i];
      if (at == padding_) continue;
      if (at < 0 || at >= rows_) return false;
      next[i] = first[at];
      first[at] = static_cast<std::int32_t>(i);
    }
    std::int64_t cost = 0, part = 0;
    const std::int64_t total = rows_ + count_;
    bounds[0] = 0;
    for (std::int64_t r = 0; r < rows_ && part + 1 < parts_; ++r) {
      cost += 1;
      for (std::int32_t i = first[r]; i >= 0; i = next[i]) ++cost;
      while (part + 1 < parts_ && cost * parts_ >= total * (part + 1)) bounds[++part] = r + 1;
    }
    while (part < parts_) bounds[++part] = rows_;
    return true;
  }

  void rows(const KernelCall& call, std::int64_t begin, std::int64_t end, const std::byte* grad,
            std::byte* out, float* rooms) const {
    const auto* first = reinterpret_cast<const std::int32_t*>(call.scratch + first_);
    const std::int64_t bytes = width_ * bytes_of(out_.type());
    for (std::int64_t r = begin; r < end;) {
      std::int64_t last = r;  // rows without an index are cleared together
      while (last < end && first[last] < 0) ++last;
      std::memset(out + r * bytes, 0, static_cast<std::size_t>((last - r) * bytes));
      if (last < end) row(call, last, grad, out, rooms);
      r = last + 1;
    }
  }
  void row(const KernelCall& call, std::int64_t r, const std::byte* grad, std::byte* out,
           float* rooms) const {
    const auto* next = reinterpret_cast<const std::int32_t*>(call.scratch + next_);
    std::int32_t i = reinterpret_cast<const std::int32_t*>(call.scratch + first_)[r];
    const std::int64_t at = r * width_;
    float factor = 1;
    if (by_frequency_) {
      std::int64_t times = 0;
      for (std::int32_t k = i; k >= 0; k = next[k]) ++times;
      factor = 1 / static_cast<float>(times);
    }
    float* sums = write_.begin(out, at, rooms);
    const float* one = read_(grad, i * width_, width_, rooms + width_);
    row_loops().scale_row(sums, one, factor, width_);
    for (i = next[i]; i >= 0; i = next[i])
      row_loops().add_row(sums, read_(grad, i * width_, width_, rooms + width_), factor, width_);
    write_.commit(out, at, width_, sums);
  }

  ScratchPlan plan_;
  DenseOperand grad_, indices_;
  DenseResult out_;
  std::int64_t count_ = 0, rows_ = 0, width_ = 0, padding_ = -1, parts_ = 1;
  bool by_frequency_ = false;
  RowReader read_;
  RowWriter write_;
  std::uint64_t first_ = 0, next_ = 0, bounds_ = 0, rooms_ = 0;
};

MadeKernel embedding_backward(const StepContext& context) {
  if (context.operand(1).elements() > INT32_MAX)
    return sdk::Status(BP_UNSUPPORTED, "more than 2^31 indices of one embedding");
  return std::unique_ptr<sdk::Kernel>(std::make_unique<EmbeddingBackward>(context));
}

std::optional<sdk::Refusal> refuse_embedding(const sdk::NodeView& node) {
  const auto index = type_of(node.operand(1).dtype());
  if (index != Type::kI64 && index != Type::kI32)
    return refusal(BP_REFUSED_DTYPE, "indices must be int64 or int32");
  if (!is_f32_or_bf16(node.operand(0).dtype()) || !is_f32_or_bf16(node.result().dtype()))
    return refusal(BP_REFUSED_DTYPE, "gradients of embeddings in float32 and bfloat16 only");
  return std::nullopt;
}

constexpr KernelRow kRows[] = {
    {"aten.embedding_dense_backward", embedding_backward, refuse_embedding},
};

}  // namespace

KernelRows embedding_backward_kernels() { return kRows; }

}  // namespace backplane::onednn
