#include "core/torch/device/guard.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>

#include "core/torch/device/devices.h"
#include "core/torch/device/memory.h"

namespace backplane::device {

namespace {

using c10::DeviceIndex;
using c10::Stream;

// Streams are names: the work of all streams of a device runs in the order of its one queue.
thread_local std::array<c10::StreamId, kDeviceLimit> t_streams{};
std::atomic<c10::StreamId> g_next_stream{1};

// An error for a device that there is not. A forked child has the names that its parent had:
// autograd asks for the streams of every backward.
DeviceIndex known_index(DeviceIndex index) {
  const DeviceIndex wanted = index < 0 ? current_device() : index;
  return find_device(wanted) != nullptr ? wanted : device_at(wanted).index();
}
Stream stream_of(c10::Device device, c10::StreamId id) {
  return Stream(Stream::UNSAFE, c10::Device(kDeviceType, known_index(device.index())), id);
}
c10::StreamId& current_stream_id(DeviceIndex index) {
  return t_streams[static_cast<std::size_t>(known_index(index))];
}

// How long an idle device may take to pass a marker.
constexpr std::uint64_t kMarkerNs = 20'000'000;

// A marker in the queue. Timed events wait for the work before them when they are recorded.
struct Event {
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  TorchDevice* device = nullptr;
  bp_event* event = nullptr;  // owned; null on a device without streams
  std::chrono::steady_clock::time_point time;
  bool is_timed = false;

  ~Event() {
    if (device) device->device().release_event(event);
  }
  void record(TorchDevice& on, bool timed) {
    device = &on;
    event = unwrap(on.device().create_event());
    check(on.queue().signal(event));
    is_timed = timed;
    if (!timed) return;
    check(on.queue().synchronize());
    time = std::chrono::steady_clock::now();
  }
  bool is_done(std::uint64_t wait_ns = 0) const {
    return event == nullptr || unwrap(device->device().wait_for(event, wait_ns));
  }
  void wait() const {
    if (event == nullptr) return;
    check(device->device().wait(event));
    check(device->queue().poll());
  }
};
Event& event_at(void* event) { return *static_cast<Event*>(event); }

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kDeviceType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const DeviceIndex index = device.index() < 0 ? device.index() : known_index(device.index());
    return {kDeviceType, exchange_device(index)};
  }
  c10::Device getDevice() const override { return {kDeviceType, current_device()}; }
  void setDevice(c10::Device device) const override {
    if (device.index() < 0) return;
    exchange_device(known_index(device.index()));
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    exchange_device(device.index());
  }
  // None before the first use: torch starts a thread per device at the first backward otherwise.
  DeviceIndex deviceCount() const noexcept override {
    return static_cast<DeviceIndex>(device_count());
  }

  c10::DeviceCapability getDeviceCapability(c10::Device /*device*/) const override {
    return {};  // all types: what a plugin lacks runs on the CPU
  }

  // Autograd asks for it in the thread that calls backward, before it looks for another to run in.
  Stream getStream(c10::Device device) const override {
    differentiate_in_this_thread();
    return stream_of(device, current_stream_id(device.index()));
  }
  Stream getDefaultStream(c10::Device device) const override { return stream_of(device, 0); }
  Stream getStreamFromGlobalPool(c10::Device device, bool /*high_priority*/) const override {
    return getNewStream(device, 0);
  }
  Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return stream_of(device, g_next_stream.fetch_add(1, std::memory_order_relaxed));
  }
  Stream exchangeStream(Stream stream) const override {
    c10::StreamId& current = current_stream_id(stream.device_index());
    const Stream before = stream_of(stream.device(), current);
    current = stream.id();
    return before;
  }
  bool queryStream(const Stream& stream) const override {
    Event event;
    event.record(device_at(stream.device_index()), false);
    return event.is_done(kMarkerNs);
  }
  void synchronizeStream(const Stream& stream) const override {
    synchronizeDevice(stream.device_index());
  }
  void synchronizeDevice(const DeviceIndex index) const override {
    check(device_at(index).queue().synchronize());
  }

  void record(void** event, const Stream& stream, const DeviceIndex /*index*/,
              const c10::EventFlag flag) const override {
    auto made = std::make_unique<Event>();
    made->record(device_at(stream.device_index()), flag == c10::EventFlag::BACKEND_DEFAULT);
    delete static_cast<Event*>(*event);
    *event = made.release();
  }
  void destroyEvent(void* event, const DeviceIndex /*index*/) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void block(void* event, const Stream& stream) const override {
    if (event == nullptr) return;
    // On the event's own device the queue's order says it already.
    if (event_at(event).device->index() != stream.device_index()) event_at(event).wait();
  }
  bool queryEvent(void* event) const override { return !event || event_at(event).is_done(); }
  void synchronizeEvent(void* event) const override {
    if (event) event_at(event).wait();
  }
  double elapsedTime(void* start, void* end, const DeviceIndex /*index*/) const override {
    TORCH_CHECK(start && end && event_at(start).is_timed && event_at(end).is_timed,
                "both events must be recorded, and made with enable_timing=True");
    const auto span = event_at(end).time - event_at(start).time;
    return std::chrono::duration<double, std::milli>(span).count();
  }
};

}  // namespace

void register_guard() {
  static const c10::impl::DeviceGuardImplRegistrar registrar(kDeviceType, new Guard);
}

}  // namespace backplane::device
