// What eager mode refuses is refused on the device (record/kernel_trial.h).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <span>
#include <string>

namespace backplane::device {

// What the CPU's kernel says against such a call, empty where it takes it.
std::string find_refusal(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments);

// Of a call that writes a tensor which lies over itself or over another, which the kernel may mind:
// throws what it throws of tensors that lie so on the CPU.
void check_overlap(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

}  // namespace backplane::device
