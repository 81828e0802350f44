// Plain kernels of float32, for memory that the host's code can reach: enough for small perceptrons
// and transformers, inference and training. To begin with, and to be replaced one by one: of two
// rows of a KernelTable with one name the later counts. They are written to be read, not to be
// fast.
#pragma once

#include <backplane/sdk/host_attention.hpp>
#include <backplane/sdk/splits.hpp>

#include <cmath>
#include <limits>
#include <numeric>

namespace backplane::sdk::host_kernels {

// ---- Element by element ---------------------------------------------------------------------

// For each element of the result, where its element of each operand lies: dense operands,
// broadcast.
class Broadcast {
 public:
  explicit Broadcast(const StepContext& step) : dims_(step.result().dims) {
    for (std::size_t k = 0; k < step.step().operands.size(); ++k) {
      std::vector<std::int64_t> strides(dims_.size(), 0);
      if (step.has_operand(k)) {
        const TensorSpec& spec = step.operand(k);
        const std::size_t missing = dims_.size() - spec.rank();
        for (std::size_t d = 0; d < spec.rank(); ++d)
          if (spec.dims[d] != 1) strides[missing + d] = spec.strides[d];
      }
      strides_.push_back(std::move(strides));
    }
  }
  // body(position in the result, positions in the operands)
  template <class Body>
  void each(const Body& body) const {
    const std::int64_t count =
        std::accumulate(dims_.begin(), dims_.end(), std::int64_t{1}, std::multiplies<>());
    std::vector<std::int64_t> index(dims_.size(), 0), at(strides_.size(), 0);
    for (std::int64_t n = 0; n < count; ++n) {
      body(n, at.data());
      for (std::size_t d = dims_.size(); d-- > 0;) {
        const bool carries = ++index[d] == dims_[d];
        for (std::size_t k = 0; k < at.size(); ++k)
          at[k] += carries ? strides_[k][d] * (1 - dims_[d]) : strides_[k][d];
        if (!carries) break;
        index[d] = 0;
      }
    }
  }

 private:
  std::vector<std::int64_t> dims_;
  std::vector<std::vector<std::int64_t>> strides_;
};

// f(node) gives what one element is of its operands.
template <std::size_t kOperands, class F>
KernelRow::Make elementwise(F f) {
  return [f](const StepContext& step) {
    return made([broadcast = Broadcast(step), function = f(step.node())](const KernelCall& call) {
      float* const result = out(call);
      broadcast.each([&](std::int64_t n, const std::int64_t* at) {
        if constexpr (kOperands == 1)
          result[n] = function(in(call, 0)[at[0]]);
        else if constexpr (kOperands == 2)
          result[n] = function(in(call, 0)[at[0]], in(call, 1)[at[1]]);
        else
          result[n] = function(in(call, 0)[at[0]], in(call, 1)[at[1]], in(call, 2)[at[2]]);
      });
    });
  };
}
inline KernelRow::Make unary(float (*f)(float)) {
  return elementwise<1>([f](const NodeView&) { return f; });
}
inline KernelRow::Make binary(float (*f)(float, float)) {
  return elementwise<2>([f](const NodeView&) { return f; });
}
// The number `name` of the node is the second operand.
inline KernelRow::Make with_number(const char* name, float (*f)(float, float)) {
  return elementwise<1>([f, name](const NodeView& node) {
    return [f, b = static_cast<float>(node.real_or(name, 0))](float a) { return f(a, b); };
  });
}
inline float gelu(float x) { return 0.5F * x * (1 + std::erf(x * 0.70710678F)); }
inline float gelu_slope(float x) {
  return 0.5F * (1 + std::erf(x * 0.70710678F)) + x * 0.39894228F * std::exp(-0.5F * x * x);
}
inline float gelu_by_tanh(float x) {
  return 0.5F * x * (1 + std::tanh(0.79788456F * (x + 0.044715F * x * x * x)));
}
inline float gelu_by_tanh_slope(float x) {
  const float t = std::tanh(0.79788456F * (x + 0.044715F * x * x * x));
  return 0.5F * (1 + t) + 0.5F * x * (1 - t * t) * 0.79788456F * (1 + 3 * 0.044715F * x * x);
}
inline bool by_tanh(const NodeView& node) { return node.text_or("approximate", "none") == "tanh"; }
// alpha times the second operand is added.
inline KernelRow::Make sum_of_two(float sign) {
  return elementwise<2>([sign](const NodeView& node) {
    const auto alpha = sign * static_cast<float>(node.real_or("alpha", 1));
    return [alpha](float a, float b) { return a + alpha * b; };
  });
}

// ---- Products -------------------------------------------------------------------------------

// out[b] += left[b] (m × k) right[b] (k × n, or n × k where it is `turned`)
inline Status multiply(const float* left, const float* right, float* result, std::int64_t batch,
                       std::int64_t m, std::int64_t k, std::int64_t n, bool turned) {
  const auto multiply_row = [=](std::int64_t row) {
    const float *a = left + row * k, *b = right + row / m * k * n;
    for (std::int64_t j = 0; j < n; ++j) {
      float total = result[row * n + j];
      for (std::int64_t l = 0; l < k; ++l) total += a[l] * (turned ? b[j * k + l] : b[l * n + j]);
      result[row * n + j] = total;
    }
  };
  return split_rows(static_cast<std::size_t>(batch * m),
                    static_cast<std::size_t>(k * n) * sizeof(float),
                    [&](std::size_t begin, std::size_t end) -> Status {
                      for (; begin < end; ++begin) multiply_row(static_cast<std::int64_t>(begin));
                      return {};
                    });
}
inline Result<std::unique_ptr<Kernel>> product(const StepContext& step) {  // mm, bmm
  const auto& a = step.operand(0).dims;
  const std::int64_t n = step.result().dims.back(), count = step.result().elements();
  const std::int64_t batch = a.size() == 3 ? a[0] : 1;
  return made([=, m = a[a.size() - 2], k = a.back()](const KernelCall& call) {
    std::fill_n(out(call), count, 0.0F);
    return multiply(in(call, 0), in(call, 1), out(call), batch, m, k, n, false);
  });
}
inline Result<std::unique_ptr<Kernel>> linear(const StepContext& step) {  // x, weight, bias?
  const std::int64_t n = step.operand(1).dims[0], k = step.operand(1).dims[1];
  const std::int64_t rows = n == 0 ? 0 : step.result().elements() / n;
  const bool biased = step.has_operand(2);
  return made([=](const KernelCall& call) {
    for (std::int64_t i = 0; i < rows * n; ++i) out(call)[i] = biased ? in(call, 2)[i % n] : 0.0F;
    return multiply(in(call, 0), in(call, 1), out(call), 1, rows, k, n, true);
  });
}
inline Result<std::unique_ptr<Kernel>> addmm(const StepContext& step) {  // bias, left, right
  const auto& a = step.operand(1).dims;
  const std::int64_t m = a[0], k = a[1], n = step.result().dims[1];
  const auto beta = static_cast<float>(step.node().real_or("beta", 1));
  const auto alpha = static_cast<float>(step.node().real_or("alpha", 1));
  const TensorSpec bias = step.operand(0);
  return made([=](const KernelCall& call) -> Status {
    float* const result = out(call);
    std::fill_n(result, m * n, 0.0F);
    BP_SDK_RETURN_IF_ERROR(multiply(in(call, 1), in(call, 2), result, 1, m, k, n, false));
    for (std::int64_t i = 0; i < m * n; ++i) {
      const std::int64_t row = bias.rank() == 2 && bias.dims[0] != 1 ? i / n : 0;
      const std::int64_t columns = bias.rank() == 0 ? 1 : bias.dims.back();
      result[i] *= alpha;
      if (beta != 0) result[i] += beta * in(call, 0)[row * columns + (columns == 1 ? 0 : i % n)];
    }
    return {};
  });
}

// ---- Rows and reductions --------------------------------------------------------------------

// A dense tensor around one of its dims: `outer` times `size` elements that lie `inner` apart.
struct Around {
  std::int64_t outer = 1, size = 1, inner = 1;
};
inline Around around(const std::vector<std::int64_t>& dims, std::int64_t dim) {
  Around a;
  if (dims.empty()) return a;
  const auto at = static_cast<std::size_t>(wrap_dim(dim, dims.size()));
  for (std::size_t d = 0; d < dims.size(); ++d)
    (d < at ? a.outer : d == at ? a.size : a.inner) *= dims[d];
  return a;
}
// body(offset of the first element, distance, size) for each row along the node's `dim`
template <class Body>
Result<std::unique_ptr<Kernel>> each_row(const StepContext& step, Body body) {
  const Around a = around(step.result().dims, step.int_or("dim", -1));
  return made([=](const KernelCall& call) {
    for (std::int64_t o = 0; o < a.outer; ++o)
      for (std::int64_t i = 0; i < a.inner; ++i)
        body(call, o * a.size * a.inner + i, a.inner, a.size);
  });
}
inline Result<std::unique_ptr<Kernel>> softmax(const StepContext& step) {
  const bool logarithm = step.node().op() == "aten._log_softmax";
  const bool safe = step.node().op() == "aten._safe_softmax";  // rows of -inf alone become zeros
  return each_row(step, [=](const KernelCall& call, std::int64_t at, std::int64_t by,
                            std::int64_t n) {
    const float* const x = in(call, 0) + at;
    float* const y = out(call) + at;
    float top = -std::numeric_limits<float>::infinity(), total = 0;
    for (std::int64_t i = 0; i < n; ++i) top = x[i * by] > top ? x[i * by] : top;
    if (safe && top == -std::numeric_limits<float>::infinity()) {
      bool all = true;
      for (std::int64_t i = 0; i < n; ++i) all = all && x[i * by] == top;
      if (all) {
        for (std::int64_t i = 0; i < n; ++i) y[i * by] = 0;
        return;
      }
    }
    for (std::int64_t i = 0; i < n; ++i) total += std::exp(x[i * by] - top);
    for (std::int64_t i = 0; i < n; ++i)
      y[i * by] = logarithm ? x[i * by] - top - std::log(total) : std::exp(x[i * by] - top) / total;
  });
}
inline Result<std::unique_ptr<Kernel>> softmax_backward(const StepContext& step) {  // grad, output
  const bool logarithm = step.node().op() == "aten._log_softmax_backward_data";
  return each_row(
      step, [=](const KernelCall& call, std::int64_t at, std::int64_t by, std::int64_t n) {
        const float *const g = in(call, 0) + at, *const y = in(call, 1) + at;
        float* const dx = out(call) + at;
        float total = 0;
        for (std::int64_t i = 0; i < n; ++i) total += logarithm ? g[i * by] : g[i * by] * y[i * by];
        for (std::int64_t i = 0; i < n; ++i)
          dx[i * by] =
              logarithm ? g[i * by] - std::exp(y[i * by]) * total : y[i * by] * (g[i * by] - total);
      });
}
// The size of what `normalized_shape` normalizes together.
inline std::int64_t normalized(const StepContext& step) {
  std::int64_t n = 1;
  for (const std::int64_t size : step.ints("normalized_shape")) n *= size;
  return n;
}
inline Result<std::unique_ptr<Kernel>> layer_norm(const StepContext& step) {  // x, weight?, bias?
  const std::int64_t n = normalized(step), count = step.operand(0).elements();
  const bool scaled = step.has_operand(1), shifted = step.has_operand(2);
  const double eps = step.node().real_or("eps", 1e-5);
  return made([=](const KernelCall& call) {
    for (std::int64_t row = 0; row < (n == 0 ? 0 : count / n); ++row) {
      const float* const x = in(call, 0) + row * n;
      double mean = 0, square = 0;
      for (std::int64_t i = 0; i < n; ++i) mean += x[i];
      mean /= static_cast<double>(n);
      for (std::int64_t i = 0; i < n; ++i) square += (x[i] - mean) * (x[i] - mean);
      const double rstd = 1 / std::sqrt(square / static_cast<double>(n) + eps);
      for (std::int64_t i = 0; i < n; ++i) {
        const double y = (x[i] - mean) * rstd * (scaled ? in(call, 1)[i] : 1.0F);
        out(call)[row * n + i] = static_cast<float>(y + (shifted ? in(call, 2)[i] : 0.0F));
      }
      if (call.results[1] != nullptr) out(call, 1)[row] = static_cast<float>(mean);
      if (call.results[2] != nullptr) out(call, 2)[row] = static_cast<float>(rstd);
    }
  });
}
// grad, x, mean, rstd, weight?, bias? to the gradients of x, weight and bias, those that are wanted
inline Result<std::unique_ptr<Kernel>> layer_norm_backward(const StepContext& step) {
  const std::int64_t n = normalized(step), count = step.operand(1).elements();
  const bool scaled = step.has_operand(4);
  return made([=](const KernelCall& call) {
    const auto wanted = [&](std::size_t i) { return call.results[i] != nullptr; };
    for (const std::size_t i : {std::size_t{1}, std::size_t{2}})
      if (wanted(i)) std::fill_n(out(call, i), n, 0.0F);
    for (std::int64_t row = 0; row < (n == 0 ? 0 : count / n); ++row) {
      const float *const g = in(call, 0) + row * n, *const x = in(call, 1) + row * n;
      const double mean = in(call, 2)[row], rstd = in(call, 3)[row];
      double sum = 0, product = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        const double scaled_g = g[i] * (scaled ? in(call, 4)[i] : 1.0F), h = (x[i] - mean) * rstd;
        sum += scaled_g;
        product += scaled_g * h;
        if (wanted(1)) out(call, 1)[i] += static_cast<float>(g[i] * h);
        if (wanted(2)) out(call, 2)[i] += g[i];
      }
      for (std::int64_t i = 0; wanted(0) && i < n; ++i) {
        const double scaled_g = g[i] * (scaled ? in(call, 4)[i] : 1.0F), h = (x[i] - mean) * rstd;
        out(call)[row * n + i] =
            static_cast<float>(rstd * (scaled_g - (sum + h * product) / static_cast<double>(n)));
      }
    }
  });
}
// Sums, or means, over the dims of the attribute `dim`; over all where there is none.
inline Result<std::unique_ptr<Kernel>> reduce(const StepContext& step) {
  const TensorSpec x = step.operand(0);
  std::vector<bool> gone(x.rank(), step.ints("dim").empty());
  for (const std::int64_t d : step.ints("dim"))
    if (x.rank() != 0) gone[static_cast<std::size_t>(wrap_dim(d, x.rank()))] = true;
  std::vector<std::int64_t> strides(x.rank(), 0);
  std::int64_t kept = 1;
  for (std::size_t d = x.rank(); d-- > 0;)
    if (!gone[d]) strides[d] = std::exchange(kept, kept * x.dims[d]);
  const bool mean = step.node().op().starts_with("aten.mean");
  const std::int64_t count = x.elements();
  return made([=](const KernelCall& call) {
    std::vector<double> totals(static_cast<std::size_t>(kept), 0.0);
    for (std::int64_t n = 0; n < count; ++n) {
      std::int64_t rest = n, at = 0;
      for (std::size_t d = x.rank(); d-- > 0; rest /= x.dims[d])
        at += rest % x.dims[d] * strides[d];
      totals[static_cast<std::size_t>(at)] += in(call, 0)[n];
    }
    const double divisor =
        mean ? static_cast<double>(count) / static_cast<double>(std::max<std::int64_t>(kept, 1))
             : 1;
    for (std::size_t i = 0; i < totals.size(); ++i)
      out(call)[i] = static_cast<float>(totals[i] / divisor);
  });
}

// ---- Rows by index, and moves ---------------------------------------------------------------

inline Result<std::unique_ptr<Kernel>> embedding(const StepContext& step) {  // weight, indices
  const std::int64_t width = step.operand(0).dims[1], rows = step.operand(0).dims[0];
  const std::int64_t count = step.operand(1).elements();
  class Lookup final : public Kernel {
   public:
    Lookup(std::int64_t width, std::int64_t rows, std::int64_t count)
        : width_(width), rows_(rows), count_(count) {}
    Status run(const KernelCall& call) const override {
      const auto* const index = reinterpret_cast<const std::int64_t*>(call.operands[1]);
      for (std::int64_t i = 0; i < count_; ++i) {
        if (index[i] < 0 || index[i] >= rows_)
          return {BP_INVALID_ARGUMENT, "index out of range in self"};
        std::copy_n(in(call, 0) + index[i] * width_, width_, out(call) + i * width_);
      }
      return {};
    }

   private:
    std::int64_t width_, rows_, count_;
  };
  return std::make_unique<Lookup>(width, rows, count);
}
inline Result<std::unique_ptr<Kernel>> embedding_backward(
    const StepContext& step) {  // grad, indices
  const std::int64_t width = step.result().dims[1], rows = step.result().dims[0];
  const std::int64_t count = step.operand(1).elements();
  const std::int64_t padding = step.int_or("padding_idx", -1);
  return made([=](const KernelCall& call) {
    const auto* const index = reinterpret_cast<const std::int64_t*>(call.operands[1]);
    std::fill_n(out(call), rows * width, 0.0F);
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t j = 0; index[i] != padding && j < width; ++j)
        out(call)[index[i] * width + j] += in(call, 0)[i * width + j];
  });
}
inline Result<std::unique_ptr<Kernel>> cat(const StepContext& step) {
  const Around whole = around(step.result().dims, step.int_or("dim", 0));
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 0; i < step.step().operands.size(); ++i) {
    // PyTorch takes float32[0] among tensors of any rank.
    const bool is_part = step.operand(i).rank() == step.result().rank();
    sizes.push_back(is_part ? around(step.operand(i).dims, step.int_or("dim", 0)).size : 0);
  }
  return made([=](const KernelCall& call) {
    std::int64_t before = 0;
    for (std::size_t k = 0; k < sizes.size(); before += sizes[k++])
      for (std::int64_t o = 0; call.operands[k] != nullptr && o < whole.outer; ++o)
        std::copy_n(in(call, k) + o * sizes[k] * whole.inner, sizes[k] * whole.inner,
                    out(call) + (o * whole.size + before) * whole.inner);
  });
}
inline Result<std::unique_ptr<Kernel>> select_backward(const StepContext& step) {
  const Around whole = around(step.result().dims, step.int_or("dim", 0));
  const std::int64_t count = step.result().elements(), index = step.int_or("index", 0);
  const std::int64_t at = index < 0 ? index + whole.size : index;
  return made([=](const KernelCall& call) {
    std::fill_n(out(call), count, 0.0F);
    for (std::int64_t o = 0; o < whole.outer; ++o)
      std::copy_n(in(call, 0) + o * whole.inner, whole.inner,
                  out(call) + (o * whole.size + at) * whole.inner);
  });
}

// ---- The rows -------------------------------------------------------------------------------

inline std::vector<KernelRow> rows() {
  const auto without = [](const char* name) -> KernelRow::Refuse {
    return [name](const NodeView& node) -> std::optional<Refusal> {
      const bp_attribute* a = node.attribute(name);
      if (a == nullptr || (a->kind == BP_ATTRIBUTE_BOOL && a->integer == 0)) return std::nullopt;
      return Refusal{0, BP_REFUSED_ATTRIBUTE, std::string(node.op()) + " with " + name};
    };
  };
  std::vector<KernelRow> rows{
      {"aten.neg", unary([](float a) { return -a; })},
      {"aten.abs", unary([](float a) { return std::abs(a); })},
      {"aten.exp", unary([](float a) { return std::exp(a); })},
      {"aten.log", unary([](float a) { return std::log(a); })},
      {"aten.sqrt", unary([](float a) { return std::sqrt(a); })},
      {"aten.rsqrt", unary([](float a) { return 1 / std::sqrt(a); })},
      {"aten.reciprocal", unary([](float a) { return 1 / a; })},
      {"aten.tanh", unary([](float a) { return std::tanh(a); })},
      {"aten.sigmoid", unary([](float a) { return 1 / (1 + std::exp(-a)); })},
      {"aten.silu", unary([](float a) { return a / (1 + std::exp(-a)); })},
      {"aten.relu", unary([](float a) { return a < 0 ? 0 : a; })},
      {"aten.gelu",
       elementwise<1>([](const NodeView& n) { return by_tanh(n) ? gelu_by_tanh : gelu; })},
      {"aten.mul.Tensor", binary([](float a, float b) { return a * b; })},
      {"aten.div.Tensor", binary([](float a, float b) { return a / b; })},
      {"aten.add.Tensor", sum_of_two(1)},
      {"aten.sub.Tensor", sum_of_two(-1)},
      {"aten.mul.Scalar", with_number("other", [](float a, float b) { return a * b; })},
      {"aten.div.Scalar", with_number("other", [](float a, float b) { return a / b; })},
      {"aten.tanh_backward", binary([](float g, float y) { return g * (1 - y * y); })},
      {"aten.sigmoid_backward", binary([](float g, float y) { return g * (1 - y) * y; })},
      {"aten.threshold_backward", elementwise<2>([](const NodeView& node) {
         const auto threshold = static_cast<float>(node.real_or("threshold", 0));
         return [threshold](float g, float x) { return x <= threshold ? 0 : g; };
       })},
      {"aten.gelu_backward", elementwise<2>([](const NodeView& node) {
         const auto slope = by_tanh(node) ? gelu_by_tanh_slope : gelu_slope;
         return [slope](float g, float x) { return g * slope(x); };
       })},
      {"aten.mm", product},
      {"aten.bmm", product},
      {"aten.linear", linear},
      {"aten.addmm", addmm},
      {"aten._softmax", softmax},
      {"aten._log_softmax", softmax},
      {"aten._safe_softmax", softmax},
      {"aten._softmax_backward_data", softmax_backward},
      {"aten._log_softmax_backward_data", softmax_backward},
      {"aten.native_layer_norm", layer_norm},
      {"aten.native_layer_norm_backward", layer_norm_backward},
      {"aten.sum", reduce},
      {"aten.mean", reduce},
      {"aten.sum.dim_IntList", reduce},
      {"aten.mean.dim", reduce},
      {"aten.embedding", embedding, {kFloat32}, true},
      {"aten.embedding_dense_backward", embedding_backward, {kFloat32}, true},
      {"aten.cat", cat},
      {"aten.select_backward", select_backward},
      {"aten.clone", unary([](float a) { return a; })},
  };
  for (KernelRow& row : attention_rows()) rows.push_back(std::move(row));
  for (KernelRow& row : rows) {
    if (row.op == "aten.embedding_dense_backward") row.refuse = without("scale_grad_by_freq");
    if (row.op == "aten.add.Tensor" || row.op == "aten.sub.Tensor")
      row.refuse = [](const NodeView& node) -> std::optional<Refusal> {
        const bp_attribute* alpha = node.attribute("alpha");
        if (alpha == nullptr || alpha->kind != BP_ATTRIBUTE_STRING) return std::nullopt;
        return Refusal{0, BP_REFUSED_DTYPE, "a complex number"};
      };
  }
  return rows;
}

}  // namespace backplane::sdk::host_kernels
