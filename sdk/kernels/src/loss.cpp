// Negative log likelihood of rows.
#include "registry.hpp"

namespace backplane::kernels {
namespace {

using kernelgen::Op;
using kernelgen::Reduction;

struct Inputs {
  TensorView scores, target;
  std::optional<TensorView> weight;
};
// Whether a sample counts, whatever its class weighs.
Expr counts(Builder& b, Draft& d, Expr target) {
  Expressions& e = d.e();
  return e.binary(Op::kNe, target,
                  e.integer(e.type(target), b.step().int_or("ignore_index", -100)));
}
// The weight of a sample that counts.
Expr class_weight(Draft& d, const Inputs& in, Expr column, kernelgen::Type t) {
  return in.weight ? d.e().cast(d.load(*in.weight, {column}), t) : d.e().constant(t, 1);
}
Expr column_of(Draft& d, Expr target, Expr counted, std::int64_t classes) {
  Expressions& e = d.e();
  d.fault_where(e.both(counted, e.unary(Op::kNot, e.inside(target, classes))));
  return e.cast(e.clamped(target, classes), e.index_type());
}

// Scores are [C], or [N, C, …]: samples are all dims but the classes'.
Shape sample_dims(const Shape& scores) {
  if (scores.size() < 2) return {};
  Shape dims = scores;
  dims.erase(dims.begin() + 1);
  return dims;
}
Indices with_column(Indices sample, Expr column) {
  sample.insert(sample.begin() + (sample.empty() ? 0 : 1), column);
  return sample;
}

Result<Inputs> read_inputs(Builder& b, std::size_t scores) {
  auto self = b.operand(scores), target = b.operand(scores + 1);
  if (!self.ok()) return self.status();
  if (!target.ok()) return target.status();
  Inputs in{*self, *target, std::nullopt};
  if (b.step().has_operand(scores + 2)) {
    auto weight = b.operand(scores + 2);
    if (!weight.ok()) return weight.status();
    in.weight = *weight;
  }
  return in;
}

// self, target, weight: output, total weight
Status nll_loss_forward(Builder& b) {
  auto read = read_inputs(b, 0);
  if (!read.ok()) return read.status();
  const Inputs& in = *read;
  const Shape samples = sample_dims(in.scores.dims);
  const std::int64_t reduction = b.step().int_or("reduction", 1);
  const std::int64_t classes = in.scores.dims[samples.empty() ? 0 : 1];
  const kernelgen::Type t = kernelgen::compute_type(in.scores.storage);
  const bool each = reduction == 0 && !samples.empty();
  const Shape walked = samples.empty() ? Shape{1} : samples;
  Draft d(b, each ? samples : Shape{}, each ? Shape{} : walked);
  Expressions& e = d.e();
  const Indices sample = samples.empty() ? Indices{} : each ? d.outer() : d.loop();
  const Expr raw = d.load(in.target, in.target.dims.empty() ? Indices{}
                                     : samples.empty()      ? d.loop()
                                                            : sample);
  const Expr counted = counts(b, d, raw), column = column_of(d, raw, counted, classes);
  const Expr own = class_weight(d, in, column, t), nothing = e.constant(t, 0);
  const Expr weight = e.select(counted, own, nothing);
  const Expr score = d.load(in.scores, with_column(sample, column));
  // An ignored sample counts nothing, whatever its score is.
  const Expr loss = e.select(counted, e.unary(Op::kNeg, e.mul(own, score)), nothing);
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
  auto read = read_inputs(b, 1);
  if (!read.ok()) return read.status();
  const Inputs& in = *read;
  auto grad = b.operand(0), total = b.operand(4);
  for (auto* view : {&grad, &total})
    if (!view->ok()) return view->status();
  const TensorView out = b.result();
  const bool rows = out.dims.size() > 1;
  const std::int64_t reduction = b.step().int_or("reduction", 1);
  const kernelgen::Type t = kernelgen::compute_type(out.storage);
  Draft d(b, out.dims);
  Expressions& e = d.e();
  Indices sample = d.outer();
  sample.erase(sample.begin() + (rows ? 1 : 0));
  const Expr own = d.outer()[rows ? 1 : 0];
  const Indices of_target = rows ? sample : Indices(in.target.dims.size(), d.index(0));
  const Expr raw = d.load(in.target, of_target);
  const Expr counted = counts(b, d, raw),
             column = column_of(d, raw, counted, out.dims[rows ? 1 : 0]);
  const Expr weight = class_weight(d, in, column, t);
  Expr g = d.load(*grad, grad->dims.empty() ? Indices{} : sample);
  if (reduction == 1) g = e.div(g, d.load(*total, {}));
  const Expr here = e.both(e.binary(Op::kEq, own, column), counted);
  d.store(out, d.outer(), e.select(here, e.unary(Op::kNeg, e.mul(g, weight)), e.constant(t, 0)));
  return d.finish();
}

std::optional<sdk::Refusal> refuse_loss(const sdk::NodeView& node) {
  const std::size_t scores = node.op().ends_with("backward") ? 1 : 0;
  if (!kernelgen::is_float(*storage_of(node.operand(scores).dtype())) ||
      !(node.operand(scores + 1).dtype() == sdk::kInt64))
    return refusal(BP_REFUSED_DTYPE, "floats and int64 targets only");
  if (node.operand(scores).rank() < 1 || node.operand(scores).hint_elements() == 0)
    return refusal(BP_REFUSED_SHAPE, "no scores");
  return std::nullopt;
}

constexpr KernelRow kRows[] = {
    {"aten.nll_loss_forward", nll_loss_forward, refuse_loss},
    {"aten.nll_loss_backward", nll_loss_backward, refuse_loss},
    {"aten.nll_loss2d_forward", nll_loss_forward, refuse_loss},
    {"aten.nll_loss2d_backward", nll_loss_backward, refuse_loss},
};

}  // namespace

std::span<const KernelRow> loss_kernels() { return kRows; }

}  // namespace backplane::kernels
