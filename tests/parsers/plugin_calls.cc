// Calls of a plugin's table in any order, with any sizes and ranges, as far as the headers let a
// host: handles are those that live, memory of the host is as long as it is said to be, and what is
// queued has ended before its operands go. Whatever is wrong is an error, and nothing is lost.
#include <backplane/plugin.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/runtime/host/error.h"
#include "core/runtime/plugin/device.h"
#include "core/runtime/plugin/plugin.h"
#include "tests/parsers/fuzz_target.h"

namespace {

using namespace backplane;           // NOLINT(google-build-using-namespace)
using namespace backplane::runtime;  // NOLINT(google-build-using-namespace)

constexpr std::uint64_t kHostBytes = 4096;

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  std::uint8_t next() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  // Small ones, and those around the limits.
  std::uint64_t size() {
    constexpr std::array<std::uint64_t, 8> kSpecial{0,    1,    63,        64,
                                                    4095, 4096, 1ULL << 40, ~0ULL};
    const std::uint8_t kind = next();
    return kind < 128 ? std::uint64_t{kind} * 4 : kSpecial[kind % kSpecial.size()];
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

struct Loaded {
  std::unique_ptr<Plugin> plugin;
  Device* device = nullptr;
};

// The plugin without the host's own checks around it.
Loaded& loaded() {
  static auto* const made = [] {
    auto* out = new Loaded;
    auto plugin = Plugin::load(BACKPLANE_FUZZED_PLUGIN);
    if (!plugin.ok()) std::abort();
    out->plugin = std::move(*plugin);
    const auto device = out->plugin->device(0);
    if (!device.ok()) std::abort();
    out->device = *device;
    return out;
  }();
  return *made;
}

class Session {
 public:
  explicit Session(Bytes bytes)
      : bytes_(bytes), api_(loaded().device->api()), device_(loaded().device->handle()) {}
  ~Session() {
    finish();
    for (bp_buffer* buffer : buffers_) api_.buffer_release(buffer);
    for (bp_event* event : events_) api_.event_release(event);
    for (bp_stream* stream : streams_) api_.stream_release(stream);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void run() {
    while (!bytes_.empty()) step();
  }

 private:
  template <class T>
  T* one(const std::vector<T*>& from) {
    return from.empty() ? nullptr : from[bytes_.next() % from.size()];
  }
  template <class T, class Create>
  void add(std::vector<T*>& to, Create create) {
    constexpr std::size_t kMost = 16;
    T* made = nullptr;
    if (to.size() < kMost && good(create(&made))) to.push_back(made);
  }
  template <class T, class Release>
  void drop(std::vector<T*>& from, Release release) {
    if (from.empty()) return;
    finish();
    const auto at = from.begin() + bytes_.next() % static_cast<std::ptrdiff_t>(from.size());
    release(*at);
    from.erase(at);
  }
  // An error is an answer like others; it has a text, and is given back.
  bool good(bp_error* error) {
    if (error == nullptr) return true;
    return take_error(error, "call").ok();
  }
  // Everything that was queued.
  void finish() {
    for (bp_stream* stream : streams_) {
      bp_event* event = nullptr;
      if (!good(api_.event_create(device_, &event))) std::abort();
      bp_copy_args args{};
      args.struct_size = sizeof args;
      args.order.stream = stream;
      args.order.signal = event;
      if (good(api_.copy(device_, &args))) (void)good(api_.event_wait(event, 10'000'000'000));
      api_.event_release(event);
    }
  }
  bp_range range() {
    bp_range out{};
    if (bytes_.next() % 2 == 0) {
      out.host = host_.data();
      out.size_bytes = std::min(bytes_.size(), kHostBytes);
    } else {
      out.buffer = one(buffers_);
      out.offset_bytes = bytes_.size();
      out.size_bytes = bytes_.size();
    }
    return out;
  }
  void copy() {
    bp_copy_args args{};
    args.struct_size = sizeof args;
    args.source = range();
    args.target = range();
    if (bytes_.next() % 4 != 0) {  // mostly as the headers want it
      const std::uint64_t bytes = std::min(args.source.size_bytes, args.target.size_bytes);
      args.source.size_bytes = args.target.size_bytes = bytes;
    }
    if (args.source.buffer == nullptr && args.target.buffer == nullptr) return;
    bp_event* wait = nullptr;
    if (bytes_.next() % 2 == 0) {
      args.order.stream = one(streams_);
      if (args.order.stream != nullptr) args.order.signal = one(events_);
      wait = args.order.stream != nullptr ? one(events_) : nullptr;
      if (wait != nullptr && wait != args.order.signal) {
        args.order.waits = &wait;
        args.order.wait_count = 1;
      }
    }
    (void)good(api_.copy(device_, &args));
    // The host's memory is the next copy's, too.
    finish();
  }
  void step() {
    switch (bytes_.next() % 9) {
      case 0:
        add(buffers_,
            [&](bp_buffer** out) { return api_.buffer_create(device_, bytes_.size(), out); });
        break;
      case 1:
        drop(buffers_, api_.buffer_release);
        break;
      case 2:
        add(streams_, [&](bp_stream** out) { return api_.stream_create(device_, out); });
        break;
      case 3:
        drop(streams_, api_.stream_release);
        break;
      case 4:
        add(events_, [&](bp_event** out) { return api_.event_create(device_, out); });
        break;
      case 5:
        drop(events_, api_.event_release);
        break;
      case 6: {
        std::int32_t done = 0;
        if (bp_event* const event = one(events_)) (void)good(api_.event_query(event, &done));
        break;
      }
      case 7:
        if (bp_event* const event = one(events_)) (void)good(api_.event_wait(event, 0));
        break;
      default:
        copy();
    }
  }

  Bytes bytes_;
  const bp_plugin_api& api_;
  bp_device* device_;
  std::vector<bp_buffer*> buffers_;
  std::vector<bp_stream*> streams_;
  std::vector<bp_event*> events_;
  std::array<std::uint8_t, kHostBytes> host_{};
};

}  // namespace

BACKPLANE_FUZZ_TARGET(plugin_calls) {
  if (size > 4096) return 0;
  Session({data, size}).run();
  return 0;
}
