// at::ScalarType and ir::DType.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "core/ir/types.h"

namespace backplane::bridge {

// Nothing for quantized, bit and 8-bit float types, which the IR does not carry.
std::optional<ir::DType> find_dtype(c10::ScalarType type);
c10::ScalarType to_scalar_type(ir::DType dtype);

}  // namespace backplane::bridge
