// Nested tensors: their values lie on the device, and every operator on them runs on the CPU.
#pragma once

namespace backplane::device {

// The backend fallback of nested tensors on the device, and what must share memory. Throws where
// another package has it.
void register_nested();

}  // namespace backplane::device
