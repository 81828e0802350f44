// Gradients of attention from the saved logsumexp: probabilities are recomputed in tiles of queries
// x keys that stay in the cache. One unit of work is a key head with all queries that share it, so
// that the gradients of keys and values need no combining.
#include <algorithm>

#include "kernels/kernel_registry.h"
#include "kernels/primitives/attention_tensor.h"
#include "kernels/rows/float_rows.h"
#include "kernels/simd/row_loops.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

// Between rows of a tile of scores: columns of a power of two would share few lines of the cache.
constexpr std::int64_t kTileRow = kKeyBlock + kLanes;

using sdk::KernelCall;
using sdk::StepContext;

bool dense_floats(const Heads& t) { return t.type == Type::kF32 && t.column == 1; }

// Operands: grad, query, key, value, out, logsumexp, mask. Results: gradients of query, key, value.
class AttentionBackward : public sdk::Kernel {
 public:
  explicit AttentionBackward(const StepContext& context)
      : grad_(context.operand(0)),
        q_(context.operand(1)),
        k_(context.operand(2)),
        v_(context.operand(3)),
        out_(context.operand(4)),
        lse_(context.operand(5).strides) {
    const Shape& q = context.operand(1).dims;
    batch_ = q[0];
    heads_ = q[1];
    queries_ = q[2];
    depth_ = q[3];
    key_heads_ = std::max<std::int64_t>(context.operand(2).dims[1], 1);
    keys_ = context.operand(2).dims[2];
    values_ = context.operand(3).dims[3];
    shared_ = std::max<std::int64_t>(heads_ / key_heads_, 1);
    scale_ = static_cast<float>(
        context.node().real_or("scale", 1 / std::sqrt(static_cast<double>(depth_))));
    mask_ = Mask(context, 6, {batch_, heads_, queries_, keys_});
    for (std::size_t i = 0; i < 3; ++i)
      if (context.step().results[i] != BP_NONE) results_[i] = Heads(context.result(i));
    // Dense float heads are read where they lie.
    direct_keys_ = dense_floats(k_) && depth_ % kLanes == 0;
    direct_grad_ = dense_floats(grad_) && values_ % kLanes == 0;
    deep_ = whole_lanes(depth_);
    wide_ = whole_lanes(values_);
    long_ = whole_lanes(keys_) | kLanes;
    parts_ = team_size(batch_ * key_heads_, work());
    const std::int64_t turned = (depth_ + values_) * long_;
    const std::int64_t rows = keys_ * ((direct_keys_ ? 1 : 2) * deep_ + wide_);
    const std::int64_t block = kQueryBlock * (2 * deep_ + wide_ + 2 * kTileRow + 2) + wide_;
    per_part_ = whole_lanes(turned + rows + block);
  }

  std::uint64_t scratch_bytes() const override {
    return static_cast<std::uint64_t>(per_part_ * parts_) * sizeof(float);
  }

  sdk::Status run(const KernelCall& call) const override {
    const std::int64_t pairs = batch_ * key_heads_;
    if (pairs == 0) return {};
    parallel_ranges(parts_, work(), [&](int, std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        const Room room(*this, reinterpret_cast<float*>(call.scratch) + part * per_part_);
        for (std::int64_t p = pairs * part / parts_; p < pairs * (part + 1) / parts_; ++p)
          key_head(call, p / key_heads_, p % key_heads_, room);
      }
    });
    return {};
  }

 private:
  // Of one part; widths are whole vectors.
  struct Room {
    float *turned_keys, *turned_values;     // [depth, keys], [values, keys]
    float *keys, *grad_keys, *grad_values;  // [keys, depth], [keys, values]
    float *q, *grad_q, *grad;               // of a block of queries
    float *p, *slope;                       // of a tile
    float *lse, *delta, *row;

    Room(const AttentionBackward& s, float* at) {
      const auto take = [&](std::int64_t n) {
        float* here = at;
        at += n;
        return here;
      };
      turned_keys = take(s.depth_ * s.long_);
      turned_values = take(s.values_ * s.long_);
      keys = s.direct_keys_ ? nullptr : take(s.keys_ * s.deep_);
      grad_keys = take(s.keys_ * s.deep_);
      grad_values = take(s.keys_ * s.wide_);
      q = take(kQueryBlock * s.deep_);
      grad_q = take(kQueryBlock * s.deep_);
      grad = take(kQueryBlock * s.wide_);
      p = take(kQueryBlock * kTileRow);
      slope = take(kQueryBlock * kTileRow);
      lse = take(kQueryBlock);
      delta = take(kQueryBlock);
      row = take(s.wide_);
    }
  };

  std::int64_t work() const {
    return batch_ * heads_ * queries_ * keys_ * (3 * depth_ + 2 * values_);
  }

  void key_head(const KernelCall& call, std::int64_t b, std::int64_t kh, const Room& room) const {
    pack_turned(k_, k_.at(call.operands[2], b, kh, 0), keys_, depth_, room.turned_keys, long_);
    pack_turned(v_, v_.at(call.operands[3], b, kh, 0), keys_, values_, room.turned_values, long_);
    const float* keys = room.keys;
    std::int64_t key_row = deep_;
    if (direct_keys_) {
      keys = reinterpret_cast<const float*>(k_.at(call.operands[2], b, kh, 0));
      key_row = k_.row;
    } else {
      pack_rows(k_, k_.at(call.operands[2], b, kh, 0), keys_, depth_, room.keys, deep_);
    }
    std::fill(room.grad_keys, room.grad_keys + keys_ * deep_, 0.0F);
    std::fill(room.grad_values, room.grad_values + keys_ * wide_, 0.0F);
    for (std::int64_t h = kh * shared_; h < (kh + 1) * shared_; ++h)
      for (std::int64_t query = 0; query < queries_; query += kQueryBlock)
        queries(call, b, h, query, std::min(kQueryBlock, queries_ - query), keys, key_row, room);
    put(call, 1, b, kh, 0, keys_, depth_, room.grad_keys, deep_);
    put(call, 2, b, kh, 0, keys_, values_, room.grad_values, wide_);
  }

  void queries(const KernelCall& call, std::int64_t b, std::int64_t h, std::int64_t query,
               std::int64_t rows, const float* keys, std::int64_t key_row, const Room& room) const {
    const VectorTable& table = vector_table();
    load_queries(call, b, h, query, rows, room);
    const float* grad = room.grad;
    std::int64_t grad_row = wide_;
    if (direct_grad_) {
      grad = reinterpret_cast<const float*>(grad_.at(call.operands[0], b, h, query));
      grad_row = grad_.row;
    }
    const std::int64_t limit = mask_.causal ? std::min(keys_, query + rows) : keys_;
    for (std::int64_t key = 0; key < limit; key += kKeyBlock) {
      const std::int64_t n = std::min(kKeyBlock, limit - key);
      table.gemm({room.p, kTileRow, room.q, deep_, 1, room.turned_keys + key, long_, rows, n,
                  depth_, false});
      for (std::int64_t r = 0; r < rows; ++r)
        probabilities(call, b, h, query + r, key, n, room.p + r * kTileRow, room.lse[r]);
      table.gemm({room.grad_values + key * wide_, wide_, room.p, 1, kTileRow, grad, grad_row, n,
                  values_, rows, true});
      table.gemm({room.slope, kTileRow, grad, grad_row, 1, room.turned_values + key, long_, rows, n,
                  values_, false});
      for (std::int64_t r = 0; r < rows; ++r)
        row_loops().softmax_slope(room.slope + r * kTileRow, room.p + r * kTileRow, room.delta[r],
                                  n);
      // Queries are scaled already; the gradient of queries is scaled when it is stored.
      table.gemm({room.grad_keys + key * deep_, deep_, room.slope, 1, kTileRow, room.q, deep_, n,
                  depth_, rows, true});
      table.gemm({room.grad_q, deep_, room.slope, kTileRow, 1, keys + key * key_row, key_row, rows,
                  depth_, n, key != 0});
    }
    if (limit == 0) std::fill(room.grad_q, room.grad_q + rows * deep_, 0.0F);
    put(call, 0, b, h, query, rows, depth_, room.grad_q, deep_, scale_);
  }

  // Packs queries and grads; delta is the dot product of grad and out.
  void load_queries(const KernelCall& call, std::int64_t b, std::int64_t h, std::int64_t query,
                    std::int64_t rows, const Room& room) const {
    const RowLoops& loops = row_loops();
    const auto* lse = reinterpret_cast<const float*>(call.operands[5]);
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* q =
          row_of(q_, q_.at(call.operands[1], b, h, query + r), depth_, room.q + r * deep_);
      loops.scale_row(room.q + r * deep_, q, scale_, depth_);
      std::fill(room.q + r * deep_ + depth_, room.q + (r + 1) * deep_, 0.0F);
      const std::byte* from = grad_.at(call.operands[0], b, h, query + r);
      const float* grad = reinterpret_cast<const float*>(from);
      if (!direct_grad_) {
        pack_rows(grad_, from, 1, values_, room.grad + r * wide_, wide_);
        grad = room.grad + r * wide_;
      }
      const float* out =
          row_of(out_, out_.at(call.operands[4], b, h, query + r), values_, room.row);
      room.delta[r] = loops.dot(grad, out, values_);
      room.lse[r] = lse[b * lse_[0] + h * lse_[1] + (query + r) * lse_[2]];
    }
  }
  static const float* row_of(const Heads& t, const std::byte* at, std::int64_t n, float* room) {
    if (dense_floats(t)) return reinterpret_cast<const float*>(at);
    load_function(t.type, Domain::kF32)(room, at, t.column, n);
    return room;
  }

  void probabilities(const KernelCall& call, std::int64_t b, std::int64_t h, std::int64_t query,
                     std::int64_t key, std::int64_t n, float* scores, float lse) const {
    if (lse == -std::numeric_limits<float>::infinity()) {  // a query that sees no key
      std::fill(scores, scores + n, 0.0F);
      return;
    }
    if (mask_.present || mask_.causal)
      mask_.apply(mask_.present ? call.operands[6] : nullptr, b, h, query, key, scores, n);
    row_loops().shifted_exp(scores, lse, n);
  }

  void put(const KernelCall& call, std::size_t result, std::int64_t b, std::int64_t h,
           std::int64_t row, std::int64_t rows, std::int64_t columns, float* from,
           std::int64_t width, float scale = 1) const {
    if (!results_[result] || call.results[result] == nullptr) return;
    const Heads& t = *results_[result];
    const StoreFunction store = store_function(t.type, Domain::kF32);
    for (std::int64_t r = 0; r < rows; ++r, from += width) {
      std::byte* to = t.at(call.results[result], b, h, row + r);
      const bool dense = dense_floats(t);
      if (dense || scale != 1)
        row_loops().scale_row(dense ? reinterpret_cast<float*>(to) : from, from, scale, columns);
      if (!dense) store(to, t.column, from, columns);
    }
  }

  Heads grad_, q_, k_, v_, out_;
  Shape lse_;
  std::array<std::optional<Heads>, 3> results_;
  Mask mask_;
  std::int64_t batch_, heads_, key_heads_, queries_, keys_, depth_, values_, shared_;
  std::int64_t deep_, wide_, long_, parts_, per_part_;
  float scale_;
  bool direct_keys_, direct_grad_;
};

MadeKernel attention_backward(const StepContext& context) {
  return std::unique_ptr<sdk::Kernel>(std::make_unique<AttentionBackward>(context));
}

std::optional<sdk::Refusal> refuse_attention_backward(const sdk::NodeView& node) {
  for (std::size_t i = 0; i < 5; ++i) {
    if (!is_f32_or_bf16(node.operand(i).dtype()))
      return refusal(BP_REFUSED_DTYPE, "attention is for float32 and bfloat16");
    if (node.operand(i).rank() != 4)
      return refusal(BP_REFUSED_SHAPE, "attention needs 4-d operands");
  }
  if (type_of(node.operand(5).dtype()) != Type::kF32 || node.operand(5).rank() != 3)
    return refusal(BP_REFUSED_DTYPE, "attention needs a float32 logsumexp of three dims");
  if (node.real_or("dropout_p", 0) != 0)
    return refusal(BP_REFUSED_ATTRIBUTE, "no attention with dropout");
  return std::nullopt;
}

constexpr KernelRow kRows[] = {
    {"aten._scaled_dot_product_flash_attention_for_cpu_backward", attention_backward,
     refuse_attention_backward},
};

}  // namespace

KernelRows attention_backward_kernels() { return kRows; }

}  // namespace backplane::onednn
