#include "core/torch/device/counters.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "core/base/fork.h"
#include "core/base/log.h"

namespace backplane::device {

namespace {

struct State {
  std::atomic<std::uint64_t> plugin_ops{0};
  std::mutex& mutex = fork_mutex();  // guards fallbacks
  std::map<std::string, FallbackCount, std::less<>> fallbacks;
};
State& state() {
  static State& state = *new State;
  return state;
}

}  // namespace

void count_plugin_op() noexcept { state().plugin_ops.fetch_add(1, std::memory_order_relaxed); }

void count_fallback(std::string_view op, std::string_view reason) {
  if (log_enabled("fallback"))
    log_topic("fallback", std::string(op) + " runs on the CPU: " + std::string(reason));
  State& all = state();
  const std::lock_guard lock(all.mutex);
  auto found = all.fallbacks.find(op);
  if (found == all.fallbacks.end())
    found = all.fallbacks.emplace(std::string(op), FallbackCount{std::string(op), {}, 0}).first;
  found->second.reason = reason;
  ++found->second.count;
}

std::uint64_t plugin_op_count() noexcept {
  return state().plugin_ops.load(std::memory_order_relaxed);
}

std::vector<FallbackCount> fallback_counts() {
  std::vector<FallbackCount> out;
  {
    const std::lock_guard lock(state().mutex);
    for (const auto& [op, one] : state().fallbacks) out.push_back(one);
  }
  std::ranges::stable_sort(
      out, [](const FallbackCount& a, const FallbackCount& b) { return a.count > b.count; });
  return out;
}

void reset_op_counts() {
  state().plugin_ops.store(0, std::memory_order_relaxed);
  const std::lock_guard lock(state().mutex);
  state().fallbacks.clear();
}

}  // namespace backplane::device
