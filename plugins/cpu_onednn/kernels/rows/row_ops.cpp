// Operators over whole rows: softmaxes, norms, sums.
#include <algorithm>
#include <limits>

#include "kernels/rows/emitter.h"

namespace backplane::onednn {
namespace {

using Results = std::vector<Register>;

// Softmaxes of bfloat16 compute in float32, of float64 in float64; half_to_float needs nothing
// more.
Results softmax(Emitter& e) { return {e.program().softmax(e.operand(0, e.domain()))}; }
// Rows of minus infinity give zeros.
Results safe_softmax(Emitter& e) {
  const Domain d = e.domain();
  const Register x = e.operand(0, d), top = e.apply(Opcode::kRowMax, x);
  const Register masked =
      e.apply(Opcode::kEq, top, e.number(-std::numeric_limits<double>::infinity(), d));
  const auto [powers, sum] =
      e.program().exp_sum(x, e.apply(Opcode::kWhere, masked, e.number(0, d), top));
  const Register scale =
      e.apply(Opcode::kWhere, masked, e.number(0, d), e.apply(Opcode::kReciprocal, sum));
  return {e.apply(Opcode::kMul, powers, scale)};
}
Results log_softmax(Emitter& e) {
  const Register x = e.operand(0, e.domain()), top = e.apply(Opcode::kRowMax, x);
  const Register sum = e.apply(Opcode::kRowSumExp, x, top);
  // Beside a large maximum its sum with the logarithm is the maximum.
  return {e.apply(Opcode::kSub, e.apply(Opcode::kSub, x, top), e.apply(Opcode::kLog, sum))};
}
// grad, output
Results softmax_backward(Emitter& e) {
  const Domain d = e.domain();
  const Register g = e.operand(0, d), y = e.operand(1, d);
  return {e.apply(Opcode::kMul, e.apply(Opcode::kSub, g, e.apply(Opcode::kRowDot, g, y)), y)};
}
Results log_softmax_backward(Emitter& e) {
  const Domain d = e.domain();
  const Register g = e.operand(0, d), y = e.operand(1, d);
  const Register total = e.apply(Opcode::kRowSum, g);
  return {e.apply(Opcode::kSub, g, e.apply(Opcode::kMul, e.apply(Opcode::kExp, y), total))};
}

Register mean_of(Emitter& e, Register sum) {
  const Domain d = e.domain();
  return e.apply(Opcode::kMul, sum, e.number(1.0 / static_cast<double>(e.row_length()), d));
}
Results layer_norm(Emitter& e) {
  const Domain d = e.domain();
  const Register x = e.operand(0, d);
  const auto [mean, rstd] = e.program().moments(x, e.real("eps", 1e-5));
  if (e.has(1) && e.has(2))
    return {e.program().apply(Opcode::kAffine, x, mean, rstd, e.operand(1, d), e.operand(2, d)),
            mean, rstd};
  Register y = e.apply(Opcode::kNormalize, x, mean, rstd);
  if (e.has(1)) y = e.apply(Opcode::kMul, y, e.operand(1, d));
  if (e.has(2)) y = e.apply(Opcode::kAdd, y, e.operand(2, d));
  return {y, mean, rstd};
}
Results rms_norm(Emitter& e) {  // results: output, rstd
  const Domain d = e.domain();
  const Register x = e.operand(0, d);
  const double fallback = e.out() == Type::kF64 ? std::numeric_limits<double>::epsilon()
                                                : double{std::numeric_limits<float>::epsilon()};
  const Register square = mean_of(e, e.apply(Opcode::kRowDot, x, x));
  const Register rstd =
      e.apply(Opcode::kRsqrt, e.apply(Opcode::kAdd, square, e.number(e.real("eps", fallback), d)));
  Register y = e.apply(Opcode::kMul, x, rstd);
  if (e.has(1)) y = e.apply(Opcode::kMul, y, e.operand(1, d));
  return {y, rstd};
}

// Of elements of the result's type.
template <Opcode kOp>
Results fold(Emitter& e) {
  return {e.apply(kOp, e.converted(0))};
}
// Of the elements: PyTorch rounds the mean alone to a half.
Results mean(Emitter& e) {
  return {mean_of(e, e.apply(Opcode::kRowSum, e.operand(0, e.domain())))};
}

using K = ProgramOp;
constexpr ProgramOp kOps[] = {
    {"aten._softmax", softmax, K::kRow},
    {"aten._safe_softmax", safe_softmax, K::kRow},
    {"aten._log_softmax", log_softmax, K::kRow},
    {"aten._softmax_backward_data", softmax_backward, K::kRow},
    {"aten._log_softmax_backward_data", log_softmax_backward, K::kRow},
    {"aten.native_layer_norm", layer_norm, K::kRow},
    {"aten._fused_rms_norm", rms_norm, K::kRow},
    {"aten.sum.dim_IntList", fold<Opcode::kRowSum>, K::kRow},
    {"aten.mean.dim", mean, K::kRow},
    {"aten.amax", fold<Opcode::kRowMax>, K::kRow},
    {"aten.amin", fold<Opcode::kRowMin>, K::kRow},
};

}  // namespace

std::span<const ProgramOp> row_program_ops() { return kOps; }

std::vector<std::size_t> row_dims(const sdk::NodeView& node) {
  const std::string_view op = node.op();
  const std::size_t rank = node.operand(0).rank();
  std::vector<std::size_t> dims;
  const auto add = [&](std::int64_t d) {
    dims.push_back(static_cast<std::size_t>(wrap_dim(d, rank)));
  };
  if (rank == 0) return dims;
  if (op == "aten.native_layer_norm" || op == "aten._fused_rms_norm") {
    const bp_attribute* shape = node.attribute("normalized_shape");
    const std::size_t count = shape ? shape->count : 1;
    for (std::size_t d = rank - std::min(count, rank); d < rank; ++d) dims.push_back(d);
  } else if (const bp_attribute* dim = node.attribute("dim")) {
    if (dim->kind == BP_ATTRIBUTE_INTS) {
      for (std::size_t i = 0; i < dim->count; ++i) add(dim->integers[i]);
    } else {
      add(dim->integer);
    }
  }
  if (dims.empty())
    for (std::size_t d = 0; d < rank; ++d) dims.push_back(d);
  std::sort(dims.begin(), dims.end());
  return dims;
}

bool row_result_is_narrow(const sdk::NodeView& node, std::size_t result) {
  const std::string_view op = node.op();
  if (op == "aten.native_layer_norm" || op == "aten._fused_rms_norm") return result > 0;
  return op == "aten.sum.dim_IntList" || op == "aten.mean.dim" || op == "aten.amax" ||
         op == "aten.amin";
}

}  // namespace backplane::onednn
