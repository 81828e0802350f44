#include "claims.h"

#include <backplane/sdk/points.hpp>

#include <cmath>

#include "kernels/kernel_registry.h"
#include "kernels/primitives/convolution.h"
#include "kernels/primitives/matmul.h"
#include "kernels/rows/emitter.h"

namespace backplane::onednn {
namespace {

using sdk::NodeView;
using sdk::Refusal;
using Answer = std::optional<Refusal>;

constexpr std::size_t kHighestRank = 12;

bool absent(const sdk::ValueView& v) { return v.dtype().bits == 0; }  // a result nobody asked for

Answer check_values(const NodeView& node) {
  const auto check = [](const sdk::ValueView& v) -> Answer {
    if (absent(v)) return std::nullopt;
    if (!type_of(v.dtype())) return refusal(BP_REFUSED_DTYPE, "an element type without kernels");
    if (v.rank() > kHighestRank) return refusal(BP_REFUSED_SHAPE, "more than 12 dims");
    return std::nullopt;
  };
  for (std::size_t i = 0; i < node.operand_count(); ++i)
    if (node.has_operand(i))
      if (Answer no = check(node.operand(i))) return no;
  for (std::size_t i = 0; i < node.result_count(); ++i)
    if (node.result_index(i) != BP_NONE)
      if (Answer no = check(node.result(i))) return no;
  return std::nullopt;
}

Answer check_program(const NodeView& node, const ProgramOp& op) {
  if (Answer no = sdk::refuse_points(node, op.kind == ProgramOp::kFloatsOnly)) return no;
  const std::string_view name = node.op();
  const bool float_result = is_float(*type_of(node.result().dtype()));
  if (name == "aten.native_layer_norm" || name.find("softmax") != std::string_view::npos)
    if (!float_result) return refusal(BP_REFUSED_DTYPE, "floating point results only");
  if (name == "aten.nextafter" && sdk::is_half(node.result().dtype()))
    return refusal(BP_REFUSED_DTYPE, "steps of 32 and 64-bit floats only");
  if (op.kind == ProgramOp::kRow)
    for (const std::size_t d : row_dims(node))
      if (d >= std::max<std::size_t>(node.operand(0).rank(), 1))
        return refusal(BP_REFUSED_ATTRIBUTE, "a dim out of range");
  return std::nullopt;
}

Answer check_matmul(const NodeView& node) {
  if (node.op() == "aten.linear" && node.operand(1).rank() != 2)
    return refusal(BP_REFUSED_SHAPE, "linear needs a weight of two dims");
  const auto type = type_of(node.result().dtype());
  if (type == Type::kF16) return refusal(BP_REFUSED_COST, "no fast products of float16");
  for (std::size_t i = 0; i < node.operand_count(); ++i)
    if (node.has_operand(i) && type_of(node.operand(i).dtype()) != type)
      return refusal(BP_REFUSED_DTYPE, "products of operands of one type only");
  const double alpha = node.real_or("alpha", 1), beta = node.real_or("beta", 1);
  if (alpha == 0) return refusal(BP_REFUSED_ATTRIBUTE, "a product that is not read");
  // oneDNN's sums are scaled by alpha / beta before what is added, and by beta after.
  const auto fits = [](double v) { return std::isnormal(static_cast<float>(v)); };
  const bool is_of_onednn = type == Type::kF32 || type == Type::kBF16;
  if (is_of_onednn && beta != 0 && !(fits(beta) && fits(alpha / beta)))
    return refusal(BP_REFUSED_ATTRIBUTE, "alpha and beta too far apart");
  return std::nullopt;
}

Answer check(const NodeView& node) {
  const std::string_view op = node.op();
  // Attention draws only where it drops, which its own check refuses.
  const bool attention = op.starts_with("aten._scaled_dot_product");
  if ((node.raw().effects & ~(attention ? BP_EFFECT_RANDOM : 0)) != 0)
    return refusal(BP_REFUSED_OP, "an operator with effects");
  if (Answer no = check_values(node)) return no;
  if (node.is_view()) return std::nullopt;
  if (is_matmul_op(op)) return check_matmul(node);
  if (is_convolution_op(op)) return refuse_convolution(node);
  if (const ProgramOp* program = find_program_op(op)) return check_program(node, *program);
  if (const KernelRow* row = find_kernel(op)) return row->refuse ? row->refuse(node) : std::nullopt;
  return refusal(BP_REFUSED_OP, "no kernel for " + std::string(op));
}

}  // namespace

sdk::Claims claim_nodes(const sdk::GraphView& graph) { return sdk::claim_where(graph, check); }

}  // namespace backplane::onednn
