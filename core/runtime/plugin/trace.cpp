#include "core/runtime/plugin/trace.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "core/base/fork.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/runtime/host/host_services.h"
#include "core/runtime/host/process_state.h"
#include "core/runtime/plugin/device.h"
#include "core/runtime/plugin/plugin.h"
#include "core/runtime/plugin/plugin_call.h"

namespace backplane::runtime {

namespace {

struct Span {
  std::string name, plugin;
  std::uint64_t begin_ns = 0, end_ns = 0;
  std::uint32_t thread = 0;
};
// What one device did, on a row of its own.
struct DeviceRanges {
  std::string device;
  std::vector<CollectedRange> ranges;
};
struct Trace {
  std::mutex& mutex = fork_mutex();
  std::vector<Span> spans;
  std::uint64_t forgotten = 0;  // a span's id counts those that were there before
  std::vector<DeviceRanges> ranges;
};
struct Profiled {
  Device* device;
  bool is_active = false;
};
struct ProfiledDevices {
  std::mutex mutex;
  std::condition_variable idle;
  bool is_busy = false;  // somebody calls the devices, without the mutex
  bool is_tracing = false;
  std::vector<Profiled> devices;
};
// In a child of fork(): the devices are the parent's, and so is who was calling them.
void forget_profiled(void* devices) {
  auto& all = *static_cast<ProfiledDevices*>(devices);
  new (&all.idle) std::condition_variable;  // the old one has waiters, who are not here
  all.is_busy = false;
  all.devices.clear();
}
ProfiledDevices& profiled() {
  static ProfiledDevices* const instance = [] {
    auto* const made = new ProfiledDevices;  // as long as the trace
    hold_over_fork(made->mutex, ForkRank::kLeaf, forget_profiled, made);
    return made;
  }();
  return *instance;
}
Trace& trace() {
  static Trace* const instance = new Trace;  // spans may end during static destruction
  return *instance;
}

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

std::uint32_t thread_number() {
  static std::atomic<std::uint32_t> next{1};
  thread_local const std::uint32_t number = next.fetch_add(1);
  return number;
}

std::uint64_t begin_span(std::string_view plugin, std::string_view name) {
  Span span{std::string(name), std::string(plugin), 0, 0, thread_number()};
  Trace& t = trace();
  const std::lock_guard lock(t.mutex);
  span.begin_ns = now_ns();
  t.spans.push_back(std::move(span));
  return t.forgotten + t.spans.size();
}

void end_span(std::uint64_t id) {
  const std::uint64_t end = now_ns();
  Trace& t = trace();
  const std::lock_guard lock(t.mutex);
  if (id > t.forgotten && id - t.forgotten <= t.spans.size())
    t.spans[id - t.forgotten - 1].end_ns = end;
}

void add_ended_span(std::string_view plugin, std::string_view name, std::uint64_t begin_ns,
                    std::uint64_t end_ns) {
  Span span{std::string(name), std::string(plugin), begin_ns, end_ns, thread_number()};
  Trace& t = trace();
  const std::lock_guard lock(t.mutex);
  t.spans.push_back(std::move(span));
}

// One of the two entries of a plugin that takes profiles.
template <class Call>
Status call_profile(Device& device, const char* name, Call&& call) {
  const std::unique_lock<std::mutex> lock = device.lock_call();
  return call_plugin({device.label(), name, {}}, [&] { return call(device.api()); });
}

// Ends the profile and keeps what it says.
void collect(Profiled& profiled) {
  if (!std::exchange(profiled.is_active, false)) return;
  Device& device = *profiled.device;
  ProfileCollector collector(device.plugin().name());
  const Status status = call_profile(device, "profile_end", [&](const bp_plugin_api& api) {
    return api.profile_end(device.handle(), collector.sink());
  });
  if (!status.ok()) log(LogLevel::kWarning, "no profile: " + status.message());
  Trace& t = trace();
  const std::lock_guard lock(t.mutex);
  t.ranges.push_back({profiled.device->label(), std::move(collector.ranges)});
}
void begin(Profiled& profiled) {
  Device& device = *profiled.device;
  const Status status = call_profile(device, "profile_begin", [&](const bp_plugin_api& api) {
    return api.profile_begin(device.handle());
  });
  profiled.is_active = status.ok();
  if (!status.ok()) log(LogLevel::kWarning, "no profile: " + status.message());
}

// Calls `act` on every device, one caller at a time and without the mutex.
template <class Act>
void for_profiled(Act&& act) {
  ProfiledDevices& all = profiled();
  std::unique_lock lock(all.mutex);
  all.idle.wait(lock, [&] { return !all.is_busy; });
  all.is_busy = true;
  std::vector<Profiled> devices = all.devices;
  const bool is_tracing = all.is_tracing;
  lock.unlock();
  for (Profiled& one : devices) act(one, is_tracing);
  lock.lock();
  all.devices = std::move(devices);
  all.is_busy = false;
  lock.unlock();
  all.idle.notify_all();
}
void collect_profiles() {
  for_profiled([](Profiled& one, bool is_tracing) {
    collect(one);
    if (is_tracing) begin(one);
  });
}
void set_tracing(bool is_tracing) {
  ProfiledDevices& all = profiled();
  const std::lock_guard lock(all.mutex);
  all.is_tracing = is_tracing;
}
// Devices close before the trace is written: their objects were made after the handler that writes.
void collect_at_exit() {
  set_tracing(false);
  collect_profiles();
}

void write_range(std::FILE* file, const CollectedRange& range, const std::string& device, int row) {
  std::string nodes;
  for (const std::uint32_t node : range.node_ids)
    nodes += (nodes.empty() ? "" : ",") + std::to_string(node);
  std::fprintf(file,
               ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"cat\":\"%s\","
               "\"name\":%s,\"args\":{\"nodes\":[%s],\"call\":%llu,\"uncertainty_us\":%.3f}}",
               static_cast<int>(getpid()), row, static_cast<double>(range.begin_ns) / 1e3,
               static_cast<double>(range.end_ns - range.begin_ns) / 1e3, device.c_str(),
               json_string(range.name).c_str(), nodes.c_str(),
               static_cast<unsigned long long>(range.call_id),
               static_cast<double>(range.uncertainty_ns) / 1e3);
}
// One row a device and queue, beyond those of threads.
void write_ranges(std::FILE* file, const std::vector<DeviceRanges>& all) {
  constexpr int kFirstRow = 1 << 20;
  std::map<std::pair<std::string, std::uint32_t>, int> rows;
  for (const DeviceRanges& one : all)
    for (const CollectedRange& range : one.ranges) {
      const auto [row, is_new] =
          rows.try_emplace({one.device, range.queue}, kFirstRow + static_cast<int>(rows.size()));
      if (is_new)
        std::fprintf(file,
                     ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\","
                     "\"args\":{\"name\":\"%s, queue %u\"}}",
                     static_cast<int>(getpid()), row->second, one.device.c_str(), range.queue);
      write_range(file, range, one.device, row->second);
    }
}

// The process whose trace the file is: a child of fork() that ends in order leaves it alone.
pid_t traced = 0;
void write_at_exit() {
  if (::getpid() != traced) return;
  const char* path = std::getenv("BACKPLANE_TRACE");
  if (path != nullptr && !write_trace(path))
    std::fprintf(stderr, "backplane: cannot write the trace to %s\n", path);
}

}  // namespace

void start_trace_from_environment() {
  const char* path = std::getenv("BACKPLANE_TRACE");
  if (path == nullptr || *path == '\0') return;
  start_trace();
  traced = ::getpid();
  std::atexit(write_at_exit);
}

void start_trace() {
  set_trace_hooks({begin_span, end_span, add_ended_span});
  set_tracing(true);
  for_profiled([](Profiled& one, bool) {
    if (!one.is_active) begin(one);
  });
}
void stop_trace() {
  set_trace_hooks({});
  set_tracing(false);
  collect_profiles();
}

void add_profiled(Device* device) {
  if (device->api().profile_begin == nullptr) return;
  ProfiledDevices& all = profiled();
  {
    std::unique_lock lock(all.mutex);
    all.idle.wait(lock, [&] { return !all.is_busy; });
    all.devices.push_back({device});
    if (!all.is_tracing) return;
  }
  for_profiled([](Profiled& one, bool) {
    if (!one.is_active) begin(one);
  });
  std::atexit(collect_at_exit);
}
void remove_profiled(Device* device) {
  if (device->api().profile_begin == nullptr) return;
  for_profiled([&](Profiled& one, bool) {
    if (one.device == device) collect(one);
  });
  ProfiledDevices& all = profiled();
  std::unique_lock lock(all.mutex);
  all.idle.wait(lock, [&] { return !all.is_busy; });
  std::erase_if(all.devices, [&](const Profiled& one) { return one.device == device; });
}

void clear_trace() {
  collect_profiles();
  Trace& t = trace();
  const std::lock_guard lock(t.mutex);
  t.forgotten += t.spans.size();
  t.spans.clear();
  t.ranges.clear();
}

std::vector<TraceTotal> trace_totals() {
  std::map<std::string, TraceTotal> by_name;
  {
    Trace& t = trace();
    const std::lock_guard lock(t.mutex);
    for (const Span& s : t.spans) {
      if (s.end_ns == 0) continue;
      TraceTotal& total = by_name[s.name];
      total.count += 1;
      total.total_ns += s.end_ns - s.begin_ns;
    }
  }
  std::vector<TraceTotal> out;
  for (auto& [name, total] : by_name) {
    total.name = name;
    out.push_back(std::move(total));
  }
  std::stable_sort(out.begin(), out.end(), [](const TraceTotal& a, const TraceTotal& b) {
    return a.total_ns > b.total_ns;
  });
  return out;
}

bool write_trace(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  collect_profiles();
  Trace& t = trace();
  const std::lock_guard lock(t.mutex);
  std::fprintf(file,
               "{\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\","
               "\"args\":{\"name\":\"backplane\"}}",
               static_cast<int>(getpid()));
  for (const Span& s : t.spans) {
    if (s.end_ns == 0) continue;
    std::fprintf(file,
                 ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,\"cat\":\"%s\","
                 "\"name\":%s}",
                 static_cast<int>(getpid()), s.thread, static_cast<double>(s.begin_ns) / 1e3,
                 static_cast<double>(s.end_ns - s.begin_ns) / 1e3, s.plugin.c_str(),
                 json_string(s.name).c_str());
  }
  write_ranges(file, t.ranges);
  std::fputs("\n]}\n", file);
  return std::fclose(file) == 0;
}

}  // namespace backplane::runtime
