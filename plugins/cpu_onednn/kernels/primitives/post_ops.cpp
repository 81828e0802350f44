// Pointwise nodes as post-ops of a oneDNN primitive.
#include "kernels/primitives/bounds.h"
#include "kernels/primitives/matmul.h"

namespace backplane::onednn {
namespace {

using dnnl::algorithm;

struct Unary {
  algorithm kind;
  float alpha, beta;
};

double number(const sdk::NodeView& node, std::string_view name, double fallback) {
  return node.real_or(name, fallback);
}

std::optional<Unary> unary(const sdk::NodeView& node) {
  const std::string_view op = node.op();
  const bool tanh = node.text_or("approximate", "none") == "tanh";
  if (op == "aten.gelu")
    return Unary{tanh ? algorithm::eltwise_gelu_tanh : algorithm::eltwise_gelu_erf, 0, 0};
  if (op == "aten.silu") return Unary{algorithm::eltwise_swish, 1, 0};
  if (op == "aten.tanh") return Unary{algorithm::eltwise_tanh, 0, 0};
  if (op == "aten.sigmoid") return Unary{algorithm::eltwise_logistic, 0, 0};
  if (op == "aten.leaky_relu") {
    const auto slope = static_cast<float>(number(node, "negative_slope", 0.01));
    if (slope != 0) return Unary{algorithm::eltwise_relu, slope, 0};  // 0: as relu, NaN is lost
  }
  if (op == "aten.hardswish") return Unary{algorithm::eltwise_hardswish, 1.0F / 6, 0.5F};
  return std::nullopt;
}

bool same_place(const sdk::ValueView& a, const sdk::ValueView& b) {
  return std::equal(a.dims().begin(), a.dims().end(), b.dims().begin(), b.dims().end()) &&
         std::equal(a.strides().begin(), a.strides().end(), b.strides().begin(),
                    b.strides().end()) &&
         a.dtype() == b.dtype();
}

// Groups are formed before sizes are known.
bool differs_with_sizes(const sdk::NodeView& node) {
  for (const std::string_view name :
       {"alpha", "beta", "scale", "negative_slope", "min_val", "max_val", "threshold", "lambd"})
    if (node.is_dim_class(name)) return true;
  return false;
}

// The other operand of an add or mul; BP_NONE where the node is not one of two equal tensors.
std::uint32_t other_operand(const sdk::NodeView& node, std::uint32_t chained) {
  if (!node.has_operand(0) || !node.has_operand(1)) return BP_NONE;
  const std::uint32_t a = node.operand_index(0), b = node.operand_index(1);
  if (a == b || (a != chained && b != chained)) return BP_NONE;
  return a == chained ? b : a;
}

}  // namespace

bool is_post_op(const sdk::NodeView& node, std::uint32_t chained) {
  if (node.result_count() != 1 || differs_with_sizes(node)) return false;
  const auto type = type_of(node.result().dtype());
  if (type != Type::kF32 && type != Type::kBF16) return false;
  if (unary(node) || bounds_of(node))
    return node.has_operand(0) && node.operand_index(0) == chained &&
           same_place(node.operand(0), node.result());
  const bool add = node.op() == "aten.add.Tensor", mul = node.op() == "aten.mul.Tensor";
  if (!add && !mul) return false;
  if (add && number(node, "alpha", 1) != 1) return false;
  const std::uint32_t other = other_operand(node, chained);
  return other != BP_NONE && same_place(node.operand(0), node.result()) &&
         same_place(node.operand(1), node.result());
}

void append_post_ops(const sdk::StepContext& context, std::size_t first_node, std::uint32_t chained,
                     const dnnl::memory::desc& out, dnnl::post_ops& ops,
                     std::vector<PostOpOperand>& operands) {
  for (std::size_t n = first_node; n < context.step().nodes.size(); ++n) {
    const sdk::NodeView node = context.node(n);
    if (bounds_of(node)) break;  // the last: see ResultBounds
    if (const auto found = unary(node)) {
      ops.append_eltwise(found->kind, found->alpha, found->beta);
    } else {
      // The same dims and strides as the result, so the same descriptor.
      const auto kind =
          node.op() == "aten.mul.Tensor" ? algorithm::binary_mul : algorithm::binary_add;
      operands.push_back({other_operand(node, chained), out, ops.len()});
      ops.append_binary(kind, out);
    }
    chained = node.result_index();
  }
}

}  // namespace backplane::onednn
