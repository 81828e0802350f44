// Negative log likelihood, forward and backward: input [N, C, inner...] or [C], a class per sample.
#include <algorithm>

#include "kernels/kernel_registry.h"
#include "kernels/movement/dense_memory.h"
#include "kernels/rows/float_rows.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

using sdk::KernelCall;
using sdk::StepContext;

enum Reduction : std::int64_t { kEach = 0, kMean = 1, kSum = 2 };

class Likelihood : public sdk::Kernel {
 public:
  std::uint64_t scratch_bytes() const override { return plan_.bytes(); }

 protected:
  // `first`: the operand that is the input; target and weight follow it.
  Likelihood(const StepContext& context, std::size_t first)
      : target_(context, first + 1, plan_),
        weight_(DenseOperand::optional(context, first + 2, plan_)),
        reduction_(context.int_or("reduction", kMean)),
        ignored_(context.int_or("ignore_index", -100)) {
    const Shape& in = context.operand(first).dims;
    classes_ = in.size() == 1 ? in[0] : in[1];
    inner_ = in.size() < 3 ? 1 : product({in.data() + 2, in.size() - 2});
    samples_ = context.operand(first + 1).elements();
    if (weight_.present()) weights_ = plan_.take_floats(classes_);
  }

  const float* weights(const KernelCall& call) const {
    if (!weight_.present()) return nullptr;
    return RowReader(weight_.type())(weight_.get(call), 0, classes_,
                                     reinterpret_cast<float*>(call.scratch + weights_));
  }
  static constexpr std::int64_t kIgnored = -1, kBad = -2;
  struct Sample {
    std::int64_t at;  // in the input; kIgnored, kBad
    float weight;
  };
  Sample sample(const std::int64_t* target, const float* weights, std::int64_t i) const {
    const std::int64_t t = target[i];
    if (t == ignored_) return {kIgnored, 0};
    if (t < 0 || t >= classes_) return {kBad, 0};
    return {(i / inner_ * classes_ + t) * inner_ + i % inner_, weights ? weights[t] : 1.0F};
  }
  static sdk::Status out_of_range() {
    return sdk::Status(BP_INVALID_ARGUMENT, "a target of nll_loss is not a class");
  }

  ScratchPlan plan_;
  DenseOperand target_, weight_;
  std::int64_t reduction_, ignored_, classes_ = 0, inner_ = 1, samples_ = 0;
  std::uint64_t weights_ = 0;
};

class NllForward : public Likelihood {
 public:
  explicit NllForward(const StepContext& context)
      : Likelihood(context, 0), input_(context, 0, plan_), out_(context, 0, plan_) {
    if (context.step().results.size() > 1 && context.step().results[1] != BP_NONE)
      total_ = DenseResult(context, 1, plan_);
    has_total_ = reduction_ != kEach || context.operand(0).rank() == 1;
    parts_ = team_size(samples_, samples_ * 8);
    sums_ = plan_.take(parts_ * static_cast<std::int64_t>(sizeof(Sums)));
  }

  sdk::Status run(const KernelCall& call) const override {
    const auto* target = reinterpret_cast<const std::int64_t*>(target_.get(call));
    const float* weight = weights(call);
    const std::byte* input = input_.get(call);
    std::byte* out = out_.get(call);
    const LoadFunction load = load_function(input_.type(), Domain::kF32);
    auto* sums = reinterpret_cast<Sums*>(call.scratch + sums_);
    parallel_ranges(parts_, samples_ * 8, [&](int, std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        Sums s;
        for (std::int64_t i = samples_ * part / parts_; i < samples_ * (part + 1) / parts_; ++i) {
          const Sample one = sample(target, weight, i);
          float value = 0;
          if (one.at == kBad) s.ok = false;
          if (one.at >= 0) {
            load(&value, input + one.at * bytes_of(input_.type()), 1, 1);
            value *= -one.weight;
          }
          if (reduction_ == kEach) RowWriter(out_.type()).put(out, i, 1, &value);
          s.loss += value;
          s.weight += one.weight;
        }
        sums[part] = s;
      }
    });
    Sums all;
    for (std::int64_t part = 0; part < parts_; ++part) {
      all.loss += sums[part].loss;
      all.weight += sums[part].weight;
      all.ok = all.ok && sums[part].ok;
    }
    if (!all.ok) return out_of_range();
    const auto loss = static_cast<float>(reduction_ == kMean ? all.loss / all.weight : all.loss);
    const float total = has_total_ ? static_cast<float>(all.weight) : 0;
    if (reduction_ != kEach) RowWriter(out_.type()).put(out, 0, 1, &loss);
    if (total_.present()) RowWriter(total_.type()).put(total_.get(call), 0, 1, &total);
    out_.finish(call);
    return {};
  }

 private:
  struct Sums {
    double loss = 0, weight = 0;
    bool ok = true;
  };
  DenseOperand input_;
  DenseResult out_, total_;
  bool has_total_;  // without a reduction PyTorch has that of one sample alone
  std::int64_t parts_ = 1;
  std::uint64_t sums_ = 0;
};

// grad, input, target, weight?, total weight
class NllBackward : public Likelihood {
 public:
  explicit NllBackward(const StepContext& context)
      : Likelihood(context, 1),
        grad_(context, 0, plan_),
        total_(context, 4, plan_),
        out_(context, 0, plan_) {
    images_ = samples_ / std::max<std::int64_t>(inner_, 1);
    parts_ = team_size(images_, samples_ * classes_);
    failed_ = plan_.take(parts_);
  }

  sdk::Status run(const KernelCall& call) const override {
    const auto* target = reinterpret_cast<const std::int64_t*>(target_.get(call));
    const float* weight = weights(call);
    const std::byte* grad = grad_.get(call);
    std::byte* out = out_.get(call);
    const LoadFunction load = load_function(grad_.type(), Domain::kF32);
    float scale = 1;
    if (reduction_ != kEach) load(&scale, grad, 1, 1);
    if (reduction_ == kMean) {
      float total = 0;
      load_function(total_.type(), Domain::kF32)(&total, total_.get(call), 1, 1);
      scale /= total;
    }
    const std::int64_t size = bytes_of(out_.type()), image = classes_ * inner_;
    parallel_ranges(parts_, samples_ * classes_, [&](int, std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        const std::int64_t first = images_ * part / parts_, last = images_ * (part + 1) / parts_;
        bool ok = true;
        for (std::int64_t m = first; m < last; ++m) {
          std::fill(out + m * image * size, out + (m + 1) * image * size, std::byte{0});
          for (std::int64_t i = m * inner_; i < (m + 1) * inner_; ++i) {
            const Sample one = sample(target, weight, i);
            if (one.at == kBad) ok = false;
            if (one.at < 0) continue;
            float value = scale;
            if (reduction_ == kEach) load(&value, grad + i * bytes_of(grad_.type()), 1, 1);
            value *= -one.weight;
            RowWriter(out_.type()).put(out, one.at, 1, &value);
          }
        }
        call.scratch[failed_ + static_cast<std::uint64_t>(part)] = std::byte{!ok};
      }
    });
    for (std::int64_t part = 0; part < parts_; ++part)
      if (call.scratch[failed_ + static_cast<std::uint64_t>(part)] != std::byte{0})
        return out_of_range();
    out_.finish(call);
    return {};
  }

 private:
  DenseOperand grad_, total_;
  DenseResult out_;
  std::int64_t images_ = 0, parts_ = 1;
  std::uint64_t failed_ = 0;
};

MadeKernel nll_forward(const StepContext& context) {
  return std::unique_ptr<sdk::Kernel>(std::make_unique<NllForward>(context));
}
MadeKernel nll_backward(const StepContext& context) {
  return std::unique_ptr<sdk::Kernel>(std::make_unique<NllBackward>(context));
}

std::optional<sdk::Refusal> refuse_nll(const sdk::NodeView& node) {
  for (std::size_t i = 0; i < node.operand_count(); ++i) {
    const bool is_target = i == (node.operand_count() == 5 ? 2U : 1U);
    if (!node.has_operand(i)) continue;
    if (is_target ? type_of(node.operand(i).dtype()) != Type::kI64
                  : !is_f32_or_bf16(node.operand(i).dtype()))
      return refusal(BP_REFUSED_DTYPE, "nll_loss of float32 and bfloat16, with int64 targets");
  }
  return std::nullopt;
}

constexpr KernelRow kRows[] = {
    {"aten.nll_loss_forward", nll_forward, refuse_nll},
    {"aten.nll_loss2d_forward", nll_forward, refuse_nll},
    {"aten.nll_loss_backward", nll_backward, refuse_nll},
    {"aten.nll_loss2d_backward", nll_backward, refuse_nll},
};

}  // namespace

KernelRows nll_loss_kernels() { return kRows; }

}  // namespace backplane::onednn
