// Measures memory as PyTorch's allocators and our calls take it and give it back.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace backplane::bridge {

struct MemoryChange {
  std::int64_t at_ns = 0;  // since the measurement began
  std::int64_t bytes = 0;  // negative: given back
  const char* use = "";    // "tensor", "values" or "scratch" of a compiled call
};

// The changes while each of the functions runs, in order, in this thread and in those that autograd
// runs for it. Memory that was there before the first one counts nowhere, also when it goes.
std::vector<std::vector<MemoryChange>> measure_memory(
    const std::vector<std::function<void()>>& functions);

// From now on what calls take for themselves is seen by measurements, and by PyTorch's own memory
// profiler.
void report_calls();

}  // namespace backplane::bridge
