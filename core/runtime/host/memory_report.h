// Tells whoever measures of the memory that calls take for themselves, beside their caller's.
#pragma once

#include <cstdint>

namespace backplane::runtime {

enum class MemoryUse : std::uint8_t {
  kValues,  // intermediates, and arenas of whole calls
  kScratch  // what a kernel needs while it runs
};

// Bytes taken, or given back where negative. Called in the thread of the call.
using MemoryReport = void (*)(void* memory, std::int64_t bytes, MemoryUse use);

// Set once, before the first call; null tells nobody.
void set_memory_report(MemoryReport report);
void report_memory(void* memory, std::int64_t bytes, MemoryUse use);

}  // namespace backplane::runtime
