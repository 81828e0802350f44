#include "core/runtime/isolate/isolated_plugin.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "core/base/fork.h"
#include "core/base/log.h"
#include "core/runtime/host/error.h"
#include "core/runtime/host/host_services.h"
#include "core/runtime/host/process_state.h"

namespace backplane::runtime {

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr std::uint64_t kWorkerLimit = 4;  // of one plugin in one process
constexpr double kGraceSeconds = 3;        // after Ctrl-C: most calls end by themselves
constexpr double kEndSeconds = 10;         // of calls that the end of the program waits for
// What the model of copies gets for memory that is copied from one place of it to another.
constexpr double kCopyBytesPerSecond = 8e9;
constexpr double kCallNs = 20'000;

double deadline_seconds() {
  const char* const text = std::getenv("BACKPLANE_DEADLINE");
  const double asked = text != nullptr ? std::strtod(text, nullptr) : 0;
  return asked > 0 ? asked : std::numeric_limits<double>::infinity();
}

bp_error* error_about(bp_code code, const std::string& text,
                      std::span<const std::uint32_t> node_ids, std::string_view site = {}) {
  bp_error_args args{};
  args.struct_size = sizeof args;
  args.code = code;
  args.message = {text.data(), text.size()};
  args.file = {site.data(), site.size()};
  args.node_ids = node_ids.data();
  args.node_count = node_ids.size();
  return host_api().error_create(nullptr, &args);
}

// How long to wait for an answer.
class CallLimit {
 public:
  explicit CallLimit(const IsolatedPlugin::Question& question) : question_(question) {
    const bool is_the_end =
        question.entry == WorkerEntry::kShutdown || question.entry == WorkerEntry::kDeviceClose;
    seconds_ = deadline_seconds();
    if (is_the_end) seconds_ = std::min(seconds_, kEndSeconds);
    asked_for_ = static_cast<double>(question.may_take_ns) / 1e9;
  }
  // Between the slices of the wait: asks the program whether it still wants to.
  void look() {
    waited_ = Seconds(Clock::now() - begin_).count();
    if (is_interrupted_ || question_.gives_back) return;
    if (question_.cancel != nullptr) {
      is_interrupted_ = host_api().is_cancelled(question_.cancel) != 0;
    } else if (asked_for_ == 0 || waited_ > asked_for_ + kGraceSeconds) {
      // A wait comes back by itself, and who asked for it asks the program.
      is_interrupted_ = wants_interrupt();
    }
    if (is_interrupted_) interrupted_end_ = waited_ + kGraceSeconds;
  }
  bool is_interrupted() const { return is_interrupted_; }
  bool was_cancelled() const { return is_interrupted_ && question_.cancel != nullptr; }
  bool is_over() const {
    return waited_ >= seconds_ + asked_for_ || (is_interrupted_ && waited_ >= interrupted_end_);
  }
  std::string why() const {
    if (is_interrupted_) return "by an interrupt";
    const bool is_asked = seconds_ == deadline_seconds();
    return "as it did not answer within " + std::to_string(std::lround(seconds_)) + " s" +
           (is_asked ? " (BACKPLANE_DEADLINE)" : "");
  }

 private:
  const IsolatedPlugin::Question& question_;
  const Clock::time_point begin_ = Clock::now();
  double seconds_ = 0, asked_for_ = 0, waited_ = 0, interrupted_end_ = 0;
  bool is_interrupted_ = false;
};

// What stands in front of every answer: the spans, the error.
bp_error* read_front(const std::string& plugin, WireReader& in) {
  const auto spans = in.get<std::uint64_t>();
  for (std::uint64_t i = 0; i < spans && in.ok(); ++i) {
    const std::string_view name = in.text();
    const auto begin_ns = in.get<std::uint64_t>(), end_ns = in.get<std::uint64_t>();
    add_span(plugin, name, begin_ns, end_ns);
  }
  const auto code = in.get<bp_code>();
  if (code == BP_OK) return nullptr;
  const std::string text(in.text()), site(in.text());
  const std::vector<std::uint32_t> node_ids = in.array<std::uint32_t>();
  return error_about(code, text, node_ids, site);
}

}  // namespace

Result<IsolatedPlugin*> IsolatedPlugin::start(const std::string& name, const std::string& path,
                                              const std::string& sha256) {
  static auto* const kept = new std::deque<std::unique_ptr<IsolatedPlugin>>;
  static std::mutex& mutex = fork_mutex();
  std::unique_ptr<IsolatedPlugin> made(new IsolatedPlugin(name, path, sha256));
  BP_ASSIGN_OR_RETURN(made->memory_, SharedMemory::create());
  BP_ASSIGN_OR_RETURN(made->worker_, made->start_worker());
  made->number_ = 1;
  IsolatedPlugin* const plugin = made.get();
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(made));
  return plugin;
}

Result<std::shared_ptr<WorkerProcess>> IsolatedPlugin::start_worker() {
  const std::uint32_t threads = host_api().thread_count(host_api().host);
  BP_ASSIGN_OR_RETURN(std::shared_ptr<WorkerProcess> worker,
                      WorkerProcess::start(path_, memory_->mapping(), threads));
  std::string answer;
  WireWriter request;
  request.put_text(std::string_view(sha256_));
  bp_error* const error = ask({worker, 0, nullptr}, {WorkerEntry::kHello}, request, answer);
  if (error != nullptr) {
    PluginError read = read_error(error);
    host_api().error_release(nullptr, error);
    return Status(static_cast<Code>(read.code), std::move(read.message));
  }
  WireReader in(answer);
  BP_RETURN_IF_ERROR(read_hello(in));
  return worker;
}

Status IsolatedPlugin::read_hello(WireReader& in) {
  const auto chosen = in.get<std::uint32_t>(), version = in.get<std::uint32_t>();
  const auto flags = in.get<std::uint64_t>(), present = in.get<std::uint64_t>();
  if (!in.ok()) return {Code::kInternal, "its worker process is of another build; reinstall"};
  if (api_.struct_size != 0) return {};  // another worker of the same library
  abi_version_ = chosen;
  api_ = forwarding_table(version, flags, present);
  return {};
}

IsolatedPlugin::Place IsolatedPlugin::place(bool begins_anew) {
  const auto none = [](bp_code code, const std::string& text) {
    return Place{nullptr, 0, make_error(code, text)};
  };
  if (process_id() != process_)
    return none(BP_UNSUPPORTED, "its worker process belongs to the parent of this process");
  std::unique_lock lock(mutex_);
  started_.wait(lock, [&] { return !is_starting_; });
  if (worker_->is_alive()) return {worker_, number_, nullptr};
  const auto gone = [&](const std::string& more) {
    return none(BP_DEVICE_LOST, "its worker process was ended " + how_it_ended_ + more);
  };
  if (is_finished_) return none(BP_DEVICE_LOST, "the plugin was shut down");
  if (!begins_anew) return gone(" in an earlier call");
  if (number_ >= kWorkerLimit)
    return gone("; it was the last of " + std::to_string(kWorkerLimit) +
                " that a plugin may have in one process");
  is_starting_ = true;
  const std::uint64_t number = ++number_;
  lock.unlock();
  log(LogLevel::kWarning, "plugin '" + name_ + "': a new worker process is started (" +
                              std::to_string(number) + " of " + std::to_string(kWorkerLimit) + ")");
  Result<std::shared_ptr<WorkerProcess>> worker = start_worker();
  lock.lock();
  is_starting_ = false;
  started_.notify_all();
  if (!worker.ok())
    return none(static_cast<bp_code>(worker.status().code()), worker.status().message());
  worker_ = std::move(*worker);
  return {worker_, number, nullptr};
}

bp_error* IsolatedPlugin::lost(WorkerProcess& worker, const Question& question, bp_code code) {
  const std::string how = worker.how_it_ended();
  {
    const std::lock_guard lock(mutex_);
    how_it_ended_ = how;
  }
  return error_about(code,
                     "its worker process was ended " + how + " inside of " +
                         std::string(entry_name(question.entry)),
                     question.node_ids);
}

bp_error* IsolatedPlugin::ask(const Place& place, const Question& question,
                              const WireWriter& request, std::string& answer) {
  if (place.worker == nullptr) return place.why;
  WorkerProcess& worker = *place.worker;
  FrameHead head;
  head.entry = question.entry;
  head.thread_count = host_api().thread_count(host_api().host);
  head.collects_spans = HostSpan::collects() ? 1 : 0;
  SharedBlock flag;  // read in the worker while the call lasts
  if (question.cancel != nullptr) {
    Result<SharedBlock> block = take_block(*memory_, sizeof(std::uint32_t));
    if (!block.ok()) return make_error(BP_OUT_OF_MEMORY, block.status().message());
    flag = std::move(*block);
    head.cancel_offset = flag.offset();
    std::atomic_ref(*reinterpret_cast<std::uint32_t*>(flag.data())).store(0);
  }
  Channel channel = worker.take_channel();
  if (!channel || !channel.send(head, request.bytes()))
    return lost(worker, question, BP_DEVICE_LOST);
  CallLimit limit(question);
  for (;;) {
    const Channel::Heard heard = channel.receive(head, answer);
    if (heard == Channel::Heard::kAll) break;
    if (heard == Channel::Heard::kEnd) return lost(worker, question, BP_DEVICE_LOST);
    limit.look();
    if (limit.was_cancelled())
      std::atomic_ref(*reinterpret_cast<std::uint32_t*>(flag.data())).store(1);
    if (!limit.is_over()) continue;
    worker.kill(limit.why());
    return lost(worker, question, limit.is_interrupted() ? BP_CANCELLED : BP_DEVICE_LOST);
  }
  worker.give_channel(std::move(channel));
  WireReader in(answer);
  bp_error* const error = read_front(name_, in);
  if (!in.ok()) {
    host_api().error_release(nullptr, error);
    return error_about(BP_INTERNAL, "its worker process gave an answer that does not parse",
                       question.node_ids);
  }
  answer.erase(0, answer.size() - in.left());
  if (limit.is_interrupted() && !limit.was_cancelled() && error == nullptr)
    return make_error(BP_CANCELLED, "it was interrupted");
  return error;
}

bp_error* IsolatedPlugin::ask(std::uint64_t number, const Question& question,
                              const WireWriter& request, std::string& answer) {
  Place found = place(/*begins_anew=*/false);
  if (found.worker != nullptr && found.number != number) {
    found.worker = nullptr;
    found.why = make_error(BP_DEVICE_LOST, "it lived in a worker process that has ended");
  }
  return ask(found, question, request, answer);
}

void IsolatedPlugin::tell(std::uint64_t number, WorkerEntry entry, const WireWriter& request) {
  const Place found = place(/*begins_anew=*/false);
  if (found.worker == nullptr || found.number != number) {  // what lived there is gone
    host_api().error_release(nullptr, found.why);
    return;
  }
  std::string answer;
  Question question{entry};
  question.gives_back = true;
  if (bp_error* const error = ask(found, question, request, answer)) log_failure(entry, error);
}

void IsolatedPlugin::log_failure(WorkerEntry entry, bp_error* error) const {
  const Status status =
      take_error(error, "plugin '" + name_ + "': " + std::string(entry_name(entry)));
  log(LogLevel::kWarning, status.message());
}

void IsolatedPlugin::finish() {
  tell(number_, WorkerEntry::kShutdown, {});
  const std::lock_guard lock(mutex_);
  is_finished_ = true;
  worker_->finish();
}

std::uint32_t IsolatedPlugin::device_count() {
  std::string answer;
  bp_error* const error = ask(place(/*begins_anew=*/true), {WorkerEntry::kDeviceCount}, {}, answer);
  {
    const std::lock_guard lock(mutex_);
    if (error == nullptr) device_count_ = WireReader(answer).get<std::uint32_t>();
    if (error == nullptr || device_count_ != 0) {
      host_api().error_release(nullptr, error);
      return device_count_;
    }
  }
  log_failure(WorkerEntry::kDeviceCount, error);
  return 0;
}

bp_error* IsolatedPlugin::describe(std::uint32_t index, const bp_device_info*& out_shown) {
  WireWriter request;
  request.put(index);
  std::string answer;
  if (bp_error* const error =
          ask(place(/*begins_anew=*/true), {WorkerEntry::kDeviceDescribe}, request, answer))
    return error;
  const std::lock_guard lock(mutex_);
  Description& kept = descriptions_[index];
  if (kept.as_shown == nullptr) {
    WireReader said(answer), shown(answer);
    kept.as_said = std::make_unique<WireInfo>(said);
    kept.as_shown = std::make_unique<WireInfo>(shown);
    bp_device_info& info = kept.as_shown->get();
    if ((info.flags & BP_DEVICE_BINDS_HOST_MEMORY) != 0) {
      info.flags &= ~BP_DEVICE_BINDS_HOST_MEMORY;
      for (double* rate : {&info.to_device_bytes_per_s, &info.from_device_bytes_per_s})
        if (*rate <= 0) *rate = kCopyBytesPerSecond;
    }
    info.launch_latency_ns += kCallNs;
  }
  out_shown = &kept.as_shown->get();
  return nullptr;
}

bool IsolatedPlugin::shares_memory(std::uint32_t index) {
  const std::lock_guard lock(mutex_);
  const auto found = descriptions_.find(index);
  return found != descriptions_.end() && api_.stream_create == nullptr &&
         (found->second.as_said->get().flags & BP_DEVICE_BINDS_HOST_MEMORY) != 0;
}

void IsolatedPlugin::put_info_of(WireWriter& out, const bp_device_info* info) {
  const std::lock_guard lock(mutex_);
  // The host's copy has our texts.
  for (const auto& [index, kept] : descriptions_)
    if (info->name.data == kept.as_shown->get().name.data) {
      out.put<std::uint32_t>(index);
      return;
    }
  out.put<std::uint32_t>(BP_NONE);
  put_info(out, *info);
}

}  // namespace backplane::runtime
