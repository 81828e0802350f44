// Shapes in C++ for common operators whose only shape function in PyTorch is Python.
#pragma once

#include <string_view>

#include "core/torch/record/operator_info.h"

namespace backplane::record {

// Null where the table has no rule. `name` as the IR writes it.
ShapeRule find_shape_rule(std::string_view name);

}  // namespace backplane::record
