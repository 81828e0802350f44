// Negative log likelihood of rows.
#include "kernels/registry.h"

namespace backplane::opencl {
namespace {

using kernelgen::Op;
using kernelgen::Reduction;

struct Inputs {
  TensorView scores, target;
  std::optional<TensorView> weight;
};
// The weight of a sample: 0 where its target is ignored.
Expr sample_weight(Builder& b, Draft& d, const Inputs& in, Expr target, Expr column,
                   kernelgen::Type t) {
  Expressions& e = d.e();
  const Expr one = in.weight ? e.cast(d.load(*in.weight, {column}), t) : e.constant(t, 1);
  const Expr ignored =
      e.binary(Op::kEq, target, e.integer(e.type(target), b.step().int_or("ignore_index", -100)));
  return e.select(ignored, e.constant(t, 0), one);
}
Expr column_of(Draft& d, Expr target, std::int64_t classes) {
  return d.e().cast(d.e().clamped(target, classes), d.e().index_type());
}

// self [N, C] or [C], target, weight: output, total weight
Status nll_loss_forward(Builder& b) {
  auto self = b.operand(0), target = b.operand(1);
  if (!self.ok()) return self.status();
  if (!target.ok()) return target.status();
  Inputs in{*self, *target, std::nullopt};
  if (b.step().has_operand(2)) {
    auto weight = b.operand(2);
    if (!weight.ok()) return weight.status();
    in.weight = *weight;
  }
  const bool rows = in.scores.dims.size() == 2;
  const std::int64_t reduction = b.step().int_or("reduction", 1), classes = in.scores.dims.back();
  const kernelgen::Type t = kernelgen::compute_type(in.scores.storage);
  const std::int64_t samples = rows ? in.scores.dims[0] : 1;
  const bool each = reduction == 0 && rows;
  Draft d(b, each ? Shape{samples} : Shape{}, each ? Shape{} : Shape{samples});
  Expressions& e = d.e();
  const Expr sample = each ? d.outer()[0] : d.loop()[0];
  const Expr raw = d.load(in.target, in.target.dims.empty() ? Indices{} : Indices{sample});
  const Expr column = column_of(d, raw, classes), weight = sample_weight(b, d, in, raw, column, t);
  const Expr score = d.load(in.scores, rows ? Indices{sample, column} : Indices{column});
  // An ignored sample counts nothing, whatever its score is.
  const Expr loss = e.select(e.binary(Op::kEq, weight, e.constant(t, 0)), e.constant(t, 0),
                             e.unary(Op::kNeg, e.mul(weight, score)));
  if (each) {
    d.store(b.result(0), d.outer(), loss);
    BP_SDK_RETURN_IF_ERROR(d.finish());
    if (!b.wants(1)) return {};
    Draft zero(b, {});
    zero.store(b.result(1), {}, zero.e().constant(t, 0));
    return zero.finish();
  }
  const Expr total = e.reduce(Reduction::kSum, weight), sum = e.reduce(Reduction::kSum, loss);
  d.store(b.result(0), {}, reduction == 1 ? e.div(sum, total) : sum);
  if (b.wants(1)) d.store(b.result(1), {}, total);
  return d.finish();
}

// grad, self, target, weight, total weight
Status nll_loss_backward(Builder& b) {
  auto grad = b.operand(0), self = b.operand(1), target = b.operand(2), total = b.operand(4);
  for (auto* view : {&grad, &self, &target, &total})
    if (!view->ok()) return view->status();
  Inputs in{*self, *target, std::nullopt};
  if (b.step().has_operand(3)) {
    auto weight = b.operand(3);
    if (!weight.ok()) return weight.status();
    in.weight = *weight;
  }
  const TensorView out = b.result();
  const bool rows = out.dims.size() == 2;
  const std::int64_t reduction = b.step().int_or("reduction", 1);
  const kernelgen::Type t = kernelgen::compute_type(out.storage);
  Draft d(b, out.dims);
  Expressions& e = d.e();
  const Indices sample = rows ? Indices{d.outer()[0]} : Indices{};
  const Expr raw = d.load(in.target, in.target.dims.empty() ? Indices{} : sample);
  const Expr column = column_of(d, raw, out.dims.back()),
             weight = sample_weight(b, d, in, raw, column, t);
  Expr g = d.load(*grad, grad->dims.empty() ? Indices{} : sample);
  if (reduction == 1) g = e.div(g, d.load(*total, {}));
  const Expr here = e.both(e.binary(Op::kEq, d.outer().back(), column),
                           e.binary(Op::kNe, weight, e.constant(t, 0)));
  d.store(out, d.outer(), e.select(here, e.unary(Op::kNeg, e.mul(g, weight)), e.constant(t, 0)));
  return d.finish();
}

std::optional<sdk::Refusal> refuse_loss(const sdk::NodeView& node) {
  const std::size_t scores = node.op() == "aten.nll_loss_backward" ? 1 : 0;
  if (!kernelgen::is_float(*storage_of(node.operand(scores).dtype())) ||
      !(node.operand(scores + 1).dtype() == sdk::kInt64))
    return refusal(BP_REFUSED_DTYPE, "floats and int64 targets only");
  if (node.operand(scores).rank() < 1 || node.operand(scores).rank() > 2 ||
      node.operand(scores).hint_elements() == 0)
    return refusal(BP_REFUSED_SHAPE, "scores of one or two dims");
  return std::nullopt;
}

constexpr KernelRow kRows[] = {
    {"aten.nll_loss_forward", nll_loss_forward, refuse_loss},
    {"aten.nll_loss_backward", nll_loss_backward, refuse_loss},
};

}  // namespace

std::span<const KernelRow> loss_kernels() { return kRows; }

}  // namespace backplane::opencl
