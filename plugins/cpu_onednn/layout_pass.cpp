#include "layout_pass.h"

#include <algorithm>
#include <string_view>

#include "kernels/primitives/convolution.h"
#include "kernels/rows/emitter.h"

namespace backplane::onednn {
namespace {

using sdk::GraphView;
using sdk::NodeView;

bool is_one_of(std::string_view op, std::initializer_list<std::string_view> ops) {
  return std::find(ops.begin(), ops.end(), op) != ops.end();
}
bool is_pointwise(std::string_view op) {
  const ProgramOp* found = find_program_op(op);
  return found && found->kind != ProgramOp::kRow;
}
// Takes and makes tensors of any strides, at no loss when channels vary fastest.
bool carries(std::string_view op) {
  return is_pointwise(op) ||
         is_one_of(
             op, {"aten.convolution", "aten._native_batch_norm_legit_no_training",
                  "aten._native_batch_norm_legit_functional", "aten.native_batch_norm_backward",
                  "aten.max_pool2d_with_indices", "aten.max_pool2d_with_indices_backward",
                  "aten.avg_pool2d", "aten.avg_pool2d_backward", "aten.cat", "aten.constant_pad_nd",
                  "aten.upsample_nearest2d", "aten.upsample_nearest2d_backward",
                  "aten.upsample_bilinear2d", "aten.upsample_bilinear2d_backward",
                  "aten.index.Tensor", "aten._unsafe_index.Tensor", "aten.convolution_backward"});
}
bool turns(std::string_view op) { return op == "aten.permute" || op == "aten.transpose.int"; }
// Kernels take any strides; other views than turned ones may be impossible with them.
bool reads(const NodeView& node) { return turns(node.op()) || !node.is_view(); }

}  // namespace

std::vector<bool> channels_last_values(const GraphView& graph) {
  std::vector<bool> fixed(graph.value_count(), false), last(graph.value_count(), false);
  for (const std::uint32_t v : graph.outputs()) fixed[v] = true;
  for (std::size_t n = graph.size(); n-- > 0;) {
    const NodeView node = graph[n];
    for (std::size_t i = 0; i < node.operand_count(); ++i) {
      if (!node.has_operand(i)) continue;
      const std::uint32_t v = node.operand_index(i);
      if (!reads(node)) fixed[v] = true;
      if (turns(node.op()) && fixed[node.result_index()]) fixed[v] = true;  // readers come later
    }
  }
  for (std::size_t n = 0; n < graph.size(); ++n) {
    const NodeView node = graph[n];
    if (!carries(node.op()) || node.result_count() == 0 || node.result_index(0) == BP_NONE)
      continue;
    const std::uint32_t result = node.result_index(0);
    const std::size_t rank = node.result().rank();
    if (fixed[result] || rank < 4 || rank > 5 || node.result().dims()[1] == 1) continue;
    bool follows = is_convolution_op(node.op());
    for (std::size_t i = 0; i < node.operand_count() && !follows; ++i)
      follows =
          node.has_operand(i) && last[node.operand_index(i)] && node.operand(i).rank() == rank;
    last[result] = follows;
  }
  return last;
}

void apply_channels_last(const GraphView& graph, const std::vector<bool>& values,
                         std::vector<sdk::TensorSpec>& specs) {
  std::vector<bool> changed(specs.size(), false);
  for (std::size_t v = 0; v < specs.size(); ++v) {
    if (!values[v]) continue;
    specs[v].strides = channels_last(specs[v].dims);
    changed[v] = true;
  }
  for (std::size_t n = 0; n < graph.size(); ++n) {
    const NodeView node = graph[n];
    if (!turns(node.op()) || !changed[node.operand_index(0)]) continue;
    const sdk::TensorSpec& in = specs[node.operand_index(0)];
    sdk::TensorSpec& out = specs[node.result_index()];
    changed[node.result_index()] = true;
    if (node.op() == "aten.permute") {
      const bp_attribute* dims = node.attribute("dims");
      for (std::size_t d = 0; d < in.rank(); ++d)
        out.strides[d] =
            in.strides[static_cast<std::size_t>(wrap_dim(dims->integers[d], in.rank()))];
    } else {
      out.strides = in.strides;
      std::swap(out.strides[static_cast<std::size_t>(wrap_dim(node.int_or("dim0", 0), in.rank()))],
                out.strides[static_cast<std::size_t>(wrap_dim(node.int_or("dim1", 1), in.rank()))]);
    }
  }
}

}  // namespace backplane::onednn
