// Scaled dot product attention as plain kernels of float32, row by row: nothing of the size of all
// scores is kept. Tensors are [batch, heads, length, width]; groups of heads may share keys and
// values.
#pragma once

#include <backplane/sdk/host_function.hpp>

#include <cmath>
#include <limits>

namespace backplane::sdk::host_kernels {
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

class AttentionSizes {
 public:
  // Operands from `first`: query, key, value. `mask` is added to the scores, where it is there.
  AttentionSizes(const StepContext& step, std::size_t first, std::size_t mask)
      : causal_(step.node().bool_or("is_causal", false)), mask_(mask) {
    const auto &q = step.operand(first).dims, &k = step.operand(first + 1).dims;
    batch = q[0], heads = q[1], length = q[2], width = q[3];
    key_heads = k[1], keys = k[2], value_width = step.operand(first + 2).dims[3];
    scale =
        static_cast<float>(step.node().real_or("scale", 1 / std::sqrt(static_cast<double>(width))));
    if (!step.has_operand(mask)) return;
    masked_ = true;
    const TensorSpec& spec = step.operand(mask);
    for (std::size_t d = 0; d < spec.rank(); ++d)
      mask_strides_[4 - spec.rank() + d] = spec.dims[d] == 1 ? 0 : spec.strides[d];
  }

  // body(head of the batch, its keys' head, row): each row of each head.
  template <class Body>
  void each_row(const Body& body) const {
    for (std::int64_t h = 0; h < batch * heads; ++h) {
      const std::int64_t of_keys = h / heads * key_heads + h % heads / (heads / key_heads);
      for (std::int64_t i = 0; i < length; ++i) body(h, of_keys, i);
    }
  }
  // Of one row of queries with all keys of its head.
  void scores(const KernelCall& call, std::int64_t head, std::int64_t row, const float* query,
              const float* key, float* out_scores) const {
    const float* const mask = masked_ ? in(call, mask_) + head / heads * mask_strides_[0] +
                                            head % heads * mask_strides_[1] + row * mask_strides_[2]
                                      : nullptr;
    for (std::int64_t j = 0; j < keys; ++j) {
      float sum = 0;
      for (std::int64_t c = 0; c < width; ++c) sum += query[c] * key[j * width + c];
      out_scores[j] = sum * scale;
      if (mask != nullptr) out_scores[j] += mask[j * mask_strides_[3]];
      if (causal_ && j > row) out_scores[j] = kMinusInfinity;
    }
  }

  std::int64_t batch = 0, heads = 0, length = 0, width = 0;
  std::int64_t key_heads = 0, keys = 0, value_width = 0;
  float scale = 1;

 private:
  bool causal_, masked_ = false;
  std::size_t mask_;  // operand
  std::int64_t mask_strides_[4] = {};
};

// query, key, value, mask? -> output, logarithms of the sums of exponentials of each row
inline Result<std::unique_ptr<Kernel>> attention(const StepContext& step) {
  return made([n = AttentionSizes(step, 0, 3)](const KernelCall& call) {
    std::vector<float> row(static_cast<std::size_t>(n.keys));
    n.each_row([&](std::int64_t h, std::int64_t of_keys, std::int64_t i) {
      const std::int64_t at = h * n.length + i;
      n.scores(call, h, i, in(call, 0) + at * n.width, in(call, 1) + of_keys * n.keys * n.width,
               row.data());
      float most = kMinusInfinity, sum = 0;
      for (const float score : row) most = std::isnan(score) || score > most ? score : most;
      const float base = most == kMinusInfinity ? 0 : most;  // nothing to look at gives zeros
      for (float& score : row) sum += score = std::exp(score - base);
      float* const result = out(call) + at * n.value_width;
      std::fill_n(result, n.value_width, 0.0F);
      for (std::int64_t j = 0; j < n.keys; ++j) {
        const float weight = sum == 0 ? 0 : row[static_cast<std::size_t>(j)] / sum;
        const float* const value = in(call, 2) + (of_keys * n.keys + j) * n.value_width;
        for (std::int64_t c = 0; c < n.value_width; ++c) result[c] += weight * value[c];
      }
      if (out(call, 1) != nullptr) out(call, 1)[at] = base + std::log(sum);
    });
  });
}

// gradient, query, key, value, output, logarithms of the sums, mask? -> gradients of query, key and
// value
inline Result<std::unique_ptr<Kernel>> attention_backward(const StepContext& step) {
  const auto elements = [&](std::size_t i) {
    return static_cast<std::size_t>(step.operand(i).elements());
  };
  return made([n = AttentionSizes(step, 1, 6), of_query = elements(1), of_key = elements(2),
               of_value = elements(3)](const KernelCall& call) {
    std::vector<float> row(static_cast<std::size_t>(n.keys));
    std::vector<float> gq(of_query), gk(of_key), gv(of_value);
    n.each_row([&](std::int64_t h, std::int64_t of_keys, std::int64_t i) {
      const std::int64_t at = h * n.length + i;
      const float *gradient = in(call, 0) + at * n.value_width, *query = in(call, 1) + at * n.width;
      const float* const output = in(call, 4) + at * n.value_width;
      n.scores(call, h, i, query, in(call, 2) + of_keys * n.keys * n.width, row.data());
      const float log_sum = in(call, 5)[at];
      float expected = 0;  // of the gradient of the scores
      for (std::int64_t c = 0; c < n.value_width; ++c) expected += gradient[c] * output[c];
      for (std::int64_t j = 0; j < n.keys; ++j) {
        const std::int64_t key = of_keys * n.keys + j;
        const float weight =
            log_sum == kMinusInfinity ? 0 : std::exp(row[static_cast<std::size_t>(j)] - log_sum);
        float slope = -expected;
        for (std::int64_t c = 0; c < n.value_width; ++c) {
          slope += gradient[c] * in(call, 3)[key * n.value_width + c];
          gv[static_cast<std::size_t>(key * n.value_width + c)] += weight * gradient[c];
        }
        slope *= weight * n.scale;
        for (std::int64_t c = 0; c < n.width; ++c) {
          gq[static_cast<std::size_t>(at * n.width + c)] += slope * in(call, 2)[key * n.width + c];
          gk[static_cast<std::size_t>(key * n.width + c)] += slope * query[c];
        }
      }
    });
    const std::vector<float>* const all[] = {&gq, &gk, &gv};
    for (std::size_t i = 0; i < 3; ++i)
      if (out(call, i) != nullptr) std::copy(all[i]->begin(), all[i]->end(), out(call, i));
  });
}

inline std::vector<KernelRow> attention_rows() {
  const auto refuse = [](std::size_t query) -> KernelRow::Refuse {
    return [query](const NodeView& node) -> std::optional<Refusal> {
      const std::string op(node.op());
      if (node.real_or("dropout_p", 0) != 0)
        return Refusal{0, BP_REFUSED_ATTRIBUTE, op + " with dropout"};
      if (node.operand(query).rank() != 4)
        return Refusal{0, BP_REFUSED_SHAPE, op + " of other than 4 dims"};
      return std::nullopt;
    };
  };
  std::vector<KernelRow> rows{
      {"aten._scaled_dot_product_flash_attention_for_cpu", attention},
      {"aten._scaled_dot_product_flash_attention_for_cpu_backward", attention_backward},
  };
  rows[0].refuse = refuse(0);
  rows[1].refuse = refuse(1);
  return rows;
}

}  // namespace backplane::sdk::host_kernels
