// Shapes in C++ for common operators whose only shape function in PyTorch is Python.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string_view>

#include "core/torch/record/operator_info.h"

namespace backplane::record {

// Null where the table has no rule. `name` as the IR writes it.
ShapeRule find_shape_rule(std::string_view name);

// Shape and strides as PyTorch's own loop over elements would give its result.
at::Tensor elementwise(std::span<const at::Tensor> operands, at::ScalarType type);

}  // namespace backplane::record
