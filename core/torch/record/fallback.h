// The recorder itself: the boxed kernel behind every operator on kRecordKey.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>

#include "core/base/status.h"

namespace backplane::record {

// kProgramError, but for an operator without a kernel that gives shapes.
Code code_of(const c10::Error& error);

// Finds the shapes of the results, appends the call to the thread's session and leaves value
// tensors on the stack. Throws Refusal for what a graph cannot say.
void record_call(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack);

}  // namespace backplane::record
