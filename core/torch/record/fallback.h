// The recorder itself: the boxed kernel behind every operator on kRecordKey.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace backplane::record {

// Finds the shapes of the results, appends the call to the thread's session and leaves value
// tensors on the stack. Throws Refusal for what a graph cannot say.
void record_call(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack);

}  // namespace backplane::record
