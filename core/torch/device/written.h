// How results reach the tensors that an operator writes: their addresses stay.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace backplane::device {

// Whether a tensor that is written lies over itself or over another argument: then the CPU may
// refuse. Lists that are written are not looked at.
bool writes_shared(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// `result` is new memory and lost.
void put(const at::Tensor& target, at::Tensor result);

}  // namespace backplane::device
