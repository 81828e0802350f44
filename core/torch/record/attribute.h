// An operator's arguments that are no tensors, as attributes of the IR.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <vector>

#include "core/base/status.h"
#include "core/ir/graph.h"

namespace backplane::record {

// Of the type Scalar: a number that computes with the tensors' elements, not a size or a position.
bool is_scalar(const c10::Argument& argument);
bool is_default(const c10::Argument& argument, const c10::IValue& value);

// Appends the attribute, or nothing where the IR has nothing to say: device, layout, pinning.
Status add_attribute(const c10::Argument& argument, const c10::IValue& value,
                     std::vector<ir::Attribute>& out_attributes);

}  // namespace backplane::record
