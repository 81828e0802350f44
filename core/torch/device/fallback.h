// Operators that no plugin runs: on the CPU, counted, with their tensors copied there and back.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string_view>

namespace backplane::device {

// The backend fallback of the device: operators without any kernel of ours.
void run_unknown_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack, std::string_view reason);

// As PyTorch's own devices: a c10::Error unless all tensors are on one device. Numbers, that is CPU
// tensors without dimensions, may be anywhere, and so may indices.
void check_devices(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

}  // namespace backplane::device
