// The table of an isolated plugin: what each entry sends to the worker, and what stays here. A
// device that works in host memory gets buffers of shared memory, so that copies need no worker;
// others have theirs in the worker, and what is copied passes through shared memory.
#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/runtime/host/error.h"
#include "core/runtime/host/host_services.h"
#include "core/runtime/isolate/isolated_plugin.h"

namespace backplane::runtime {

namespace {

// Objects of the host's side. The plugin's own are numbers here.
struct ForwardedDevice {
  ForwardedDevice(IsolatedPlugin& of_plugin, std::uint32_t at, bool shares)
      : plugin(of_plugin), index(at), shares_memory(shares) {}
  IsolatedPlugin& plugin;
  const std::uint32_t index;
  const bool shares_memory;
  std::mutex mutex;  // guards what follows; not held while the worker is asked
  std::uint64_t number = 0, remote = 0;
};
struct ForwardedBuffer {
  explicit ForwardedBuffer(ForwardedDevice& of_device) : device(of_device) {}
  ForwardedDevice& device;
  SharedBlock block;  // of a device that shares memory
  std::uint64_t number = 0, remote = 0;
};
struct ForwardedStream {
  explicit ForwardedStream(ForwardedDevice& of_device) : device(of_device) {}
  ForwardedDevice& device;
  std::uint64_t number = 0, remote = 0;
};
struct ForwardedEvent {
  explicit ForwardedEvent(ForwardedDevice& of_device) : device(of_device) {}
  ForwardedDevice& device;
  std::uint64_t number = 0, remote = 0;
  std::vector<SharedBlock> staged;  // what its work reads, until it was seen to be complete
};
struct ForwardedExecutable {
  ForwardedExecutable(ForwardedDevice& of_device, WorkerEntry by, WireWriter from)
      : device(of_device), made_by(by), made_from(std::move(from)) {}
  ForwardedDevice& device;
  // The question that it was the answer to, without the device: another worker makes it again.
  const WorkerEntry made_by;
  const WireWriter made_from;
  std::uint32_t input_count = 0, output_count = 0, class_count = 0;
  std::vector<std::uint32_t> node_ids;
  bp_executable_info info{};  // as it was described first
  std::vector<bp_io_contract> inputs, outputs;
  std::string requirement;
  std::mutex mutex;  // guards what follows; not held while the worker is asked
  std::uint64_t number = 0, remote = 0;
};

template <class Forwarded, class Handle>
Forwarded& of(Handle* handle) {
  return *reinterpret_cast<Forwarded*>(handle);
}
ForwardedDevice& device_of(bp_device* handle) { return of<ForwardedDevice>(handle); }
template <class Handle, class Forwarded>
Handle* handle_of(Forwarded* object) {
  return reinterpret_cast<Handle*>(object);
}

bp_error* unparsed() {
  return make_error(BP_INTERNAL, "its worker process gave an answer that does not parse");
}

// The device in the worker that there is. Of work that begins anew it is opened again in a new one.
bp_error* locate(ForwardedDevice& device, bool begins_anew, IsolatedPlugin::Place& out_place,
                 std::uint64_t& out_remote) {
  out_place = device.plugin.place(begins_anew);
  if (out_place.worker == nullptr) return out_place.why;
  {
    const std::lock_guard lock(device.mutex);
    out_remote = device.remote;
    if (device.number == out_place.number) return nullptr;
  }
  WireWriter request;
  request.put(device.index);
  std::string answer;
  if (bp_error* const error =
          device.plugin.ask(out_place, {WorkerEntry::kDeviceOpen}, request, answer))
    return error;
  WireReader in(answer);
  const auto opened = in.get<std::uint64_t>();
  if (!in.ok()) return unparsed();
  if (opened == 0) return make_error(BP_INTERNAL, "it succeeded without a device");
  const std::lock_guard lock(device.mutex);
  if (device.number != out_place.number) {  // else another thread was faster: two are open
    device.number = out_place.number;
    device.remote = opened;
  }
  out_remote = device.remote;
  return nullptr;
}

// A question about a device whose answer is a new object of it.
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
  ForwardedDevice& device = device_of(handle);
  WireWriter request;
  request.put(device.remote);
  std::string answer;
  if (bp_error* const error =
          device.plugin.ask(device.number, {WorkerEntry::kDeviceCounters}, request, answer))
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

// A range as the worker takes it: of a buffer of its own, or of shared memory.
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

// ---- Claims, compile

bp_error* read_claims(WireReader& in, bp_claim_sink* sink) {
  const bp_host_api& host = host_api();
  const auto claims = in.get<std::uint64_t>();
  for (std::uint64_t i = 0; i < claims && in.ok(); ++i) {
    bp_claim claim = in.get<bp_claim>();
    const std::vector<std::uint32_t> node_ids = in.array<std::uint32_t>();
    claim.struct_size = sizeof claim;
    claim.node_ids = node_ids.data();
    claim.node_count = node_ids.size();
    if (!in.ok()) break;
    if (bp_error* const error = host.claim_add(sink, &claim)) return error;
  }
  const auto refusals = in.get<std::uint64_t>();
  for (std::uint64_t i = 0; i < refusals && in.ok(); ++i) {
    const auto node = in.get<std::uint32_t>();
    const auto reason = in.get<bp_refusal>();
    if (bp_error* const error = host.refuse_add(sink, node, reason, in.string())) return error;
  }
  return in.ok() ? nullptr : unparsed();
}

std::vector<std::uint32_t> node_ids_of(const bp_graph& graph) {
  std::vector<std::uint32_t> ids;
  for (std::size_t i = 0; i < graph.node_count; ++i) ids.push_back(bp_graph_node(&graph, i)->id);
  return ids;
}

bp_error* claims(bp_plugin* plugin, const bp_device_info* info, const bp_graph* graph,
                 bp_claim_sink* sink) {
  auto& isolated = IsolatedPlugin::of(plugin);
  WireWriter request;
  isolated.put_info_of(request, info);
  put_graph(request, *graph);
  const std::vector<std::uint32_t> node_ids = node_ids_of(*graph);
  std::string answer;
  if (bp_error* const error = isolated.ask(isolated.place(/*begins_anew=*/true),
                                           {WorkerEntry::kClaims, node_ids}, request, answer))
    return error;
  WireReader in(answer);
  return read_claims(in, sink);
}

template <class Io>
void put_layouts(WireWriter& out, const Io* first, std::size_t stride, std::size_t count) {
  std::vector<bp_layout> layouts;
  for (std::size_t i = 0; i < count; ++i)
    layouts.push_back(static_cast<const Io*>(bp_at(first, stride, i))->layout);
  out.put_array(layouts.data(), layouts.size());
}

bp_error* make_in(const IsolatedPlugin::Place& place, std::uint64_t device,
                  const ForwardedExecutable& executable, const bp_cancel* cancel,
                  std::uint64_t& out_remote) {
  WireWriter request;
  request.put(device);
  request.append(executable.made_from);
  std::string answer;
  const IsolatedPlugin::Question question{executable.made_by, executable.node_ids, cancel};
  if (bp_error* const error = executable.device.plugin.ask(place, question, request, answer))
    return error;
  WireReader in(answer);
  out_remote = in.get<std::uint64_t>();
  return in.ok() ? nullptr : unparsed();
}

struct Description {
  bp_executable_info info{};
  std::vector<bp_io_contract> inputs, outputs;
  std::string requirement;
};
bp_error* ask_description(const IsolatedPlugin::Place& place, std::uint64_t remote,
                          const ForwardedExecutable& executable, Description& out) {
  WireWriter request;
  request.put(remote);
  request.put(executable.input_count);
  request.put(executable.output_count);
  std::string answer;
  if (bp_error* const error = executable.device.plugin.ask(
          place, {WorkerEntry::kExecutableDescribe, executable.node_ids}, request, answer))
    return error;
  WireReader in(answer);
  out.info = in.get<bp_executable_info>();
  out.inputs = in.array<bp_io_contract>();
  out.outputs = in.array<bp_io_contract>();
  out.requirement = in.text();
  return in.ok() ? nullptr : unparsed();
}

// Whether the memory that was planned and packed for `before` serves `now`.
bool fits(const ForwardedExecutable& before, const Description& now) {
  const auto same = [](const bp_io_contract& a, const bp_io_contract& b) {
    return a.layout.kind == b.layout.kind && a.layout.layout_id == b.layout.layout_id;
  };
  return now.info.flags == before.info.flags &&
         now.info.workspace_bytes <= before.info.workspace_bytes &&
         std::ranges::equal(now.inputs, before.inputs, same) &&
         std::ranges::equal(now.outputs, before.outputs, same);
}

// The executable in the worker that there is; made again there where its own has ended.
bp_error* locate(ForwardedExecutable& executable, IsolatedPlugin::Place& out_place,
                 std::uint64_t& out_remote) {
  ForwardedDevice& device = executable.device;
  std::uint64_t opened = 0;
  if (bp_error* const error = locate(device, /*begins_anew=*/true, out_place, opened)) return error;
  {
    const std::lock_guard lock(executable.mutex);
    out_remote = executable.remote;
    if (executable.number == out_place.number) return nullptr;
  }
  if (bp_error* const error = make_in(out_place, opened, executable, nullptr, out_remote))
    return error;
  Description now;
  if (bp_error* const error = ask_description(out_place, out_remote, executable, now)) return error;
  if (!fits(executable, now))
    return make_error(BP_DEVICE_LOST,
                      "its worker process has ended, and made again it wants other memory");
  WireWriter surplus;
  {
    const std::lock_guard lock(executable.mutex);
    if (executable.number != out_place.number) {
      executable.number = out_place.number;
      executable.remote = out_remote;
      return nullptr;
    }
    surplus.put(out_remote);  // another thread was faster
    out_remote = executable.remote;
  }
  device.plugin.tell(out_place.number, WorkerEntry::kExecutableRelease, surplus);
  return nullptr;
}

bp_error* compile(bp_plugin* plugin, const bp_compile_args* args, bp_executable** out_executable) {
  auto& isolated = IsolatedPlugin::of(plugin);
  if (args->device == nullptr)
    return make_error(BP_UNSUPPORTED,
                      "a compile without a device, which is not forwarded to a worker process");
  ForwardedDevice& device = device_of(args->device);
  IsolatedPlugin::Place place;
  std::uint64_t remote = 0;
  if (bp_error* const error = locate(device, /*begins_anew=*/true, place, remote)) return error;
  const bp_graph& graph = *args->graph;
  WireWriter from;
  isolated.put_info_of(from, args->info);
  put_graph(from, graph);
  put_layouts(from, args->inputs, args->io_stride, graph.input_count);
  put_layouts(from, args->outputs, args->io_stride, graph.output_count);
  from.put(args->role);
  auto made = std::make_unique<ForwardedExecutable>(device, WorkerEntry::kCompile, std::move(from));
  made->node_ids = node_ids_of(graph);
  if (bp_error* const error = make_in(place, remote, *made, args->cancel, made->remote))
    return error;
  made->number = place.number;
  made->input_count = static_cast<std::uint32_t>(graph.input_count);
  made->output_count = static_cast<std::uint32_t>(graph.output_count);
  made->class_count = static_cast<std::uint32_t>(graph.dim_class_count);
  if (made->remote != 0) *out_executable = handle_of<bp_executable>(made.release());
  return nullptr;
}

bp_error* executable_describe(bp_executable* handle, bp_executable_info* out_info) {
  auto& executable = of<ForwardedExecutable>(handle);
  IsolatedPlugin::Place place;
  std::uint64_t remote = 0;
  if (bp_error* const error = locate(executable, place, remote)) return error;
  Description found;
  if (bp_error* const error = ask_description(place, remote, executable, found)) return error;
  executable.info = found.info;
  executable.inputs = std::move(found.inputs);
  executable.outputs = std::move(found.outputs);
  executable.requirement = std::move(found.requirement);
  bp_executable_info info = executable.info;
  // Lending is of memory that the worker does not see.
  info.flags &= ~BP_EXECUTABLE_LENDING;
  info.struct_size = std::min(out_info->struct_size, sizeof info);
  info.inputs =
      executable.inputs.size() == executable.input_count ? executable.inputs.data() : nullptr;
  info.outputs =
      executable.outputs.size() == executable.output_count ? executable.outputs.data() : nullptr;
  if (info.io_stride != 0) info.io_stride = sizeof(bp_io_contract);
  info.requirement = {executable.requirement.data(), executable.requirement.size()};
  std::memcpy(out_info, &info, info.struct_size);
  return nullptr;
}

void executable_release(bp_executable* handle) {
  if (handle == nullptr) return;
  const std::unique_ptr<ForwardedExecutable> executable(&of<ForwardedExecutable>(handle));
  WireWriter request;
  request.put(executable->remote);
  executable->device.plugin.tell(executable->number, WorkerEntry::kExecutableRelease, request);
}

bp_error* put_bindings(WireWriter& out, std::uint64_t number, const bp_binding* first,
                       std::size_t stride, std::uint32_t count) {
  out.put(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto& binding = *static_cast<const bp_binding*>(bp_at(first, stride, i));
    if (bp_error* const error = put_range(out, number, binding.range)) return error;
    out.put(binding.scalar);
  }
  return nullptr;
}

bp_error* execute(bp_executable* handle, const bp_execute_args* args) {
  auto& executable = of<ForwardedExecutable>(handle);
  IsolatedPlugin::Place place;
  std::uint64_t remote = 0;
  if (bp_error* const error = locate(executable, place, remote)) return error;
  WireWriter request;
  request.put(remote);
  if (bp_error* const error = put_bindings(request, place.number, args->inputs,
                                           args->binding_stride, executable.input_count))
    return error;
  if (bp_error* const error = put_bindings(request, place.number, args->outputs,
                                           args->binding_stride, executable.output_count))
    return error;
  if (bp_error* const error = put_range(request, place.number, args->workspace)) return error;
  request.put_array(args->dims, executable.class_count);
  if (bp_error* const error = put_order(request, place.number, args->order)) return error;
  request.put(args->call_id);
  std::string answer;
  return executable.device.plugin.ask(place, {WorkerEntry::kExecute, executable.node_ids}, request,
                                      answer);
}

bp_error* executable_workspace(bp_executable* handle, const std::int64_t* dims,
                               std::uint64_t* out_bytes) {
  auto& executable = of<ForwardedExecutable>(handle);
  IsolatedPlugin::Place place;
  std::uint64_t remote = 0;
  if (bp_error* const error = locate(executable, place, remote)) return error;
  WireWriter request;
  request.put(remote);
  request.put_array(dims, executable.class_count);
  std::string answer;
  if (bp_error* const error = executable.device.plugin.ask(
          place, {WorkerEntry::kExecutableWorkspace, executable.node_ids}, request, answer))
    return error;
  WireReader in(answer);
  *out_bytes = in.get<std::uint64_t>();
  return in.ok() ? nullptr : unparsed();
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

// ---- Blobs. In front of the plugin's own bytes stands what the host knows of a graph and a blob
// does not say: how many inputs, outputs and dim classes there are.

constexpr char kBlobMagic[8] = {'B', 'P', 'W', 'O', 'R', 'K', 'R', '1'};
struct BlobHead {
  char magic[8];
  std::uint32_t input_count, output_count, class_count, reserved;
};

bp_error* executable_save(bp_executable* handle, bp_byte_sink* sink) {
  auto& executable = of<ForwardedExecutable>(handle);
  IsolatedPlugin::Place place;
  std::uint64_t remote = 0;
  if (bp_error* const error = locate(executable, place, remote)) return error;
  WireWriter request;
  request.put(remote);
  std::string answer;
  if (bp_error* const error = executable.device.plugin.ask(
          place, {WorkerEntry::kExecutableSave, executable.node_ids}, request, answer))
    return error;
  WireReader in(answer);
  const std::string_view blob = in.text();
  if (!in.ok()) return unparsed();
  BlobHead head{{}, executable.input_count, executable.output_count, executable.class_count, 0};
  std::memcpy(head.magic, kBlobMagic, sizeof head.magic);
  if (bp_error* const error = host_api().bytes_write(sink, &head, sizeof head)) return error;
  return host_api().bytes_write(sink, blob.data(), blob.size());
}

bp_error* blob_check(bp_plugin* plugin, const bp_device_info* info, bp_string requirement,
                     std::uint32_t* out_answer) {
  auto& isolated = IsolatedPlugin::of(plugin);
  WireWriter request;
  isolated.put_info_of(request, info);
  request.put_text(requirement);
  std::string answer;
  if (bp_error* const error = isolated.ask(isolated.place(/*begins_anew=*/true),
                                           {WorkerEntry::kBlobCheck}, request, answer))
    return error;
  WireReader in(answer);
  *out_answer = in.get<std::uint32_t>();
  return in.ok() ? nullptr : unparsed();
}

bp_error* executable_load(bp_device* handle, const void* data, std::size_t size,
                          bp_executable** out_executable) {
  ForwardedDevice& device = device_of(handle);
  BlobHead head{};
  if (size < sizeof head) return make_error(BP_DATA_CORRUPT, "a blob that is too short");
  std::memcpy(&head, data, sizeof head);
  if (std::memcmp(head.magic, kBlobMagic, sizeof head.magic) != 0)
    return make_error(BP_DATA_CORRUPT, "a blob that no worker process saved");
  IsolatedPlugin::Place place;
  std::uint64_t remote = 0;
  if (bp_error* const error = locate(device, /*begins_anew=*/true, place, remote)) return error;
  WireWriter from;
  from.put_text(std::string_view(static_cast<const char*>(data) + sizeof head, size - sizeof head));
  auto made =
      std::make_unique<ForwardedExecutable>(device, WorkerEntry::kExecutableLoad, std::move(from));
  if (bp_error* const error = make_in(place, remote, *made, nullptr, made->remote)) return error;
  made->number = place.number;
  made->input_count = head.input_count;
  made->output_count = head.output_count;
  made->class_count = head.class_count;
  if (made->remote != 0) *out_executable = handle_of<bp_executable>(made.release());
  return nullptr;
}

// ---- Profile

bp_error* profile_begin(bp_device* handle) {
  ForwardedDevice& device = device_of(handle);
  WireWriter request;
  request.put(device.remote);
  std::string answer;
  return device.plugin.ask(device.number, {WorkerEntry::kProfileBegin}, request, answer);
}

bp_error* profile_end(bp_device* handle, bp_profile_sink* sink) {
  ForwardedDevice& device = device_of(handle);
  WireWriter request;
  request.put(device.remote);
  std::string answer;
  if (bp_error* const error =
          device.plugin.ask(device.number, {WorkerEntry::kProfileEnd}, request, answer))
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
  if ((present >> static_cast<unsigned>(WorkerEntry::kind) & 1) != 0) api.entry = entry
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
