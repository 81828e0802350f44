#include "core/runtime/plugin/executable.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "core/runtime/host/disk_cache.h"
#include "core/runtime/host/error.h"
#include "core/runtime/host/host_services.h"
#include "core/runtime/host/process_state.h"
#include "core/runtime/plugin/figures.h"
#include "core/runtime/plugin/plugin.h"
#include "core/runtime/plugin/plugin_call.h"

namespace backplane::runtime {

namespace {

std::string call_name(const Device& device, std::string_view call) {
  return "plugin '" + device.plugin().name() + "' (" + device.label() + "): " + std::string(call);
}

// Everything a blob depends on beside the plugin's own requirement.
std::string cache_key(const Device& device, const ExecutableRequest& request) {
  std::string text = device.plugin().sha256() + "\n";
  if (device.plugin().is_isolated()) text += "isolated\n";  // a blob of another form
  const bp_device_info& info = device.info();
  text.append(info.architecture.data ? info.architecture.data : "", info.architecture.size);
  text += "\n" + std::to_string(request.role) + "\n";
  for (const auto* list : {&request.inputs, &request.outputs})
    for (const bp_io_request& io : *list) text += std::to_string(io.layout.kind) + ";";
  return sha256_hex(text + "\n" + request.graph_text);
}

// Every call into the plugin: under the device's lock where it has one. `nodes` for whoever asks
// what it is busy with.
template <class Call>
Status guarded(Device& device, std::string_view name, std::string_view nodes, Call&& call) {
  const auto serialized = device.lock_call();
  return device.noted(call_plugin({device.label(), name, nodes}, std::forward<Call>(call),
                                  [&] { return call_name(device, name); }));
}

// A cached blob is the requirement's length, the requirement, the plugin's bytes.
std::string join_blob(const std::string& requirement, const std::string& blob) {
  const std::uint64_t size = requirement.size();
  std::string out(reinterpret_cast<const char*>(&size), sizeof size);
  return out + requirement + blob;
}
bool split_blob(const std::string& stored, std::string_view& requirement, std::string_view& blob) {
  std::uint64_t size = 0;
  if (stored.size() < sizeof size) return false;
  std::memcpy(&size, stored.data(), sizeof size);
  if (size > stored.size() - sizeof size) return false;
  requirement = std::string_view(stored).substr(sizeof size, size);
  blob = std::string_view(stored).substr(sizeof size + size);
  return true;
}

}  // namespace

Result<std::unique_ptr<Executable>> Executable::compile(Device& device, const GraphArrays& graph,
                                                        const ExecutableRequest& request) {
  const bp_plugin_api& api = device.api();
  const std::size_t input_count = graph.get().input_count;
  const std::size_t output_count = graph.get().output_count;
  const std::string nodes = graph.summary();
  DiskCache* cache = api.executable_save != nullptr ? DiskCache::instance() : nullptr;
  const std::string key = cache ? cache_key(device, request) : std::string();
  if (cache) {
    if (const auto stored = cache->get(key)) {
      std::string_view requirement, blob;
      std::uint32_t answer = BP_BLOB_RECOMPILE;
      bp_executable* handle = nullptr;
      const bool intact = split_blob(*stored, requirement, blob);
      const auto check = [&] {
        return api.blob_check(device.plugin().handle(), &device.info(),
                              {requirement.data(), requirement.size()}, &answer);
      };
      const auto load = [&] {
        return api.executable_load(device.handle(), blob.data(), blob.size(), &handle);
      };
      // Whatever is wrong with a blob: it is compiled anew.
      if (intact && guarded(device, "blob_check", nodes, check).ok() &&
          answer == BP_BLOB_COMPATIBLE && guarded(device, "executable_load", nodes, load).ok() &&
          handle != nullptr && device.live_executables().add(handle)) {
        std::unique_ptr<Executable> loaded(new Executable(&device, handle, graph));
        loaded->from_cache_ = true;
        if (loaded->describe(input_count, output_count).ok() && loaded->check_layouts(request).ok())
          return loaded;
      }
    }
  }
  bp_compile_args args{};
  args.struct_size = sizeof args;
  args.device = device.handle();
  args.info = &device.info();
  args.graph = &graph.get();
  args.inputs = request.inputs.data();
  args.outputs = request.outputs.data();
  args.io_stride = sizeof(bp_io_request);
  CancelToken cancel;
  args.cancel = cancel.handle();
  args.role = request.role;
  std::unique_ptr<Executable> made;
  const std::string call = call_name(device, "compile");
  {
    bp_executable* handle = nullptr;
    const ProcessStateGuard process(call);
    const auto call_compile = [&] {
      return guarded(device, "compile", nodes, [&] {
        bp_error* const error = api.compile(device.plugin().handle(), &args, &handle);
        if (error != nullptr && request.out_faulty_nodes != nullptr)
          *request.out_faulty_nodes = read_error(error).node_ids;
        return error;
      });
    };
    Status status = call_compile();
    if (status.code() == Code::kOutOfMemory) {
      device.trim();
      handle = nullptr;
      status = call_compile();
    }
    if (status.ok() && handle != nullptr) {
      if (!device.live_executables().add(handle))
        return Status(Code::kInternal, in_use_text(call + " (" + nodes + ")", "an executable"));
      made.reset(new Executable(&device, handle, graph));
    }
    // The program's wish counts, whatever became of the call.
    if (cancel.was_cancelled()) return Status(Code::kCancelled, call + " was interrupted.");
    BP_RETURN_IF_ERROR(std::move(status));
  }
  if (made == nullptr) return Status(Code::kInternal, call + " succeeded without executable");
  BP_RETURN_IF_ERROR(made->describe(input_count, output_count));
  BP_RETURN_IF_ERROR(made->check_layouts(request));
  if (cache && !made->requirement_.empty()) {
    ByteCollector bytes(device.plugin().name());
    if (guarded(device, "executable_save", nodes, [&] {
          return api.executable_save(made->handle_, bytes.sink());
        }).ok())
      cache->put(key, join_blob(made->requirement_, bytes.bytes));
  }
  return made;
}

Executable::~Executable() {
  device_->end_use();
  if (device_->is_given_up()) return;  // it may still run
  device_->live_executables().remove(handle_);
  const auto serialized = device_->lock_call();
  call_plugin_void(
      {device_->label(), "executable_release", nodes_},
      [&] { device_->api().executable_release(handle_); },
      [&] { return call_name(*device_, "executable_release"); });
}

Status Executable::describe(std::size_t input_count, std::size_t output_count) {
  bp_executable_info info{};
  info.struct_size = sizeof info;
  BP_RETURN_IF_ERROR(guarded(*device_, "executable_describe", nodes_,
                             [&] { return device_->api().executable_describe(handle_, &info); }));
  constexpr std::size_t kFirstInfoSize =
      offsetof(bp_executable_info, requirement) + sizeof(bp_executable_info::requirement);
  if (info.struct_size < kFirstInfoSize || info.struct_size > sizeof info)
    return Status(Code::kInternal, call_name(*device_, "executable_describe") +
                                       " answered struct_size " + std::to_string(info.struct_size) +
                                       ", expected " + std::to_string(kFirstInfoSize) +
                                       " to the capacity given, " + std::to_string(sizeof info));
  constexpr std::uint64_t kMustUnderstand = ~std::uint64_t{0} << 32;
  if ((info.flags & kMustUnderstand) != 0)
    return Status(Code::kUnsupported, call_name(*device_, "executable_describe") +
                                          " set a flag in bits 32 to 63 that this host does not "
                                          "know");
  constexpr std::size_t kFirstContractSize =
      offsetof(bp_io_contract, layout) + sizeof(bp_io_contract::layout);
  const std::string call = call_name(*device_, "executable_describe") + " (" + nodes_ + ")";
  if (input_count + output_count != 0)
    BP_RETURN_IF_ERROR(check_stride(call, "io_stride", info.io_stride, kFirstContractSize));
  BP_RETURN_IF_ERROR(check_bytes(call, "workspace_bytes", info.workspace_bytes));
  BP_RETURN_IF_ERROR(check_bytes(call, "internal_bytes", info.internal_bytes));
  if (info.requirement.size > kRequirementLimit ||
      (!info.requirement.data && info.requirement.size))
    return Status(Code::kInternal, call + " answered requirement, a text of " +
                                       std::to_string(info.requirement.size) + " bytes" +
                                       (info.requirement.data ? "" : " without data"));
  constexpr std::uint64_t kLends = BP_EXECUTABLE_LENDING | BP_EXECUTABLE_SYNCHRONOUS;
  if ((info.flags & kLends) == BP_EXECUTABLE_LENDING)
    return Status(Code::kInternal, call_name(*device_, "executable_describe") +
                                       " says LENDING without SYNCHRONOUS: memory is lent until "
                                       "execute returns");
  lends_ = (info.flags & kLends) == kLends;
  if ((info.flags & BP_EXECUTABLE_ONE_CALL) != 0) one_call_ = std::make_unique<std::mutex>();
  const auto read = [&](const bp_io_contract* first, std::size_t count,
                        std::vector<bp_io_contract>& out) -> Status {
    for (std::size_t i = 0; i < count; ++i) {
      bp_io_contract io{};
      std::memcpy(&io, bp_at(first, info.io_stride, i), std::min(info.io_stride, sizeof io));
      if (io.layout.kind != BP_LAYOUT_STRIDED && io.layout.kind != BP_LAYOUT_OPAQUE)
        return Status(Code::kInternal, call_name(*device_, "executable_describe") +
                                           " left a layout open: answer STRIDED or OPAQUE");
      out.push_back(io);
    }
    return {};
  };
  if ((input_count && !info.inputs) || (output_count && !info.outputs))
    return Status(Code::kInternal, call_name(*device_, "executable_describe") + " has no contract");
  BP_RETURN_IF_ERROR(read(info.inputs, input_count, inputs_));
  BP_RETURN_IF_ERROR(read(info.outputs, output_count, outputs_));
  workspace_bytes_ = info.workspace_bytes;
  internal_bytes_ = info.internal_bytes;
  if (info.requirement.size) requirement_.assign(info.requirement.data, info.requirement.size);
  return {};
}

Status Executable::check_layouts(const ExecutableRequest& request) const {
  const auto as_asked = [](const bp_io_request& asked, const bp_io_contract& answered) {
    return asked.layout.kind == BP_LAYOUT_ANY || asked.layout.kind == answered.layout.kind;
  };
  if (std::ranges::equal(request.inputs, inputs_, as_asked) &&
      std::ranges::equal(request.outputs, outputs_, as_asked))
    return {};
  return Status(Code::kInternal, call_name(*device_, "executable_describe") +
                                     " answered a layout that nobody asked for");
}

Result<std::uint64_t> Executable::workspace_bytes(std::span<const std::int64_t> dims) const {
  if (dims.empty() || device_->api().executable_workspace == nullptr) return workspace_bytes_;
  std::uint64_t bytes = 0;
  BP_RETURN_IF_ERROR(guarded(*device_, "executable_workspace", nodes_, [&] {
    return device_->api().executable_workspace(handle_, dims.data(), &bytes);
  }));
  BP_RETURN_IF_ERROR(check_bytes(call_name(*device_, "executable_workspace") + " (" + nodes_ + ")",
                                 "out_bytes", bytes));
  return std::max(workspace_bytes_, bytes);
}

Status Executable::execute(const bp_execute_args& args) const {
  BP_RETURN_IF_ERROR(device_->check_usable("execute"));
  std::unique_lock<std::mutex> alone;
  if (one_call_) alone = std::unique_lock<std::mutex>(*one_call_);
  return guarded(*device_, "execute", nodes_,
                 [&] { return device_->api().execute(handle_, &args); });
}

}  // namespace backplane::runtime
