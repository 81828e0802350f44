#include "core/torch/bridge/memory_meter.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "core/runtime/host/memory_report.h"

namespace backplane::bridge {

namespace {

thread_local const char* t_use = "tensor";

class Meter final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* memory, std::int64_t bytes, std::size_t /*allocated*/,
                         std::size_t /*reserved*/, c10::Device /*device*/) override {
    const auto now = std::chrono::steady_clock::now() - start_;
    const std::lock_guard lock(mutex_);
    if (bytes > 0)
      live_.insert(memory);
    else if (live_.erase(memory) == 0)
      return;
    changes_.push_back(
        {std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(), bytes, t_use});
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::vector<MemoryChange> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(changes_, {});
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::unordered_set<void*> live_;
  std::vector<MemoryChange> changes_;
};

void report_call(void* memory, std::int64_t bytes, runtime::MemoryUse use) {
  if (!c10::memoryProfilingEnabled()) return;
  t_use = use == runtime::MemoryUse::kScratch ? "scratch" : "values";
  c10::reportMemoryUsageToProfiler(memory, bytes, 0, 0, c10::Device(c10::DeviceType::CPU));
  t_use = "tensor";
}

}  // namespace

std::vector<std::vector<MemoryChange>> measure_memory(
    const std::vector<std::function<void()>>& functions) {
  const auto meter = std::make_shared<Meter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  std::vector<std::vector<MemoryChange>> changes;
  for (const auto& function : functions) {
    function();
    changes.push_back(meter->take());
  }
  return changes;
}

void report_calls() { runtime::set_memory_report(report_call); }

}  // namespace backplane::bridge
