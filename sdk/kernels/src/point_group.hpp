// Groups of pointwise operators and of operators over rows, as one kernel.
#pragma once

#include <backplane/sdk/points.hpp>

#include "builder.hpp"

namespace backplane::kernels {

// Whether kernelgen's tables have all of the operator.
bool is_point_op(const sdk::NodeView& node);
sdk::PointSpace space_of(const sdk::NodeView& node);
// Whether it joins tensors of one type and shape, so that a group which computes some of them may
// store them in their places.
bool joins_points(const sdk::NodeView& node);
std::optional<sdk::Refusal> refuse_point_op(const sdk::NodeView& node);
// Whether operand i is a list with an element a channel.
bool is_channel_operand(const sdk::NodeView& node, std::size_t i);

// Adds the kernel of the step's nodes; results that no table gives are left to the caller.
Status add_points(Builder& builder);
Result<std::unique_ptr<sdk::Kernel>> make_point_group(Builder& builder);
// One node alone; its operands and results are the step's as the node lists them.
Result<std::unique_ptr<sdk::Kernel>> make_copy(Builder& builder);

// Expressions of pointwise nodes after a product: `value` of the product's node is `external`.
// `axes` are indices of the result's dims; the last may run over all dims that have none of their
// own.
Status emit_epilogue(Builder& builder, Draft& draft, std::span<const std::uint32_t> nodes,
                     std::uint32_t product_value, Expr external, const Indices& axes);

}  // namespace backplane::kernels
