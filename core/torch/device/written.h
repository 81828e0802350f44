// How results reach the tensors that an operator writes: their addresses stay.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace backplane::device {

// Whether a tensor that is written lies over itself or over another argument: then the CPU may
// refuse. Lists that are written are not looked at.
bool writes_shared(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Whether an element that is written is shown several times, as by windows: a whole result that is
// put back would write over what it changed with copies of what it did not.
bool writes_element_twice(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Runs the CPU's kernel on a picture of the tensors' memory, with all its sharing, and sends back
// what it wrote. Results that are no arguments stay on the CPU.
void run_as_it_lies(const c10::OperatorHandle& op, torch::jit::Stack& stack);

// `result` is new memory and lost. `target` shows no element twice.
void put(const at::Tensor& target, at::Tensor result);

}  // namespace backplane::device
