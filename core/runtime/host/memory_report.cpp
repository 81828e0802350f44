#include "core/runtime/host/memory_report.h"

#include <atomic>

namespace backplane::runtime {

namespace {
std::atomic<MemoryReport> g_report{nullptr};
}  // namespace

void set_memory_report(MemoryReport report) { g_report.store(report, std::memory_order_release); }

void report_memory(void* memory, std::int64_t bytes, MemoryUse use) {
  if (const MemoryReport report = g_report.load(std::memory_order_acquire); report != nullptr)
    report(memory, bytes, use);
}

}  // namespace backplane::runtime
