// What PyTorch's kernels refuse and its shape functions, which recordings go by, let through.
#pragma once

#include <ATen/core/ivalue.h>

#include <span>
#include <string_view>

namespace backplane::record {

// Throws what the kernel throws. The arguments of one call, in schema order.
using ArgumentCheck = void (*)(std::span<const c10::IValue> arguments);

ArgumentCheck find_argument_check(std::string_view name);  // "aten.gelu"; null: none

}  // namespace backplane::record
