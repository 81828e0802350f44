// The shapes of an operator's results, by its own C++ code wherever there is some.
#pragma once

#include <ATen/core/stack.h>

#include "core/torch/record/operator_info.h"

namespace backplane::record {

enum class ShapeSource : std::uint8_t { kCompiled, kPython, kRunOnZeros };

// The stack holds the arguments with meta tensors; afterwards the results. PyTorch's own exceptions
// pass.
ShapeSource run_shape(const OperatorInfo& info, torch::jit::Stack& stack);

// Whether the calling thread is inside of run_shape, with C++ kernels that call further operators.
bool is_in_shape();
// One of those calls.
void shape_call(const OperatorInfo& info, torch::jit::Stack& stack);

}  // namespace backplane::record
