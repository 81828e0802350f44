#pragma once

#include <cstddef>

namespace backplane {

// Bytes that the calling thread's stack still has. Cheap but for a thread's first call; where the
// system does not tell the stack's bounds, the largest number.
std::size_t c_stack_left();

}  // namespace backplane
