// What eager mode refuses is refused on the device (record/kernel_trial.h).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <span>
#include <string>

#include "core/torch/record/kernel_trial.h"

namespace backplane::device {

// What the CPU's kernel says against such a call, empty where it takes it.
std::string find_refusal(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments);

// How the CPU's kernel leaves the outputs of such a call with out=, whose results have such sizes.
// None where it refuses.
std::optional<record::Resizing> find_resizing(const c10::OperatorHandle& op,
                                              std::span<const c10::IValue> arguments,
                                              std::span<const at::IntArrayRef> sizes);

// Of a call that writes a tensor which lies over itself or over another, which the kernel may mind:
// throws what it throws of tensors that lie so on the CPU.
void check_overlap(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

}  // namespace backplane::device
