#include "kernels/primitives/attention.h"

#include "kernels/primitives/attention_tensor.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

using sdk::StepContext;

class AttentionKernel : public sdk::Kernel {
 public:
  explicit AttentionKernel(const StepContext& context)
      : q_(context.operand(0)),
        k_(context.operand(1)),
        v_(context.operand(2)),
        out_(context.result(0)) {
    const Shape& q = context.operand(0).dims;
    batch_ = q[0];
    heads_ = q[1];
    queries_ = q[2];
    depth_ = q[3];
    keys_ = context.operand(1).dims[2];
    values_ = context.operand(2).dims[3];
    shared_ = std::max<std::int64_t>(heads_ / std::max<std::int64_t>(k_.heads, 1), 1);
    scale_ = static_cast<float>(
        context.node().real_or("scale", 1 / std::sqrt(static_cast<double>(depth_))));
    mask_ = Mask(context, 3, {batch_, heads_, queries_, keys_});
    if (context.step().results.size() > 1 && context.step().results[1] != BP_NONE)
      lse_strides_ = context.result(1).strides;
    // A dense float head is read where it lies.
    direct_values_ = v_.type == Type::kF32 && v_.column == 1 && values_ % kLanes == 0;
    wide_ = whole_lanes(values_);
    key_width_ = whole_lanes(keys_);
    threads_ = omp_get_max_threads();
    per_thread_ = depth_ * key_width_ + (direct_values_ ? 0 : keys_ * wide_) +
                  kQueryBlock * (depth_ + kKeyBlock + wide_ + 2) + kLanes * 6;
    per_thread_ = (per_thread_ + 63) / 64 * 64;
  }

  std::uint64_t scratch_bytes() const override {
    return static_cast<std::uint64_t>(per_thread_ * threads_) * sizeof(float);
  }

  sdk::Status run(const sdk::KernelCall& call) const override {
    const std::int64_t pairs = batch_ * heads_;
    const std::int64_t blocks = (queries_ + kQueryBlock - 1) / kQueryBlock;
    if (pairs * blocks == 0) return {};
    // Whole heads, so that keys are packed once, unless that leaves threads idle.
    const std::int64_t parts = pairs % threads_ == 0 || pairs >= 4 * threads_
                                   ? 1
                                   : std::min<std::int64_t>(blocks, threads_);
    const std::int64_t work = pairs * queries_ * keys_ * (depth_ + values_);
    parallel_ranges(pairs * parts, work, [&](int thread, std::int64_t begin, std::int64_t end) {
      auto* scratch = reinterpret_cast<float*>(call.scratch) + thread * per_thread_;
      for (std::int64_t unit = begin; unit < end; ++unit) {
        const std::int64_t pair = unit / parts, part = unit % parts;
        head(call, pair / heads_, pair % heads_, blocks * part / parts * kQueryBlock,
             std::min(blocks * (part + 1) / parts * kQueryBlock, queries_), scratch);
      }
    });
    return {};
  }

 private:
  void head(const sdk::KernelCall& call, std::int64_t b, std::int64_t h, std::int64_t first,
            std::int64_t last, float* scratch) const {
    const VectorTable& table = vector_table();
    const std::int64_t kh = h / shared_;
    const std::int64_t keys = mask_.causal ? std::min(keys_, last) : keys_;
    float* turned = scratch;
    float* values = turned + depth_ * key_width_;
    float* q = values + (direct_values_ ? 0 : keys_ * wide_);
    float* scores = q + kQueryBlock * depth_;
    float* sums = scores + kQueryBlock * kKeyBlock;
    float* top = sums + kQueryBlock * wide_;
    float* total = top + kQueryBlock;

    pack_turned(k_, k_.at(call.operands[1], b, kh, 0), keys, depth_, turned, key_width_);
    const float* right = values;
    std::int64_t right_row = wide_;
    if (direct_values_) {
      right = reinterpret_cast<const float*>(v_.at(call.operands[2], b, kh, 0));
      right_row = v_.row;
    } else {
      pack_rows(v_, v_.at(call.operands[2], b, kh, 0), keys, values_, values, wide_);
    }

    for (std::int64_t row = first; row < last; row += kQueryBlock) {
      const std::int64_t rows = std::min(kQueryBlock, last - row);
      pack_rows(q_, q_.at(call.operands[0], b, h, row), rows, depth_, q, depth_, scale_);
      std::fill(top, top + rows, -std::numeric_limits<float>::infinity());
      std::fill(total, total + rows, 0.0F);
      const std::int64_t limit = mask_.causal ? std::min(keys_, row + rows) : keys_;
      for (std::int64_t key = 0; key < limit; key += kKeyBlock) {
        const std::int64_t n = std::min(kKeyBlock, limit - key);
        table.gemm(
            {scores, kKeyBlock, q, depth_, 1, turned + key, key_width_, rows, n, depth_, false});
        for (std::int64_t r = 0; r < rows; ++r)
          row_softmax(call, b, h, row + r, key, n, scores + r * kKeyBlock, sums + r * wide_, top[r],
                      total[r]);
        table.gemm({sums, wide_, scores, kKeyBlock, 1, right + key * right_row, right_row, rows,
                    values_, n, key != 0});
      }
      finish(call, b, h, row, rows, sums, top, total, limit == 0);
    }
  }

  // exp(scores - running maximum); earlier sums are brought to the new maximum.
  void row_softmax(const sdk::KernelCall& call, std::int64_t b, std::int64_t h, std::int64_t query,
                   std::int64_t key, std::int64_t n, float* scores, float* sums, float& top,
                   float& total) const {
    static const BlockFunction maximum = block_function(Opcode::kRowMax, Domain::kF32);
    static const BlockFunction powers = block_function(Opcode::kExpSum, Domain::kF32);
    if (mask_.present || mask_.causal)
      mask_.apply(mask_.present ? call.operands[3] : nullptr, b, h, query, key, scores, n);
    alignas(64) float highest[kLanes], sum[kLanes], shift[kLanes];
    maximum({highest, nullptr, {scores}, {1}, n});
    const float now = std::isnan(highest[0]) ? highest[0] : std::max(top, highest[0]);
    if (now == -std::numeric_limits<float>::infinity()) {  // all masked so far
      std::fill(scores, scores + n, 0.0F);
      return;
    }
    std::fill(shift, shift + kLanes, now);
    powers({scores, sum, {scores, shift}, {1}, n});
    const float factor = std::exp(top - now);
    total = total * factor + sum[0];
    if (key != 0 && factor != 1)
      for (std::int64_t c = 0; c < wide_; ++c) sums[c] *= factor;
    top = now;
  }

  void finish(const sdk::KernelCall& call, std::int64_t b, std::int64_t h, std::int64_t row,
              std::int64_t rows, float* sums, const float* top, const float* total,
              bool none) const {
    const StoreFunction store = store_function(out_.type, Domain::kF32);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* line = sums + r * wide_;
      const float factor = total[r] == 0 ? 0 : 1 / total[r];
      for (std::int64_t c = 0; c < values_; ++c) line[c] = none ? 0 : line[c] * factor;
      store(out_.at(call.results[0], b, h, row + r), out_.column, line, values_);
      if (!lse_strides_.empty() && call.results[1] != nullptr)
        reinterpret_cast<float*>(call.results[1])[b * lse_strides_[0] + h * lse_strides_[1] +
                                                  (row + r) * lse_strides_[2]] =
            top[r] + std::log(total[r]);
    }
  }

  Heads q_, k_, v_, out_;
  Mask mask_;
  std::int64_t batch_, heads_, queries_, keys_, depth_, values_, shared_;
  std::int64_t wide_, key_width_, per_thread_, threads_;
  float scale_;
  bool direct_values_;
  Shape lse_strides_;
};

}  // namespace

sdk::Result<std::unique_ptr<sdk::Kernel>> make_attention_kernel(const StepContext& context) {
  return std::unique_ptr<sdk::Kernel>(std::make_unique<AttentionKernel>(context));
}

std::optional<sdk::Refusal> refuse_attention(const sdk::NodeView& node) {
  const auto refuse = [](bp_refusal reason, const char* why) {
    return sdk::Refusal{0, reason, why};
  };
  for (std::size_t i = 0; i < 3; ++i) {
    const auto type = type_of(node.operand(i).dtype());
    if (type != Type::kF32 && type != Type::kBF16)
      return refuse(BP_REFUSED_DTYPE, "attention is for float32 and bfloat16");
    if (node.operand(i).rank() != 4)
      return refuse(BP_REFUSED_SHAPE, "attention needs 4-d operands");
  }
  if (node.real_or("dropout_p", 0) != 0)
    return refuse(BP_REFUSED_ATTRIBUTE, "no attention with dropout");
  if (node.bool_or("return_debug_mask", false))
    return refuse(BP_REFUSED_ATTRIBUTE, "no debug mask");
  return std::nullopt;
}

}  // namespace backplane::onednn
