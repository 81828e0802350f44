#include "core/runtime/trace.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "core/runtime/host_services.h"

namespace backplane::runtime {

namespace {

struct Span {
  std::string name, plugin;
  std::uint64_t begin_ns = 0, end_ns = 0;
  std::uint32_t thread = 0;
};
struct Trace {
  std::mutex mutex;
  std::vector<Span> spans;  // a span's id is its position + 1
};
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
  return t.spans.size();
}

void end_span(std::uint64_t id) {
  const std::uint64_t end = now_ns();
  Trace& t = trace();
  const std::lock_guard lock(t.mutex);
  if (id <= t.spans.size()) t.spans[id - 1].end_ns = end;
}

void write_at_exit() {
  const char* path = std::getenv("BACKPLANE_TRACE");
  if (path != nullptr && !write_trace(path))
    std::fprintf(stderr, "backplane: cannot write the trace to %s\n", path);
}

}  // namespace

void start_trace_from_environment() {
  const char* path = std::getenv("BACKPLANE_TRACE");
  if (path == nullptr || *path == '\0') return;
  start_trace();
  std::atexit(write_at_exit);
}

void start_trace() { set_trace_hooks({begin_span, end_span}); }
void stop_trace() { set_trace_hooks({}); }

void clear_trace() {
  Trace& t = trace();
  const std::lock_guard lock(t.mutex);
  t.spans.clear();
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
  std::fputs("{\"traceEvents\":[", file);
  Trace& t = trace();
  const std::lock_guard lock(t.mutex);
  bool first = true;
  for (const Span& s : t.spans) {
    if (s.end_ns == 0) continue;
    std::fprintf(file,
                 "%s\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,\"cat\":\"%s\","
                 "\"name\":\"%s\"}",
                 first ? "" : ",", static_cast<int>(getpid()), s.thread,
                 static_cast<double>(s.begin_ns) / 1e3,
                 static_cast<double>(s.end_ns - s.begin_ns) / 1e3, s.plugin.c_str(),
                 s.name.c_str());
    first = false;
  }
  std::fputs("\n]}\n", file);
  return std::fclose(file) == 0;
}

}  // namespace backplane::runtime
