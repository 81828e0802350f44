// The table of an isolated plugin: what each entry sends to the worker, and what stays here.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "core/runtime/host/error.h"
#include "core/runtime/host/host_services.h"
#include "core/runtime/isolate/forwarded.h"

namespace backplane::runtime {

namespace forward {
namespace {

// ---- Device

std::uint32_t device_count(bp_plugin* plugin) { return IsolatedPlugin::of(plugin).device_count(); }

bp_error* device_describe(bp_plugin* plugin, std::uint32_t index, bp_device_info* out_info) {
  const bp_device_info* shown = nullptr;
  if (bp_error* const error = IsolatedPlugin::of(plugin).describe(index, shown)) return error;
  std::memcpy(out_info, shown, std::min(out_info->struct_size, sizeof *shown));
  return nullptr;
}

bp_error* device_open(bp_plugin* plugin, std::uint32_t index, bp_device** out_device) {
  auto& isolated = IsolatedPlugin::of(plugin);
  auto device = std::make_unique<ForwardedDevice>(isolated, index, isolated.shares_memory(index));
  IsolatedPlugin::Place place;
  std::uint64_t remote = 0;
  if (bp_error* const error = locate(*device, /*begins_anew=*/true, place, remote)) return error;
  *out_device = handle_of<bp_device>(device.release());
  return nullptr;
}

void device_close(bp_device* handle) {
  const std::unique_ptr<ForwardedDevice> device(&device_of(handle));
  WireWriter request;
  request.put(device->remote);
  device->plugin.tell(device->number, WorkerEntry::kDeviceClose, request);
}

bp_error* device_counters(bp_device* handle, bp_device_counters* out_counters) {
  std::string answer;
  if (bp_error* const error = ask_of(device_of(handle), WorkerEntry::kDeviceCounters, answer))
    return error;
  WireReader in(answer);
  bp_device_counters counters = in.get<bp_device_counters>();
  if (!in.ok()) return unparsed();
  counters.struct_size = std::min(out_counters->struct_size, sizeof counters);
  std::memcpy(out_counters, &counters, counters.struct_size);
  return nullptr;
}

// ---- Buffer

bp_error* buffer_create(bp_device* handle, std::uint64_t bytes, bp_buffer** out_buffer) {
  ForwardedDevice& device = device_of(handle);
  auto buffer = std::make_unique<ForwardedBuffer>(device);
  if (device.shares_memory) {
    Result<SharedBlock> block = take_block(device.plugin.memory(), bytes);
    if (!block.ok()) return make_error(BP_OUT_OF_MEMORY, block.status().message());
    buffer->block = std::move(*block);
  } else {
    WireWriter rest;
    rest.put(bytes);
    if (bp_error* const error =
            ask_object(device, WorkerEntry::kBufferCreate, rest, buffer->number, buffer->remote))
      return error;
    if (buffer->remote == 0) return nullptr;
  }
  *out_buffer = handle_of<bp_buffer>(buffer.release());
  return nullptr;
}

void buffer_release(bp_buffer* handle) {
  if (handle == nullptr) return;
  const std::unique_ptr<ForwardedBuffer> buffer(&of<ForwardedBuffer>(handle));
  if (buffer->device.shares_memory) return;
  WireWriter request;
  request.put(buffer->remote);
  buffer->device.plugin.tell(buffer->number, WorkerEntry::kBufferRelease, request);
}

char* shared_address(const bp_range& range) {
  if (range.buffer == nullptr) return static_cast<char*>(range.host) + range.offset_bytes;
  return of<ForwardedBuffer>(range.buffer).block.data() + range.offset_bytes;
}

bp_error* copy(bp_device* handle, const bp_copy_args* args) {
  ForwardedDevice& device = device_of(handle);
  const bp_range &source = args->source, &target = args->target;
  if (device.shares_memory) {  // such devices have no streams: nothing is under way
    if (source.size_bytes != 0)
      std::memmove(shared_address(target), shared_address(source), source.size_bytes);
    return nullptr;
  }
  IsolatedPlugin::Place place;
  std::uint64_t remote = 0;
  if (bp_error* const error = locate(device, /*begins_anew=*/true, place, remote)) return error;
  const bool is_upload = source.host != nullptr, is_download = target.host != nullptr;
  SharedBlock staged;
  WireRange through;
  if (is_upload || is_download) {
    Result<SharedBlock> block = take_block(device.plugin.memory(), source.size_bytes);
    if (!block.ok()) return make_error(BP_OUT_OF_MEMORY, block.status().message());
    staged = std::move(*block);
    through = {0, staged.offset(), source.size_bytes, 1, 0};
  }
  if (is_upload)
    std::memcpy(staged.data(), static_cast<const char*>(source.host) + source.offset_bytes,
                source.size_bytes);
  WireWriter request;
  request.put(remote);
  if (is_upload)
    request.put(through);
  else if (bp_error* const error = put_range(request, place.number, source))
    return error;
  if (is_download)
    request.put(through);
  else if (bp_error* const error = put_range(request, place.number, target))
    return error;
  if (bp_error* const error = put_order(request, place.number, args->order)) return error;
  // What arrives in shared memory is taken out here, so the worker waits for it.
  request.put<std::uint32_t>(is_download ? 1 : 0);
  std::string answer;
  if (bp_error* const error = device.plugin.ask(place, {WorkerEntry::kCopy}, request, answer))
    return error;
  if (is_download)
    std::memcpy(static_cast<char*>(target.host) + target.offset_bytes, staged.data(),
                source.size_bytes);
  if (is_upload && args->order.signal != nullptr) {
    auto& event = of<ForwardedEvent>(args->order.signal);
    event.staged.clear();  // of a signal before, which is complete
    event.staged.push_back(std::move(staged));
  }
  return nullptr;
}

void shutdown(bp_plugin* plugin) { IsolatedPlugin::of(plugin).finish(); }

// ---- Streams and events

bp_error* stream_create(bp_device* handle, bp_stream** out_stream) {
  ForwardedDevice& device = device_of(handle);
  auto stream = std::make_unique<ForwardedStream>(device);
  if (bp_error* const error =
          ask_object(device, WorkerEntry::kStreamCreate, {}, stream->number, stream->remote))
    return error;
  if (stream->remote != 0) *out_stream = handle_of<bp_stream>(stream.release());
  return nullptr;
}

void stream_release(bp_stream* handle) {
  if (handle == nullptr) return;
  const std::unique_ptr<ForwardedStream> stream(&of<ForwardedStream>(handle));
  WireWriter request;
  request.put(stream->remote);
  stream->device.plugin.tell(stream->number, WorkerEntry::kStreamRelease, request);
}

bp_error* event_create(bp_device* handle, bp_event** out_event) {
  ForwardedDevice& device = device_of(handle);
  auto event = std::make_unique<ForwardedEvent>(device);
  if (bp_error* const error =
          ask_object(device, WorkerEntry::kEventCreate, {}, event->number, event->remote))
    return error;
  if (event->remote != 0) *out_event = handle_of<bp_event>(event.release());
  return nullptr;
}

void event_release(bp_event* handle) {
  if (handle == nullptr) return;
  const std::unique_ptr<ForwardedEvent> event(&of<ForwardedEvent>(handle));
  WireWriter request;
  request.put(event->remote);
  // Work that still reads shared memory is waited for in the worker.
  request.put<std::uint32_t>(event->staged.empty() ? 0 : 1);
  event->device.plugin.tell(event->number, WorkerEntry::kEventRelease, request);
}

bp_error* event_query(bp_event* handle, std::int32_t* out_done) {
  auto& event = of<ForwardedEvent>(handle);
  WireWriter request;
  request.put(event.remote);
  std::string answer;
  bp_error* const error =
      event.device.plugin.ask(event.number, {WorkerEntry::kEventQuery}, request, answer);
  WireReader in(answer);
  *out_done = error != nullptr ? 1 : in.get<std::int32_t>();
  if (*out_done != 0) event.staged.clear();
  return error;
}

bp_error* event_wait(bp_event* handle, std::uint64_t timeout_ns) {
  auto& event = of<ForwardedEvent>(handle);
  WireWriter request;
  request.put(event.remote);
  request.put(timeout_ns);
  std::string answer;
  const IsolatedPlugin::Question question{WorkerEntry::kEventWait, {}, nullptr, timeout_ns};
  bp_error* const error = event.device.plugin.ask(event.number, question, request, answer);
  if (error == nullptr) event.staged.clear();
  return error;
}

// ---- Layouts

bp_error* layout_bytes(bp_plugin* plugin, const bp_device_info* info, const bp_tensor_desc* desc,
                       std::uint64_t* out_bytes) {
  auto& isolated = IsolatedPlugin::of(plugin);
  WireWriter request;
  isolated.put_info_of(request, info);
  put_tensor(request, *desc);
  std::string answer;
  if (bp_error* const error = isolated.ask(isolated.place(/*begins_anew=*/true),
                                           {WorkerEntry::kLayoutBytes}, request, answer))
    return error;
  WireReader in(answer);
  *out_bytes = in.get<std::uint64_t>();
  return in.ok() ? nullptr : unparsed();
}

bp_error* layout_convert(bp_device* handle, const bp_tensor_desc* source_desc,
                         const bp_range* source, const bp_tensor_desc* target_desc,
                         const bp_range* target, const bp_order* order) {
  ForwardedDevice& device = device_of(handle);
  IsolatedPlugin::Place place;
  std::uint64_t remote = 0;
  if (bp_error* const error = locate(device, /*begins_anew=*/true, place, remote)) return error;
  WireWriter request;
  request.put(remote);
  put_tensor(request, *source_desc);
  put_tensor(request, *target_desc);
  if (bp_error* const error = put_range(request, place.number, *source)) return error;
  if (bp_error* const error = put_range(request, place.number, *target)) return error;
  if (bp_error* const error = put_order(request, place.number, *order)) return error;
  std::string answer;
  return device.plugin.ask(place, {WorkerEntry::kLayoutConvert}, request, answer);
}

// ---- Profile

bp_error* profile_begin(bp_device* handle) {
  std::string answer;
  return ask_of(device_of(handle), WorkerEntry::kProfileBegin, answer);
}

bp_error* profile_end(bp_device* handle, bp_profile_sink* sink) {
  std::string answer;
  if (bp_error* const error = ask_of(device_of(handle), WorkerEntry::kProfileEnd, answer))
    return error;
  WireReader in(answer);
  const auto count = in.get<std::uint64_t>();
  for (std::uint64_t i = 0; i < count && in.ok(); ++i) {
    bp_profile_range range = in.get<bp_profile_range>();
    const bp_string name = in.string();
    const std::vector<std::uint32_t> node_ids = in.array<std::uint32_t>();
    range.struct_size = sizeof range;
    range.name = name;
    range.node_ids = node_ids.data();
    range.node_count = node_ids.size();
    if (in.ok()) host_api().profile_add(sink, &range);
  }
  return in.ok() ? nullptr : unparsed();
}

}  // namespace
}  // namespace forward

// An entry that is added to the header and forgotten here is caught at compile time. Not forwarded:
// imports, of addresses and streams that only this process has.
constexpr auto kEntryCount = static_cast<std::size_t>(WorkerEntry::kProfileEnd) -
                             static_cast<std::size_t>(WorkerEntry::kHello);
constexpr std::size_t kNotForwarded = 2;
static_assert(offsetof(bp_plugin_api, device_count) +
                  (kEntryCount + kNotForwarded) * sizeof(void (*)()) ==
              sizeof(bp_plugin_api));

bp_plugin_api forwarding_table(std::uint32_t version, std::uint64_t flags, std::uint64_t present) {
  bp_plugin_api api{};
  api.struct_size = sizeof api;
  api.version = version;
  api.flags = flags;
#define BP_FORWARD(entry, kind) \
  if ((present >> static_cast<unsigned>(WorkerEntry::kind) & 1) != 0) api.entry = forward::entry
  BP_FORWARD(device_count, kDeviceCount);
  BP_FORWARD(device_describe, kDeviceDescribe);
  BP_FORWARD(device_open, kDeviceOpen);
  BP_FORWARD(device_close, kDeviceClose);
  BP_FORWARD(buffer_create, kBufferCreate);
  BP_FORWARD(buffer_release, kBufferRelease);
  BP_FORWARD(copy, kCopy);
  BP_FORWARD(claims, kClaims);
  BP_FORWARD(compile, kCompile);
  BP_FORWARD(executable_describe, kExecutableDescribe);
  BP_FORWARD(executable_release, kExecutableRelease);
  BP_FORWARD(execute, kExecute);
  BP_FORWARD(shutdown, kShutdown);
  BP_FORWARD(device_counters, kDeviceCounters);
  BP_FORWARD(stream_create, kStreamCreate);
  BP_FORWARD(stream_release, kStreamRelease);
  BP_FORWARD(event_create, kEventCreate);
  BP_FORWARD(event_release, kEventRelease);
  BP_FORWARD(event_query, kEventQuery);
  BP_FORWARD(event_wait, kEventWait);
  BP_FORWARD(layout_bytes, kLayoutBytes);
  BP_FORWARD(layout_convert, kLayoutConvert);
  BP_FORWARD(executable_workspace, kExecutableWorkspace);
  BP_FORWARD(executable_save, kExecutableSave);
  BP_FORWARD(blob_check, kBlobCheck);
  BP_FORWARD(executable_load, kExecutableLoad);
  BP_FORWARD(profile_begin, kProfileBegin);
  BP_FORWARD(profile_end, kProfileEnd);
#undef BP_FORWARD
  return api;
}

}  // namespace backplane::runtime
