// Matrix products through oneDNN, with bias, activation and residual in the store of the result.
#pragma once

#include "kernels/primitives/dnnl_support.h"

namespace backplane::onednn {

// Which operands of a product's node are what.
struct MatmulRoles {
  std::size_t left = 0, right = 1;
  std::size_t added = SIZE_MAX;  // bias, or the matrix that addmm adds
  bool right_transposed = false;
};

bool is_matmul_op(std::string_view op);

// Whether the node, of one result that only it reads, can run in the store of a product whose
// result has `out`'s dims. `chained` is the value it continues.
bool is_post_op(const sdk::NodeView& node, std::uint32_t chained);

// The step's nodes are the product and then its post-ops in order. `packed` is the value of the
// weight where the step binds the packed weight itself and not the node's own operand.
sdk::Result<std::unique_ptr<sdk::Kernel>> make_matmul_kernel(const sdk::StepContext& context,
                                                             std::uint32_t packed);

sdk::Result<std::unique_ptr<sdk::Kernel>> make_plain_matmul_kernel(const sdk::StepContext& context,
                                                                   const MatmulRoles& roles);

// The layout a weight should have, from a product's sizes at the hints; id 0: as it is.
std::uint64_t choose_matmul_layout(const sdk::NodeView& node, const sdk::ValueView& weight,
                                   bool transposed);

// Post-ops of `nodes` (from the second on) for a result of `chained`; the operands they bind are
// appended to `values` with their descriptors.
struct PostOpOperand {
  std::uint32_t value;
  dnnl::memory::desc desc;
  int index;
};
void append_post_ops(const sdk::StepContext& context, std::size_t first_node, std::uint32_t chained,
                     const dnnl::memory::desc& out, dnnl::post_ops& ops,
                     std::vector<PostOpOperand>& operands);

}  // namespace backplane::onednn
