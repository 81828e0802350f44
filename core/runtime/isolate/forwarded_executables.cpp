// Entries of an isolated plugin that are about graphs and executables. An executable whose worker
// has ended is made again in the next one.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>

#include "core/runtime/host/error.h"
#include "core/runtime/host/host_services.h"
#include "core/runtime/isolate/forwarded.h"

namespace backplane::runtime::forward {
namespace {

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
  out.info.inputs = out.info.outputs = nullptr;
  out.info.requirement = {};
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

// How a question about the executable begins, for the worker that `out_place` names.
bp_error* begin(ForwardedExecutable& executable, IsolatedPlugin::Place& out_place,
                WireWriter& out_request) {
  std::uint64_t remote = 0;
  if (bp_error* const error = locate(executable, out_place, remote)) return error;
  out_request.put(remote);
  return nullptr;
}

bp_error* ask(const ForwardedExecutable& executable, const IsolatedPlugin::Place& place,
              WorkerEntry entry, const WireWriter& request, std::string& answer) {
  return executable.device.plugin.ask(place, {entry, executable.node_ids}, request, answer);
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

// In front of the plugin's own bytes of a saved executable stands what the host knows of a graph
// and a blob does not say: how many inputs, outputs and dim classes there are.
constexpr char kBlobMagic[8] = {'B', 'P', 'W', 'O', 'R', 'K', 'R', '1'};
struct BlobHead {
  char magic[8];
  std::uint32_t input_count, output_count, class_count, reserved;
};

}  // namespace

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
  // Read in the worker; one that is none stays, to be told.
  if (info.io_stride >= sizeof(bp_io_contract) && info.io_stride <= BP_STRUCT_SIZE_LIMIT)
    info.io_stride = sizeof(bp_io_contract);
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

bp_error* execute(bp_executable* handle, const bp_execute_args* args) {
  auto& executable = of<ForwardedExecutable>(handle);
  IsolatedPlugin::Place place;
  WireWriter request;
  if (bp_error* const error = begin(executable, place, request)) return error;
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
  return ask(executable, place, WorkerEntry::kExecute, request, answer);
}

bp_error* executable_workspace(bp_executable* handle, const std::int64_t* dims,
                               std::uint64_t* out_bytes) {
  auto& executable = of<ForwardedExecutable>(handle);
  IsolatedPlugin::Place place;
  WireWriter request;
  if (bp_error* const error = begin(executable, place, request)) return error;
  request.put_array(dims, executable.class_count);
  std::string answer;
  if (bp_error* const error =
          ask(executable, place, WorkerEntry::kExecutableWorkspace, request, answer))
    return error;
  WireReader in(answer);
  *out_bytes = in.get<std::uint64_t>();
  return in.ok() ? nullptr : unparsed();
}

bp_error* executable_save(bp_executable* handle, bp_byte_sink* sink) {
  auto& executable = of<ForwardedExecutable>(handle);
  IsolatedPlugin::Place place;
  WireWriter request;
  if (bp_error* const error = begin(executable, place, request)) return error;
  std::string answer;
  if (bp_error* const error = ask(executable, place, WorkerEntry::kExecutableSave, request, answer))
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

}  // namespace backplane::runtime::forward
