// The one bp_host_api table of the process, and the hooks through which the framework above lends
// its own services (threads, pinned memory). All entries are callable from any thread and never
// take the GIL.
#pragma once

#include <backplane/host.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/runtime/host/handles.h"

namespace backplane::runtime {

const bp_host_api& host_api();
// The plugin whose services these are; empty: nobody's.
std::string_view host_name(const bp_host* host);
// The same services under a plugin's name: prefixes its log lines and separates its cache. Made
// once per loaded library and never freed, because plugins keep the pointer.
const bp_host_api* make_host_api(std::string_view name, std::string_view version,
                                 std::string_view sha256);

// Set once, before plugins are loaded; defaults: hardware concurrency, and a plain loop.
struct ThreadHooks {
  std::uint32_t (*count)() = nullptr;
  // Runs body(user, begin, end) over [0, count) in chunks of at least grain, returns when done.
  void (*parallel_for)(std::size_t count, std::size_t grain, void* user,
                       void (*body)(void* user, std::size_t begin, std::size_t end)) = nullptr;
};
void set_thread_hooks(const ThreadHooks& hooks);

// Where spans go; without hooks tracing is off and span_begin answers 0.
struct TraceHooks {
  std::uint64_t (*begin)(std::string_view plugin, std::string_view name) = nullptr;
  void (*end)(std::uint64_t span) = nullptr;
  // One that has ended, of this thread; on clock_ns.
  void (*add)(std::string_view plugin, std::string_view name, std::uint64_t begin_ns,
              std::uint64_t end_ns) = nullptr;
};
void set_trace_hooks(const TraceHooks& hooks);
void add_span(std::string_view plugin, std::string_view name, std::uint64_t begin_ns,
              std::uint64_t end_ns);

// A span of the host's own while it lives, of the category "host"; those of plugins have theirs.
class HostSpan {
 public:
  // `name()` is asked where spans are collected, and only there; of an empty one there is no span.
  template <class Name>
  explicit HostSpan(Name name) {
    if (collects_.load(std::memory_order_relaxed)) [[unlikely]]
      span_ = begin(name());
  }
  ~HostSpan() {
    if (span_ != 0) [[unlikely]]
      end(span_);
  }
  HostSpan(const HostSpan&) = delete;
  HostSpan& operator=(const HostSpan&) = delete;
  static bool collects() { return collects_.load(std::memory_order_relaxed); }

 private:
  friend void set_trace_hooks(const TraceHooks& hooks);
  static std::uint64_t begin(std::string_view name);
  static void end(std::uint64_t span);
  inline static std::atomic<bool> collects_{false};
  std::uint64_t span_ = 0;
};

// Hears of the spans that plugins begin and end on this thread, whether tracing is on or off.
class SpanListener {
 public:
  virtual ~SpanListener() = default;
  virtual void span_begins(std::string_view name) = 0;
  virtual void span_ends() = 0;

  class Scope {
   public:
    explicit Scope(SpanListener& listener);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    SpanListener* before_;
  };
};

// What claim_add and refuse_add collect. Of collectors, `owner` is the plugin that is asked.
struct CollectedClaim {
  std::vector<std::uint32_t> node_ids;
  std::uint64_t flags = 0;
  double time_ns = 0, launch_ns = 0;
  std::uint64_t workspace_bytes = 0, read_bytes = 0, written_bytes = 0;
};
struct CollectedRefusal {
  std::uint32_t node_id = 0;
  bp_refusal reason = BP_REFUSED_OTHER;
  std::string text;
};
struct ClaimCollector {
  explicit ClaimCollector(std::string_view owner = {})
      : handle(HandleKind::kClaimSink, this, owner) {}
  std::vector<CollectedClaim> claims;
  std::vector<CollectedRefusal> refusals;
  bp_claim_sink* sink() const { return handle.as<bp_claim_sink>(); }
  Handle handle;  // last: gone before what it leads to
};
struct ByteCollector {
  explicit ByteCollector(std::string_view owner = {})
      : handle(HandleKind::kByteSink, this, owner) {}
  std::string bytes;
  bool is_plugins = false;  // made by bytes_create, freed by bytes_release
  bp_byte_sink* sink() const { return handle.as<bp_byte_sink>(); }
  Handle handle;  // last: gone before what it leads to
};

// What profile_add collects.
struct CollectedRange {
  std::string name;
  std::uint64_t begin_ns = 0, end_ns = 0, uncertainty_ns = 0, call_id = 0;
  std::vector<std::uint32_t> node_ids;
  std::uint32_t device = 0, queue = 0;
};
struct ProfileCollector {
  explicit ProfileCollector(std::string_view owner = {})
      : handle(HandleKind::kProfileSink, this, owner) {}
  std::vector<CollectedRange> ranges;
  bp_profile_sink* sink() const { return handle.as<bp_profile_sink>(); }
  Handle handle;  // last: gone before what it leads to
};

// Whether the program wants the call ended that this thread is in; null: it never does. May take a
// lock that the caller does not hold, so it is asked in that thread alone.
using InterruptCheck = bool (*)();
void set_interrupt_check(InterruptCheck check);
// Asks it, in the program's main thread; others it does not interrupt.
bool wants_interrupt();

// What is_cancelled asks, of one call that this thread makes. Outlives the call.
class CancelToken {
 public:
  const bp_cancel* handle() const { return handle_.as<const bp_cancel>(); }
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool was_cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  bool is_of_this_thread() const { return std::this_thread::get_id() == thread_; }
  bool ask();  // in its thread

 private:
  const std::thread::id thread_ = std::this_thread::get_id();
  std::atomic<bool> cancelled_{false};
  std::uint64_t asked_ns_ = 0;  // by its thread
  const Handle handle_{HandleKind::kCancel, this};
};

}  // namespace backplane::runtime
