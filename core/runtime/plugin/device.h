// One device of a plugin: memory, copies, counters. RAII over the C ABI; every failure is a Status
// that names plugin, device and call.
#pragma once

#include <backplane/plugin.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/plugin/compile_faults.h"
#include "core/runtime/plugin/device_queue.h"
#include "core/runtime/plugin/live_handles.h"

namespace backplane::runtime {

class Plugin;
class Device;

// Why bytes crossed between host and device.
enum class CopyCause : std::uint8_t { kInput, kOutput, kWeight, kFallback, kSaved, kOther };
inline constexpr int kCopyCauseCount = 6;
std::string_view copy_cause_name(CopyCause cause);

struct CopyCounters {
  std::array<std::atomic<std::uint64_t>, kCopyCauseCount> to_device_bytes{}, from_device_bytes{};
  std::array<std::atomic<std::uint64_t>, kCopyCauseCount> to_device_count{}, from_device_count{};
  std::atomic<std::uint64_t> live_bytes{0}, peak_bytes{0};
  void reset();  // all but live_bytes; peak becomes live
};

// Owned device memory. Released after the work that uses it: the owner waits for its event first.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Device* device, bp_buffer* buffer, std::uint64_t bytes)
      : device_(device), buffer_(buffer), bytes_(bytes) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();
  bp_buffer* get() const { return buffer_; }
  std::uint64_t bytes() const { return bytes_; }
  explicit operator bool() const { return buffer_ != nullptr; }

 private:
  Device* device_ = nullptr;
  bp_buffer* buffer_ = nullptr;
  std::uint64_t bytes_ = 0;
};

// The plugin's checked description of one device; opens nothing.
Result<bp_device_info> describe_device(const Plugin& plugin, std::uint32_t index);

class Device {
 public:
  // Describes and opens. Plugin::device calls it once per index.
  static Result<std::unique_ptr<Device>> open(Plugin* plugin, std::uint32_t index);
  Device(Plugin* plugin, std::uint32_t index, bp_device* handle, const bp_device_info& info);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  Plugin& plugin() const { return *plugin_; }
  const bp_plugin_api& api() const;
  bp_device* handle() const { return handle_; }
  std::uint32_t index() const { return index_; }
  const bp_device_info& info() const { return info_; }
  const std::string& label() const { return label_; }  // "reference:0"
  bool binds_host_memory() const { return (info_.flags & BP_DEVICE_BINDS_HOST_MEMORY) != 0; }
  bool has_streams() const { return has_streams_; }
  std::uint64_t alignment_bytes() const;

  // Held over a call when the plugin asks for it (BP_PLUGIN_ONE_CALL_PER_DEVICE), else empty. The
  // members of this class take it themselves; compile and execute are called under it by their
  // callers.
  std::unique_lock<std::mutex> lock_call();

  // An error in a child of fork() that did not open the device itself, and of a device that was
  // given up.
  Status check_usable(std::string_view call) const;
  // The first of the two, without a lock.
  Status check_process(std::string_view call) const;
  // Its work was no longer waited for: $BACKPLANE_DEADLINE seconds were over, or Ctrl-C was
  // pressed. What it may still write to is never given back: memory of the device, and whoever lent
  // it his own keeps that. Devices that bind the host's memory are waited for without an end.
  bool is_given_up() const { return is_given_up_.load(std::memory_order_relaxed); }

  // Its memory goes with a worker process, and another one may take its place.
  bool loses_memory() const;

  // It gave a result that was not PyTorch's to somebody who looked: told once, with what was wrong.
  // Whoever looks goes elsewhere from then on, until the process ends.
  void distrust(const std::string& what);
  bool is_distrusted() const { return is_distrusted_.load(std::memory_order_relaxed); }

  // Out of memory is retried once after trim().
  Result<DeviceBuffer> allocate(std::uint64_t bytes);
  // Copies and waits. Counted by cause where one end is host memory; zero bytes is a no-op.
  Status copy_to_device(const void* source, const bp_range& target, CopyCause cause);
  Status copy_from_device(const bp_range& source, void* target, CopyCause cause);
  Status copy_on_device(const bp_range& source, const bp_range& target);
  // In stream order, without waiting (on a device without streams: at once). Host memory must stay
  // untouched until `order.signal` completed.
  Status copy_async(const bp_range& source, const bp_range& target, CopyCause cause,
                    const bp_order& order);
  // The device's own stream and a reusable event; null on a device without streams.
  Result<bp_stream*> create_stream();
  void release_stream(bp_stream* stream);
  Result<bp_event*> create_event();
  void release_event(bp_event* event);
  // `about`: the work that is waited for, for the call board.
  Status wait(bp_event* event, std::string_view about = {});
  // Whether it completed within that time. A failure of the work is the answer's.
  Result<bool> wait_for(bp_event* event, std::uint64_t timeout_ns);
  // Made at the first question, kept until the device closes.
  Result<DeviceQueue*> queue();
  // PyTorch's own device that this one is ("cuda:0"), where the plugin takes its tensors as they
  // are; else empty.
  std::string_view torch_device() const;
  // The buffer over all memory of that device: offsets are addresses. Kept until the device closes.
  Result<bp_buffer*> imported_memory();
  // The queue over one of PyTorch's streams there. Likewise.
  Result<DeviceQueue*> queue_over(std::uint64_t stream_handle);

  // How many objects of the device are alive: buffers, executables, and who else says so.
  void begin_use() { users_.fetch_add(1, std::memory_order_relaxed); }
  void end_use() { users_.fetch_sub(1, std::memory_order_relaxed); }
  // Tells a loss of the device, once. Gives back what it is given; where memory lacks, with what is
  // in use.
  Status noted(Status status);
  bool is_used() const { return users_.load(std::memory_order_relaxed) != 0 || is_given_up(); }

  LiveHandles& live_executables() { return live_executables_; }

  // What it claimed and failed to compile.
  CompileFaults& compile_faults() { return compile_faults_; }
  const CompileFaults& compile_faults() const { return compile_faults_; }

  CopyCounters& counters() { return counters_; }
  // What PyTorch copied between the host and its own device that this one is.
  void count_upload(std::uint64_t bytes, CopyCause cause);
  void count_download(std::uint64_t bytes, CopyCause cause);
  // What the plugin says about itself; of one that says nothing, that all is well.
  Result<bp_device_counters> plugin_counters();
  // Whoever keeps memory of the device for later registers what gives it up.
  using Trim = void (*)(Device* device, void* user);
  void add_trim_hook(Trim hook, void* user);  // lives as long as the device
  void add_trim_hook(Trim hook, std::weak_ptr<void> user);
  void trim();

 private:
  Status probe_streams();
  // Of a handle of the device: here, and not in its hands for good.
  bool may_release() const;
  Status give_up(const std::string& why, Code code);

  struct TrimHook {
    Trim hook;
    void* user;  // null: `owner`, while it lives
    std::weak_ptr<void> owner;
  };
  friend class DeviceBuffer;
  // One call into the plugin, under the device's lock where it has one.
  template <class Entry>
  Status enter(std::string_view call, Entry&& entry);
  template <class Entry>
  void enter_void(std::string_view call, Entry&& entry);
  void release_buffer(bp_buffer* buffer, std::uint64_t bytes);
  void count_copy(const bp_range& source, const bp_range& target, CopyCause cause);
  std::string call_text(std::string_view call) const;

  Plugin* plugin_;
  std::uint32_t index_;
  bp_device* handle_;
  bp_device_info info_;  // strings and arrays are kept by the plugin
  std::string label_;
  pid_t process_;  // the one that opened it
  bool has_streams_ = false;
  CopyCounters counters_;
  CompileFaults compile_faults_;
  LiveHandles live_buffers_, live_events_, live_executables_;
  std::atomic<std::int64_t> users_{0};
  std::atomic<bool> is_lost_{false}, is_given_up_{false}, is_distrusted_{false};
  std::mutex queue_mutex_;  // guards what follows; not held over a plugin call
  std::unique_ptr<DeviceQueue> queue_;
  std::map<std::uint64_t, std::unique_ptr<DeviceQueue>> imported_queues_;  // by PyTorch's handle
  bp_buffer* imported_memory_ = nullptr;
  std::mutex call_mutex_;  // see lock_call
  std::mutex trim_mutex_;  // guards trim_hooks_; not held over a hook
  std::vector<TrimHook> trim_hooks_;
};

}  // namespace backplane::runtime
