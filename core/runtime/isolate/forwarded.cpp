#include "core/runtime/isolate/forwarded.h"

#include "core/runtime/host/error.h"

namespace backplane::runtime::forward {

bp_error* unparsed() {
  return make_error(BP_INTERNAL, "its worker process gave an answer that does not parse");
}

namespace {

bp_error* open_in(const IsolatedPlugin::Place& place, const ForwardedDevice& device,
                  std::uint64_t& out_remote) {
  WireWriter request;
  request.put(device.index);
  std::string answer;
  if (bp_error* const error = device.plugin.ask(place, {WorkerEntry::kDeviceOpen}, request, answer))
    return error;
  WireReader in(answer);
  out_remote = in.get<std::uint64_t>();
  if (!in.ok()) return unparsed();
  return out_remote != 0 ? nullptr : make_error(BP_INTERNAL, "it succeeded without a device");
}

}  // namespace

bp_error* locate(ForwardedDevice& device, bool begins_anew, IsolatedPlugin::Place& out_place,
                 std::uint64_t& out_remote) {
  out_place = device.plugin.place(begins_anew);
  if (out_place.worker == nullptr) return out_place.why;
  std::unique_lock lock(device.mutex);
  device.opened.wait(lock, [&] { return !device.is_opening; });
  out_remote = device.remote;
  if (device.number == out_place.number) return nullptr;
  device.is_opening = true;
  lock.unlock();
  bp_error* const error = open_in(out_place, device, out_remote);
  lock.lock();
  device.is_opening = false;
  device.opened.notify_all();
  if (error != nullptr) return error;
  device.number = out_place.number;
  device.remote = out_remote;
  return nullptr;
}

bp_error* ask_of(ForwardedDevice& device, WorkerEntry entry, std::string& answer) {
  WireWriter request;
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(device.mutex);
    number = device.number;
    request.put(device.remote);
  }
  return device.plugin.ask(number, {entry}, request, answer);
}

bp_error* ask_object(ForwardedDevice& device, WorkerEntry entry, const WireWriter& rest,
                     std::uint64_t& out_number, std::uint64_t& out_remote) {
  IsolatedPlugin::Place place;
  std::uint64_t remote = 0;
  if (bp_error* const error = locate(device, /*begins_anew=*/true, place, remote)) return error;
  WireWriter request;
  request.put(remote);
  request.append(rest);
  std::string answer;
  if (bp_error* const error = device.plugin.ask(place, {entry}, request, answer)) return error;
  WireReader in(answer);
  out_number = place.number;
  out_remote = in.get<std::uint64_t>();
  return in.ok() ? nullptr : unparsed();
}

bp_error* put_range(WireWriter& out, std::uint64_t number, const bp_range& range) {
  WireRange wire;
  wire.offset_bytes = range.offset_bytes;
  wire.size_bytes = range.size_bytes;
  if (range.buffer != nullptr) {
    const auto& buffer = of<ForwardedBuffer>(range.buffer);
    if (buffer.device.shares_memory) {
      wire.is_shared = 1;
      wire.offset_bytes += buffer.block.offset();
    } else if (buffer.number != number) {
      return make_error(BP_DEVICE_LOST, "a buffer lived in a worker process that has ended");
    } else {
      wire.buffer = buffer.remote;
    }
  } else if (range.host != nullptr) {
    return make_error(BP_UNSUPPORTED,
                      "a range of the program's own memory, which a worker process does not see");
  }
  out.put(wire);
  return nullptr;
}

namespace {

// A stream, or an event that is to be signalled, in the worker of that number. They hold nothing,
// so that another worker makes them again.
template <class Forwarded>
bp_error* find_in(std::uint64_t number, WorkerEntry made_by, Forwarded& object,
                  std::uint64_t& out_remote) {
  std::mutex& mutex = object.device.mutex;  // threads share streams
  {
    const std::lock_guard lock(mutex);
    out_remote = object.remote;
    if (object.number == number) return nullptr;
  }
  std::uint64_t made_in = 0;
  if (bp_error* const error = ask_object(object.device, made_by, {}, made_in, out_remote))
    return error;
  if (made_in != number || out_remote == 0)
    return make_error(BP_DEVICE_LOST, "its worker process has ended");
  const std::lock_guard lock(mutex);
  if (object.number != number) {  // else another thread was faster: two are there
    object.number = number;
    object.remote = out_remote;
  }
  out_remote = object.remote;
  return nullptr;
}

}  // namespace

bp_error* put_order(WireWriter& out, std::uint64_t number, const bp_order& order) {
  std::uint64_t stream = 0, signal = 0;
  if (order.stream != nullptr)
    if (bp_error* const error =
            find_in(number, WorkerEntry::kStreamCreate, of<ForwardedStream>(order.stream), stream))
      return error;
  if (order.signal != nullptr)
    if (bp_error* const error =
            find_in(number, WorkerEntry::kEventCreate, of<ForwardedEvent>(order.signal), signal))
      return error;
  std::vector<std::uint64_t> waits;
  for (std::size_t i = 0; i < order.wait_count; ++i) {
    const auto& found = of<ForwardedEvent>(order.waits[i]);
    if (found.number != number)
      return make_error(BP_DEVICE_LOST,
                        "work that is waited for went with a worker process that has ended");
    waits.push_back(found.remote);
  }
  out.put(stream);
  out.put(signal);
  out.put_array(waits.data(), waits.size());
  return nullptr;
}

}  // namespace backplane::runtime::forward
