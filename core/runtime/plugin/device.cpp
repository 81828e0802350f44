#include "core/runtime/plugin/device.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/log.h"
#include "core/runtime/host/error.h"
#include "core/runtime/host/host_services.h"
#include "core/runtime/host/process_state.h"
#include "core/runtime/isolate/isolated_plugin.h"
#include "core/runtime/plugin/figures.h"
#include "core/runtime/plugin/plugin.h"
#include "core/runtime/plugin/plugin_call.h"
#include "core/runtime/plugin/trace.h"
#include "core/runtime/plugin/wait_limit.h"

namespace backplane::runtime {

namespace {

// bp_device_info of version 0.2; later fields may be missing in a plugin's answer.
constexpr std::size_t kFirstInfoSize =
    offsetof(bp_device_info, rate_stride) + sizeof(bp_device_info::rate_stride);
constexpr std::size_t kFirstRateSize =
    offsetof(bp_device_rate, flop_per_s) + sizeof(bp_device_rate::flop_per_s);
constexpr std::size_t kTextLimit = 4096;
constexpr std::size_t kArrayLimit = 4096;
constexpr std::uint64_t kMustUnderstand = ~std::uint64_t{0} << 32;
constexpr std::uint64_t kGuessedAlignmentBytes = 64;
// Between two slices of a wait the program is asked whether it still wants to.
constexpr std::uint64_t kWaitSliceNs = 100'000'000;
// Between two questions whether work has ended whose wait failed.
constexpr std::chrono::milliseconds kPollPause{1};

bp_range host_range(void* memory, std::uint64_t bytes) { return {nullptr, memory, 0, bytes}; }

Status wrong(const std::string& label, std::string_view what) {
  return {Code::kInternal, label + ": device_describe answered " + std::string(what) + "."};
}

Status check_info(const bp_device_info& info, const std::string& label) {
  if (info.struct_size < kFirstInfoSize || info.struct_size > sizeof(info)) {
    return wrong(label, "struct_size " + std::to_string(info.struct_size) + ", expected " +
                            std::to_string(kFirstInfoSize) + " to the capacity given, " +
                            std::to_string(sizeof(info)));
  }
  if ((info.flags & kMustUnderstand) != 0) {
    return {Code::kUnsupported,
            label +
                ": device_describe set a flag in bits 32 to 63 that this host does not know; "
                "update the host."};
  }
  const bool has_torch_device = BP_HAS(info.struct_size, bp_device_info, torch_device);
  const bp_string torch_device = has_torch_device ? info.torch_device : bp_string{};
  const std::pair<const char*, const bp_string*> texts[] = {{"name", &info.name},
                                                            {"architecture", &info.architecture},
                                                            {"driver", &info.driver},
                                                            {"unique_id", &info.unique_id},
                                                            {"torch_device", &torch_device}};
  for (const auto& [field, text] : texts) {
    if (text->size > kTextLimit || (text->data == nullptr && text->size != 0)) {
      return wrong(label, std::string(field) + ", a text of " + std::to_string(text->size) +
                              " bytes" + (text->data == nullptr ? " without data" : ""));
    }
    if (copy_text(*text) != std::string_view(text->data, text->size))
      return wrong(label, std::string(field) + " '" + copy_text(*text) +
                              "', expected UTF-8 without control characters");
  }
  for (const std::uint32_t alignment : {info.buffer_alignment_bytes, info.offset_alignment_bytes}) {
    if (alignment != 0 && !std::has_single_bit(alignment)) {
      return wrong(label, "an alignment of " + std::to_string(alignment) +
                              " bytes, expected a power of two");
    }
  }
  if (info.rate_count > kArrayLimit || (info.rates == nullptr && info.rate_count != 0)) {
    return wrong(label, "an array of " + std::to_string(info.rate_count) + " elements" +
                            (info.rates == nullptr ? " without data" : ""));
  }
  const std::string call = label + ": device_describe";
  if (info.rate_count != 0)
    BP_RETURN_IF_ERROR(check_stride(call, "rate_stride", info.rate_stride, kFirstRateSize));
  return check_bytes(call, "memory_bytes", info.memory_bytes);
}

std::string device_label(const Plugin& plugin, std::uint32_t index) {
  return plugin.name() + ":" + std::to_string(index);
}

void raise_to(std::atomic<std::uint64_t>& peak, std::uint64_t value) {
  std::uint64_t seen = peak.load(std::memory_order_relaxed);
  while (seen < value && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

std::string_view copy_cause_name(CopyCause cause) {
  switch (cause) {
    case CopyCause::kInput:
      return "input";
    case CopyCause::kOutput:
      return "output";
    case CopyCause::kWeight:
      return "weight";
    case CopyCause::kFallback:
      return "fallback";
    case CopyCause::kSaved:
      return "saved";
    case CopyCause::kOther:
      return "other";
  }
  return "unknown";
}

void CopyCounters::reset() {
  for (auto* list : {&to_device_bytes, &from_device_bytes, &to_device_count, &from_device_count}) {
    for (auto& counter : *list) counter.store(0, std::memory_order_relaxed);
  }
  peak_bytes.store(live_bytes.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      buffer_(std::exchange(other.buffer_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  if (this != &other) {
    DeviceBuffer old(std::move(*this));  // released at the end of this scope
    std::swap(device_, other.device_);
    std::swap(buffer_, other.buffer_);
    std::swap(bytes_, other.bytes_);
  }
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (buffer_ != nullptr) device_->release_buffer(buffer_, bytes_);
}

Result<bp_device_info> describe_device(const Plugin& plugin, std::uint32_t index) {
  const std::string label = device_label(plugin, index);
  bp_device_info info{};
  info.struct_size = sizeof(info);
  BP_RETURN_IF_ERROR(call_plugin({label, "device_describe", {}}, [&] {
    return plugin.api().device_describe(plugin.handle(), index, &info);
  }));
  BP_RETURN_IF_ERROR(check_info(info, label));
  // Nothing beyond what the plugin says it wrote counts.
  bp_device_info copy{};
  std::copy_n(reinterpret_cast<const char*>(&info), info.struct_size,
              reinterpret_cast<char*>(&copy));
  return copy;
}

Result<std::unique_ptr<Device>> Device::open(Plugin* plugin, std::uint32_t index) {
  BP_ASSIGN_OR_RETURN(const bp_device_info info, describe_device(*plugin, index));
  const std::string label = device_label(*plugin, index), call = label + ": device_open";
  bp_device* handle = nullptr;
  {
    const ProcessStateGuard guard(call);
    BP_RETURN_IF_ERROR(call_plugin({label, "device_open", {}}, [&] {
      return plugin->api().device_open(plugin->handle(), index, &handle);
    }));
  }
  if (handle == nullptr) {
    return Status(Code::kInternal, call + " succeeded without a device.");
  }
  if (plugin->has_open(handle)) return Status(Code::kInternal, in_use_text(call, "a device"));
  auto device = std::make_unique<Device>(plugin, index, handle, info);
  BP_RETURN_IF_ERROR(device->probe_streams());
  add_profiled(device.get());
  return device;
}

// A plugin with streams may have devices without: those say so here.
Status Device::probe_streams() {
  if (api().stream_create == nullptr) return {};
  bp_stream* stream = nullptr;
  const ProcessStateGuard guard(label_ + ": stream_create");
  Status status = enter("stream_create", [&] { return api().stream_create(handle_, &stream); });
  if (!status.ok()) return status.code() == Code::kUnsupported ? Status() : std::move(status);
  if (stream == nullptr) {
    return Status(Code::kInternal, call_text("stream_create") + " succeeded without a stream.");
  }
  enter_void("stream_release", [&] { api().stream_release(stream); });
  has_streams_ = true;
  return {};
}

Device::Device(Plugin* plugin, std::uint32_t index, bp_device* handle, const bp_device_info& info)
    : plugin_(plugin),
      index_(index),
      handle_(handle),
      info_(info),
      label_(device_label(*plugin, index)),
      process_(process_id()) {}

Device::~Device() {
  if (!may_release()) return;
  remove_profiled(this);
  queue_.reset();
  imported_queues_.clear();
  if (imported_memory_ != nullptr)
    enter_void("buffer_release", [&] { api().buffer_release(imported_memory_); });
  const std::uint64_t live = counters_.live_bytes.load();
  if (live != 0) {
    log(LogLevel::kWarning,
        label_ + " is closed while " + std::to_string(live) + " bytes of it are in use");
  }
  const ProcessStateGuard guard(label_ + ": device_close");
  enter_void("device_close", [&] { api().device_close(handle_); });
}

const bp_plugin_api& Device::api() const { return plugin_->api(); }

std::uint64_t Device::alignment_bytes() const {
  if (info_.offset_alignment_bytes != 0) return info_.offset_alignment_bytes;
  if (info_.buffer_alignment_bytes != 0) return info_.buffer_alignment_bytes;
  return kGuessedAlignmentBytes;
}

std::unique_lock<std::mutex> Device::lock_call() {
  if ((api().flags & BP_PLUGIN_ONE_CALL_PER_DEVICE) == 0) return {};
  return std::unique_lock<std::mutex>(call_mutex_);
}

std::string Device::call_text(std::string_view call) const {
  return label_ + ": " + std::string(call);
}

Status Device::check_usable(std::string_view call) const {
  if (process_id() == process_ && !is_given_up()) [[likely]]
    return {};
  if (is_given_up())
    return {Code::kDeviceLost, call_text(call) + " was not called: the device was given up."};
  return check_process(call);
}

Status Device::check_process(std::string_view call) const {
  if (process_id() == process_) [[likely]]
    return {};
  return {Code::kUnsupported,
          call_text(call) +
              " in a child of fork(), which did not open the device itself; start the "
              "child with spawn, or load plugins after the fork."};
}

bool Device::loses_memory() const {
  return plugin_->is_isolated() && !IsolatedPlugin::of(plugin_->handle()).shares_memory(index_);
}

bool Device::may_release() const { return process_id() == process_ && !is_given_up(); }

void Device::distrust(const std::string& what) {
  if (is_distrusted_.exchange(true)) return;
  log(LogLevel::kError, label_ + " gave a wrong result: " + what +
                            "; programs that verify their results run with PyTorch from now on");
}

Status Device::noted(Status status) {
  if (status.code() == Code::kDeviceLost && !is_lost_.exchange(true))
    log(LogLevel::kError, label_ + " was lost; what can, runs with PyTorch" +
                              (plugin_->is_isolated() ? "" : " from now on") + ": " +
                              status.message());
  if (status.code() != Code::kOutOfMemory) [[likely]]
    return status;
  std::string text = status.message() + "; " + label_ + " has " +
                     std::to_string(counters_.live_bytes.load(std::memory_order_relaxed)) +
                     " bytes in use";
  if (info_.memory_bytes != 0) text += " of " + std::to_string(info_.memory_bytes);
  return {Code::kOutOfMemory, std::move(text)};
}

template <class Entry>
Status Device::enter(std::string_view call, Entry&& entry) {
  const std::unique_lock<std::mutex> lock = lock_call();
  return noted(call_plugin({label_, call, {}}, std::forward<Entry>(entry)));
}

template <class Entry>
void Device::enter_void(std::string_view call, Entry&& entry) {
  const std::unique_lock<std::mutex> lock = lock_call();
  call_plugin_void({label_, call, {}}, std::forward<Entry>(entry), [&] { return call_text(call); });
}

Result<DeviceBuffer> Device::allocate(std::uint64_t bytes) {
  if (bytes == 0) return DeviceBuffer();  // an empty tensor binds nothing
  const std::string call = "buffer_create of " + std::to_string(bytes) + " bytes";
  BP_RETURN_IF_ERROR(check_usable(call));
  if (info_.buffer_limit_bytes != 0 && bytes > info_.buffer_limit_bytes) {
    return Status(Code::kOutOfMemory, call_text(call) +
                                          " failed: the largest buffer of this device has " +
                                          std::to_string(info_.buffer_limit_bytes) + " bytes.");
  }
  bp_buffer* buffer = nullptr;
  const auto create = [&] { return api().buffer_create(handle_, bytes, &buffer); };
  Status status = enter(call, create);
  if (status.code() == Code::kOutOfMemory) {
    trim();
    buffer = nullptr;
    status = enter(call, create);
  }
  if (!status.ok()) return status;
  if (buffer == nullptr) {
    return Status(Code::kInternal, call_text(call) + " succeeded without a buffer.");
  }
  if (!live_buffers_.add(buffer))
    return Status(Code::kInternal, in_use_text(call_text(call), "a buffer"));
  const std::uint64_t live =
      counters_.live_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  raise_to(counters_.peak_bytes, live);
  begin_use();
  return DeviceBuffer(this, buffer, bytes);
}

void Device::release_buffer(bp_buffer* buffer, std::uint64_t bytes) {
  counters_.live_bytes.fetch_sub(bytes, std::memory_order_relaxed);
  end_use();
  if (!may_release()) return;
  live_buffers_.remove(buffer);
  enter_void("buffer_release", [&] { api().buffer_release(buffer); });
}

void Device::count_copy(const bp_range& source, const bp_range& target, CopyCause cause) {
  if (source.buffer == nullptr)
    count_upload(target.size_bytes, cause);
  else if (target.buffer == nullptr)
    count_download(target.size_bytes, cause);
}

void Device::count_upload(std::uint64_t bytes, CopyCause cause) {
  const auto at = static_cast<std::size_t>(cause);
  counters_.to_device_bytes[at].fetch_add(bytes, std::memory_order_relaxed);
  counters_.to_device_count[at].fetch_add(1, std::memory_order_relaxed);
}

void Device::count_download(std::uint64_t bytes, CopyCause cause) {
  const auto at = static_cast<std::size_t>(cause);
  counters_.from_device_bytes[at].fetch_add(bytes, std::memory_order_relaxed);
  counters_.from_device_count[at].fetch_add(1, std::memory_order_relaxed);
}

Status Device::copy_async(const bp_range& source, const bp_range& target, CopyCause cause,
                          const bp_order& order) {
  BP_RETURN_IF_ERROR(check_usable("copy"));
  // An empty tensor has no memory at either end; the order is still kept.
  if (source.size_bytes != target.size_bytes ||
      (source.size_bytes != 0 && source.buffer == nullptr && target.buffer == nullptr)) {
    return {Code::kInvalidArgument,
            call_text("copy of ") + std::to_string(source.size_bytes) + " bytes to a range of " +
                std::to_string(target.size_bytes) +
                " bytes; expected equal sizes and at least one end on the device."};
  }
  const bool ordered = order.signal != nullptr || order.wait_count != 0;
  if (source.size_bytes == 0 && !ordered) return {};
  bp_copy_args args{};
  args.struct_size = sizeof(args);
  args.source = source;
  args.target = target;
  args.order = order;
  {
    const std::unique_lock<std::mutex> lock = lock_call();
    BP_RETURN_IF_ERROR(noted(call_plugin(
        {label_, "copy", {}}, [&] { return api().copy(handle_, &args); },
        [&] { return call_text("copy of ") + std::to_string(source.size_bytes) + " bytes"; })));
  }
  if (source.size_bytes != 0) count_copy(source, target, cause);
  return {};
}

Status Device::copy_to_device(const void* source, const bp_range& target, CopyCause cause) {
  // Without a signal the plugin is done with the host memory when it returns.
  const bp_range host = host_range(const_cast<void*>(source), target.size_bytes);
  return copy_async(host, target, cause, bp_order{});
}

Status Device::copy_from_device(const bp_range& source, void* target, CopyCause cause) {
  return copy_async(source, host_range(target, source.size_bytes), cause, bp_order{});
}

Status Device::copy_on_device(const bp_range& source, const bp_range& target) {
  if (!has_streams() || source.size_bytes == 0) {
    return copy_async(source, target, CopyCause::kOther, bp_order{});
  }
  BP_ASSIGN_OR_RETURN(bp_event* const done, create_event());
  bp_order order{};
  order.signal = done;
  Status status = copy_async(source, target, CopyCause::kOther, order);
  if (status.ok()) status = wait(done);
  release_event(done);
  return status;
}

Result<bp_stream*> Device::create_stream() {
  if (!has_streams()) return static_cast<bp_stream*>(nullptr);
  BP_RETURN_IF_ERROR(check_usable("stream_create"));
  bp_stream* stream = nullptr;
  BP_RETURN_IF_ERROR(enter("stream_create", [&] { return api().stream_create(handle_, &stream); }));
  if (stream == nullptr) {
    return Status(Code::kInternal, call_text("stream_create") + " succeeded without a stream.");
  }
  return stream;
}

void Device::release_stream(bp_stream* stream) {
  if (stream == nullptr || !may_release()) return;
  enter_void("stream_release", [&] { api().stream_release(stream); });
}

Result<bp_event*> Device::create_event() {
  if (!has_streams()) return static_cast<bp_event*>(nullptr);
  BP_RETURN_IF_ERROR(check_usable("event_create"));
  bp_event* event = nullptr;
  BP_RETURN_IF_ERROR(enter("event_create", [&] { return api().event_create(handle_, &event); }));
  if (event == nullptr) {
    return Status(Code::kInternal, call_text("event_create") + " succeeded without an event.");
  }
  if (!live_events_.add(event))
    return Status(Code::kInternal, in_use_text(call_text("event_create"), "an event"));
  return event;
}

void Device::release_event(bp_event* event) {
  if (event == nullptr || !may_release()) return;
  live_events_.remove(event);
  enter_void("event_release", [&] { api().event_release(event); });
}

Result<bool> Device::wait_for(bp_event* event, std::uint64_t timeout_ns) {
  if (event == nullptr) return true;
  BP_RETURN_IF_ERROR(check_usable("event_wait"));
  if (timeout_ns != 0) {
    // Time is up, or the work failed: the question below says which.
    static_cast<void>(
        enter("event_wait", [&] { return api().event_wait(event, timeout_ns); }).ok());
  }
  std::int32_t done = 0;
  BP_RETURN_IF_ERROR(enter("event_query", [&] { return api().event_query(event, &done); }));
  return done != 0;
}

Result<bp_device_counters> Device::plugin_counters() {
  bp_device_counters out{};
  out.struct_size = sizeof out;
  out.health = BP_HEALTH_OK;
  if (api().device_counters == nullptr) return out;
  BP_RETURN_IF_ERROR(check_usable("device_counters"));
  BP_RETURN_IF_ERROR(
      enter("device_counters", [&] { return api().device_counters(handle_, &out); }));
  return out;
}

Result<DeviceQueue*> Device::queue() {
  BP_RETURN_IF_ERROR(check_process("stream_create"));
  {
    const std::lock_guard lock(queue_mutex_);
    if (queue_) return queue_.get();
  }
  BP_ASSIGN_OR_RETURN(bp_stream* const stream, create_stream());
  auto made = std::make_unique<DeviceQueue>(*this, stream);
  const std::lock_guard lock(queue_mutex_);
  if (!queue_) queue_ = std::move(made);  // else another thread was faster
  return queue_.get();
}

std::string_view Device::torch_device() const {
  if (api().memory_import == nullptr || !has_streams_ || info_.torch_device.data == nullptr)
    return {};
  return {info_.torch_device.data, info_.torch_device.size};
}

Result<bp_buffer*> Device::imported_memory() {
  BP_RETURN_IF_ERROR(check_process("memory_import"));
  {
    const std::lock_guard lock(queue_mutex_);
    if (imported_memory_ != nullptr) return imported_memory_;
  }
  BP_RETURN_IF_ERROR(check_usable("memory_import"));
  bp_buffer* made = nullptr;
  BP_RETURN_IF_ERROR(enter("memory_import", [&] { return api().memory_import(handle_, &made); }));
  if (made == nullptr)
    return Status(Code::kInternal, call_text("memory_import") + " succeeded without a buffer.");
  bp_buffer* surplus = made;
  {
    const std::lock_guard lock(queue_mutex_);
    if (imported_memory_ == nullptr) imported_memory_ = std::exchange(surplus, nullptr);
    made = imported_memory_;
  }
  if (surplus != nullptr)  // another thread was faster
    enter_void("buffer_release", [&] { api().buffer_release(surplus); });
  return made;
}

Result<DeviceQueue*> Device::queue_over(std::uint64_t stream_handle) {
  BP_RETURN_IF_ERROR(check_process("stream_import"));
  {
    const std::lock_guard lock(queue_mutex_);
    if (const auto known = imported_queues_.find(stream_handle); known != imported_queues_.end())
      return known->second.get();
  }
  BP_RETURN_IF_ERROR(check_usable("stream_import"));
  bp_stream* stream = nullptr;
  BP_RETURN_IF_ERROR(
      enter("stream_import", [&] { return api().stream_import(handle_, stream_handle, &stream); }));
  if (stream == nullptr)
    return Status(Code::kInternal, call_text("stream_import") + " succeeded without a stream.");
  auto made = std::make_unique<DeviceQueue>(*this, stream);
  const std::lock_guard lock(queue_mutex_);
  return imported_queues_.try_emplace(stream_handle, std::move(made)).first->second.get();
}

Status Device::give_up(const std::string& why, Code code) {
  is_given_up_ = true;
  is_lost_ = true;
  log(LogLevel::kError, call_text("event_wait") + " " + why +
                            "; the device is given up: what can, runs with PyTorch from now on");
  return {code, call_text("event_wait") + " " + why + "; the device was given up."};
}

Status Device::wait(bp_event* event, std::string_view about) {
  if (event == nullptr) return {};
  BP_RETURN_IF_ERROR(check_usable("event_wait"));
  const CallScope all(label_, "event_wait", about);  // one wait to who looks at it, not its slices
  std::optional<WaitLimit> limit;                    // of a wait that is longer than a slice
  for (;;) {
    std::int32_t done = 0;
    Status status = enter("event_wait", [&] { return api().event_wait(event, kWaitSliceNs); });
    if (!status.ok()) {
      // A wait that took too long, work that failed, or a wait that failed: then the work may still
      // run, in memory that goes with the call.
      const bool is_slice = status.code() == Code::kTimeout;
      Status asked = enter("event_query", [&] { return api().event_query(event, &done); });
      if (done == 0 && asked.ok()) {
        if (!limit) limit.emplace(binds_host_memory());
        if (!is_slice) {
          limit->end_soon();
          std::this_thread::sleep_for(kPollPause);
        }
        if (!limit->is_over()) continue;
        return limit->is_interrupted()
                   ? give_up("was interrupted", Code::kCancelled)
                   : give_up(is_slice ? "did not end within " + limit->text()
                                      : "failed (" + status.message() + ") and the work goes on",
                             Code::kDeviceLost);
      }
      if (is_slice) status = std::move(asked);
    }
    if (status.ok() && limit && limit->is_interrupted())
      return {Code::kCancelled, call_text("event_wait") + " was interrupted."};
    return status;
  }
}

void Device::add_trim_hook(Trim hook, void* user) {
  const std::lock_guard lock(trim_mutex_);
  trim_hooks_.push_back({hook, user, {}});
}

void Device::add_trim_hook(Trim hook, std::weak_ptr<void> user) {
  const std::lock_guard lock(trim_mutex_);
  if (trim_hooks_.size() == trim_hooks_.capacity())
    std::erase_if(trim_hooks_,
                  [](const TrimHook& h) { return h.user == nullptr && h.owner.expired(); });
  trim_hooks_.push_back({hook, nullptr, std::move(user)});
}

void Device::trim() {
  std::vector<TrimHook> hooks;
  {
    const std::lock_guard lock(trim_mutex_);
    hooks = trim_hooks_;
  }
  for (const TrimHook& hook : hooks) {
    if (hook.user != nullptr)
      hook.hook(this, hook.user);
    else if (const std::shared_ptr<void> owner = hook.owner.lock())
      hook.hook(this, owner.get());
  }
}

}  // namespace backplane::runtime
