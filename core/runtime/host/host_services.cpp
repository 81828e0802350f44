#include "core/runtime/host/host_services.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cxxabi.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "core/base/fork.h"
#include "core/base/log.h"
#include "core/runtime/host/disk_cache.h"
#include "core/runtime/host/error.h"
#include "core/runtime/host/language.h"
#include "core/runtime/host/process_state.h"

// The services as one plugin sees them: first argument of every entry.
struct bp_host {
  std::string name, version, sha256;
  bp_host_api table{};
};

namespace backplane::runtime {

namespace {

constexpr std::size_t kNodeLimit = std::size_t{1} << 24;  // nodes of one claim or profile range
constexpr std::uint64_t kMustUnderstand = ~std::uint64_t{0} << 32;

constexpr std::uint64_t kAskAgainNs = 20'000'000;  // the program is asked at most so often

ThreadHooks thread_hooks;
std::atomic<InterruptCheck> interrupt_check{nullptr};
TraceHooks trace_hooks;
std::atomic<bool> has_listeners{false};
thread_local SpanListener* span_listener = nullptr;
constexpr std::uint64_t kHeardSpan = ~std::uint64_t{0};  // of a listener alone
thread_local bool inside_parallel_for = false;

// Calls act(Collector&) with the mutex of handles held, for an append. Else what was wrong, told.
template <class Collector, class Sink, class Act>
std::string with_sink(HandleKind kind, const Sink* sink, const char* entry, Act&& act) {
  const char* fault = nullptr;
  const std::string user = calling_plugin();
  {
    const std::lock_guard lock(handle_mutex());
    const FoundHandle found = find_handle(kind, sink, user);
    fault = found.fault;
    if (fault == nullptr) act(*static_cast<Collector*>(found.object));
  }
  return fault == nullptr ? std::string()
                          : report_misuse(user, entry, std::string("the sink ") + fault);
}

bp_error* misuse_error(const std::string& text) {
  return text.empty() ? nullptr : make_error(BP_INVALID_ARGUMENT, text);
}

std::string_view plugin_name(const bp_host* host) {
  return !host_name(host).empty() ? host_name(host) : "host";
}

bp_error* out_of_memory(std::string_view what) {
  return make_error(BP_OUT_OF_MEMORY, "out of host memory in " + std::string(what));
}

bp_error* bad_size(std::string_view type, std::size_t found, std::size_t expected) {
  return make_error(BP_INVALID_ARGUMENT,
                    std::string(type) + ".struct_size is " + std::to_string(found) + "; expected " +
                        std::to_string(expected) + " to " + std::to_string(BP_STRUCT_SIZE_LIMIT));
}

bool plausible(std::size_t size, std::size_t first_size) {
  return size >= first_size && size <= BP_STRUCT_SIZE_LIMIT;
}

void host_log(bp_host* host, std::uint32_t level, bp_string message) {
  const std::string text = "plugin '" + std::string(plugin_name(host)) + "': " + copy_text(message);
  if (level == BP_LOG_ERROR) {
    log(LogLevel::kError, text);
  } else if (level == BP_LOG_WARNING) {
    log(LogLevel::kWarning, text);
  } else {
    log_topic("plugins", "backplane: " + text);
  }
}

std::uint32_t thread_count(bp_host*) {
  const std::uint32_t count =
      thread_hooks.count ? thread_hooks.count() : std::thread::hardware_concurrency();
  return std::max<std::uint32_t>(count, 1);
}

// One parallel_for: the body, and the first error any chunk returned.
struct ParallelRun {
  bp_host* host = nullptr;
  void* user = nullptr;
  bp_error* (*body)(void* user, std::size_t begin, std::size_t end) = nullptr;
  std::atomic<bp_error*> error{nullptr};
};

bp_error* run_body(const ParallelRun& run, std::size_t begin, std::size_t end) {
  const FpGuard guard("the body of a plugin's parallel_for");
  try {
    return run.body(run.user, begin, end);
  } catch (const abi::__forced_unwind&) {  // whose thread it is would be lost
    log(LogLevel::kError, "plugin '" + std::string(plugin_name(run.host)) +
                              "' ended a thread of the program in the body of parallel_for");
    std::abort();
  } catch (const std::exception& exception) {
    return make_error(BP_INTERNAL,
                      "the body of parallel_for threw: " + what_text(exception.what()));
  } catch (...) {
    return make_error(BP_INTERNAL, "the body of parallel_for threw an unknown exception");
  }
}

void run_chunk(void* user, std::size_t begin, std::size_t end) {
  auto& run = *static_cast<ParallelRun*>(user);
  if (begin >= end || run.error.load(std::memory_order_relaxed) != nullptr) return;
  const bool was_inside = std::exchange(inside_parallel_for, true);
  bp_error* error = run_body(run, begin, end);
  inside_parallel_for = was_inside;
  bp_error* none = nullptr;
  if (error != nullptr && !run.error.compare_exchange_strong(none, error)) {
    host_api().error_release(run.host, error);  // somebody was first
  }
}

bp_error* parallel_for(bp_host* host, std::size_t count, std::size_t grain, void* user,
                       bp_error* (*body)(void* user, std::size_t begin, std::size_t end)) {
  if (body == nullptr) return make_error(BP_INVALID_ARGUMENT, "parallel_for: the body is NULL");
  if (count == 0) return nullptr;
  ParallelRun run;
  run.host = host;
  run.user = user;
  run.body = body;
  if (inside_parallel_for || thread_hooks.parallel_for == nullptr) {
    run_chunk(&run, 0, count);
  } else {
    thread_hooks.parallel_for(count, std::max<std::size_t>(grain, 1), &run, run_chunk);
  }
  return run.error.load(std::memory_order_acquire);
}

std::uint64_t clock_ns(bp_host*) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

std::uint64_t span_begin(bp_host* host, bp_string name) {
  const bool heard = has_listeners.load(std::memory_order_relaxed) && span_listener != nullptr;
  if ((trace_hooks.begin == nullptr && !heard) || name.data == nullptr) return 0;
  const std::string text = copy_text(name, 256);
  if (heard) span_listener->span_begins(text);
  const std::uint64_t span =
      trace_hooks.begin != nullptr ? trace_hooks.begin(plugin_name(host), text) : 0;
  return span == 0 && heard ? kHeardSpan : span;
}

void span_end(bp_host*, std::uint64_t span) {
  if (span == 0) return;
  if (has_listeners.load(std::memory_order_relaxed) && span_listener != nullptr)
    span_listener->span_ends();
  if (span != kHeardSpan && trace_hooks.end != nullptr) trace_hooks.end(span);
}

void profile_add(bp_profile_sink* sink, const bp_profile_range* range) {
  if (sink == nullptr || range == nullptr) return;
  if (!plausible(range->struct_size, sizeof(bp_profile_range))) return;
  if (range->end_ns < range->begin_ns || range->node_count > kNodeLimit) return;
  try {
    CollectedRange collected;
    collected.name = copy_text(range->name, 256);
    collected.begin_ns = range->begin_ns;
    collected.end_ns = range->end_ns;
    collected.uncertainty_ns = range->uncertainty_ns;
    collected.call_id = range->call_id;
    if (range->node_ids != nullptr) {
      collected.node_ids.assign(range->node_ids, range->node_ids + range->node_count);
    }
    collected.device = range->device;
    collected.queue = range->queue;
    with_sink<ProfileCollector>(
        HandleKind::kProfileSink, sink, "profile_add",
        [&](ProfileCollector& collector) { collector.ranges.push_back(std::move(collected)); });
  } catch (const std::exception&) {
    return;  // a missing range is better than a lost run
  }
}

// Plugin, version and content of the library stand before the plugin's own key.
std::string cache_key(const bp_host* host, bp_string key) {
  std::string full = "plugin";
  for (const std::string& part : {host->name, host->version, host->sha256}) {
    full += '\0';
    full += part;
  }
  full += '\0';
  return full.append(key.data, key.size);
}

int32_t cache_get(bp_host* host, bp_string key, bp_byte_sink* sink) {
  if (host == nullptr || sink == nullptr || key.data == nullptr || key.size == 0) return 0;
  DiskCache* cache = DiskCache::instance();
  if (cache == nullptr) return 0;
  try {
    std::optional<std::string> blob = cache->get(cache_key(host, key));
    if (!blob) return 0;
    return with_sink<ByteCollector>(
               HandleKind::kByteSink, sink, "cache_get",
               [&](ByteCollector& collector) {
                 collector.bytes += *blob;
               }).empty()
               ? 1
               : 0;
  } catch (const std::exception&) {
    return 0;
  }
}

void cache_put(bp_host* host, bp_string key, const void* data, std::size_t size) {
  if (host == nullptr || key.data == nullptr || key.size == 0) return;
  if (data == nullptr && size != 0) return;
  DiskCache* cache = DiskCache::instance();
  if (cache == nullptr) return;
  try {
    cache->put(cache_key(host, key), {static_cast<const char*>(data), size});
  } catch (const std::exception&) {
    return;  // caching is never worth a failure
  }
}

bp_byte_sink* bytes_create(bp_host* host) {
  std::unique_ptr<ByteCollector> collector(new (std::nothrow) ByteCollector(host_name(host)));
  if (collector == nullptr || collector->sink() == nullptr) return nullptr;
  collector->is_plugins = true;
  return collector.release()->sink();  // bytes_release's
}

bp_string bytes_view(const bp_byte_sink* sink) {
  bp_string view{nullptr, 0};
  if (sink == nullptr) return view;
  with_sink<ByteCollector>(HandleKind::kByteSink, sink, "bytes_view",
                           [&](const ByteCollector& collector) {
                             view = {collector.bytes.data(), collector.bytes.size()};
                           });
  return view;
}

void bytes_release(bp_byte_sink* sink) {
  if (sink == nullptr) return;
  std::unique_ptr<ByteCollector> own;
  bool is_lent = false;
  with_sink<ByteCollector>(HandleKind::kByteSink, sink, "bytes_release",
                           [&](ByteCollector& collector) {
                             is_lent = !collector.is_plugins;
                             if (is_lent) return;
                             collector.handle.close();
                             own.reset(&collector);
                           });
  if (is_lent)
    report_misuse(calling_plugin(), "bytes_release",
                  "the sink is the host's; release what bytes_create gave, once");
}

bp_error* bytes_write(bp_byte_sink* sink, const void* data, std::size_t size) {
  if (sink == nullptr) return make_error(BP_INVALID_ARGUMENT, "bytes_write: the sink is NULL");
  if (size == 0) return nullptr;
  if (data == nullptr) return make_error(BP_INVALID_ARGUMENT, "bytes_write: the data is NULL");
  try {
    return misuse_error(with_sink<ByteCollector>(
        HandleKind::kByteSink, sink, "bytes_write", [&](ByteCollector& collector) {
          collector.bytes.append(static_cast<const char*>(data), size);
        }));
  } catch (const std::exception&) {
    return out_of_memory("bytes_write");
  }
}

int32_t is_cancelled(const bp_cancel* cancel) {
  if (cancel == nullptr) return 0;
  CancelToken* token = nullptr;
  const char* fault = nullptr;
  {
    const std::lock_guard lock(handle_mutex());
    const FoundHandle found = find_handle(HandleKind::kCancel, cancel);
    token = static_cast<CancelToken*>(found.object);
    fault = found.fault;
    // Only its own thread keeps it without the mutex, and may ask the program.
    if (fault == nullptr && !token->is_of_this_thread()) return token->was_cancelled() ? 1 : 0;
  }
  if (fault == nullptr) return token->ask() ? 1 : 0;
  report_misuse(calling_plugin(), "is_cancelled", std::string("the token ") + fault);
  return 1;  // whatever asks for a call that is gone had better stop
}

bp_error* claim_add(bp_claim_sink* sink, const bp_claim* claim) {
  if (sink == nullptr || claim == nullptr) {
    return make_error(BP_INVALID_ARGUMENT, "claim_add: the sink or the claim is NULL");
  }
  if (!plausible(claim->struct_size, sizeof(bp_claim))) {
    return bad_size("claim_add: bp_claim", claim->struct_size, sizeof(bp_claim));
  }
  if (claim->node_ids == nullptr || claim->node_count == 0 || claim->node_count > kNodeLimit) {
    return make_error(BP_INVALID_ARGUMENT,
                      "claim_add: a claim of " + std::to_string(claim->node_count) +
                          " nodes; expected 1 to " + std::to_string(kNodeLimit) + " and their ids");
  }
  if ((claim->flags & kMustUnderstand) != 0) {
    return make_error(BP_UNSUPPORTED,
                      "claim_add: a flag in bits 32 to 63 that this host does not "
                      "know");
  }
  const bool estimated = (claim->flags & BP_CLAIM_ESTIMATED) != 0;
  if (estimated && !(std::isfinite(claim->time_ns) && claim->time_ns >= 0 &&
                     std::isfinite(claim->launch_ns) && claim->launch_ns >= 0)) {
    return make_error(BP_INVALID_ARGUMENT,
                      "claim_add: time_ns or launch_ns is negative or not finite");
  }
  try {
    CollectedClaim collected;
    collected.node_ids.assign(claim->node_ids, claim->node_ids + claim->node_count);
    collected.flags = claim->flags;
    if (estimated) {
      collected.time_ns = claim->time_ns;
      collected.launch_ns = claim->launch_ns;
    }
    collected.workspace_bytes = claim->workspace_bytes;
    collected.read_bytes = claim->read_bytes;
    collected.written_bytes = claim->written_bytes;
    return misuse_error(with_sink<ClaimCollector>(
        HandleKind::kClaimSink, sink, "claim_add",
        [&](ClaimCollector& collector) { collector.claims.push_back(std::move(collected)); }));
  } catch (const std::exception&) {
    return out_of_memory("claim_add");
  }
}

bp_error* refuse_add(bp_claim_sink* sink, std::uint32_t node_id, bp_refusal reason,
                     bp_string text) {
  if (sink == nullptr) return make_error(BP_INVALID_ARGUMENT, "refuse_add: the sink is NULL");
  try {
    const bool known = reason >= BP_REFUSED_OTHER && reason <= BP_REFUSED_COST;
    CollectedRefusal refusal{node_id, known ? reason : static_cast<bp_refusal>(BP_REFUSED_OTHER),
                             copy_text(text, 512)};
    return misuse_error(with_sink<ClaimCollector>(
        HandleKind::kClaimSink, sink, "refuse_add",
        [&](ClaimCollector& collector) { collector.refusals.push_back(std::move(refusal)); }));
  } catch (const std::exception&) {
    return out_of_memory("refuse_add");
  }
}

bp_host* make_host(std::string_view name, std::string_view version, std::string_view sha256) {
  auto* host = new bp_host;  // never freed: plugins keep the table
  host->name = name;
  host->version = version;
  host->sha256 = sha256;
  bp_host_api& table = host->table;
  table.struct_size = sizeof(table);
  table.version = BP_ABI_VERSION;
  table.host = host;
  fill_error_entries(table);
  table.log = host_log;
  table.thread_count = thread_count;
  table.parallel_for = parallel_for;
  table.clock_ns = clock_ns;
  table.span_begin = span_begin;
  table.span_end = span_end;
  table.profile_add = profile_add;
  table.cache_get = cache_get;
  table.cache_put = cache_put;
  table.bytes_create = bytes_create;
  table.bytes_view = bytes_view;
  table.bytes_release = bytes_release;
  table.is_cancelled = is_cancelled;
  table.claim_add = claim_add;
  table.refuse_add = refuse_add;
  table.bytes_write = bytes_write;
  return host;
}

}  // namespace

std::string_view host_name(const bp_host* host) {
  return host != nullptr ? std::string_view(host->name) : std::string_view();
}

void set_interrupt_check(InterruptCheck check) { interrupt_check = check; }

bool wants_interrupt() {
  const InterruptCheck check = interrupt_check.load();
  if (check == nullptr || ::syscall(SYS_gettid) != ::getpid()) return false;
  note_program_runs();
  if (!check()) return false;
  note_own_error();
  return true;
}

bool CancelToken::ask() {
  if (was_cancelled()) return true;
  const InterruptCheck check = interrupt_check.load();
  if (check == nullptr || !is_of_this_thread()) return false;
  const std::uint64_t now = clock_ns(nullptr);
  if (now - asked_ns_ < kAskAgainNs) return false;
  asked_ns_ = now;
  note_program_runs();
  if (check()) {
    note_own_error();
    cancel();
  }
  return was_cancelled();
}

const bp_host_api& host_api() {
  static const bp_host* const host = make_host("", "", "");
  return host->table;
}

const bp_host_api* make_host_api(std::string_view name, std::string_view version,
                                 std::string_view sha256) {
  // A reachable list, so that leak checkers see these as kept and not as lost.
  static std::mutex& mutex = fork_mutex();
  static auto* const hosts = new std::vector<bp_host*>;
  bp_host* host = make_host(name, version, sha256);
  const std::lock_guard lock(mutex);
  hosts->push_back(host);
  return &host->table;
}

void set_thread_hooks(const ThreadHooks& hooks) { thread_hooks = hooks; }
SpanListener::Scope::Scope(SpanListener& listener)
    : before_(std::exchange(span_listener, &listener)) {
  has_listeners.store(true, std::memory_order_relaxed);
}
SpanListener::Scope::~Scope() { span_listener = before_; }

void set_trace_hooks(const TraceHooks& hooks) {
  trace_hooks = hooks;
  HostSpan::collects_.store(hooks.begin != nullptr, std::memory_order_relaxed);
}

void add_span(std::string_view plugin, std::string_view name, std::uint64_t begin_ns,
              std::uint64_t end_ns) {
  if (const auto add = trace_hooks.add; add != nullptr) add(plugin, name, begin_ns, end_ns);
}

std::uint64_t HostSpan::begin(std::string_view name) {
  const auto begins = trace_hooks.begin;
  return begins != nullptr && !name.empty() ? begins("host", name) : 0;
}
void HostSpan::end(std::uint64_t span) {
  if (const auto ends = trace_hooks.end; ends != nullptr) ends(span);
}

}  // namespace backplane::runtime
