// What eager mode refuses is refused here: the CPU's own kernel is asked, with numbers that mean
// nothing. Shape functions, which recordings go by, look at sizes alone.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <span>
#include <string>

namespace backplane::device {

// What the CPU's kernel says against such a call, empty where it takes it. Large sizes are made
// small, each equal one alike.
std::string find_refusal(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments);

// The same of a call whose tensors lie over one another, which the kernel may mind: they lie so on
// the CPU as well. Throws what the kernel does where that is about memory; the text is anything else.
std::string find_refusal_as_it_lies(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

}  // namespace backplane::device
