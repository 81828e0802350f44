#include "core/runtime/executable.h"

#include <cstring>

#include "core/runtime/disk_cache.h"
#include "core/runtime/error.h"
#include "core/runtime/host_services.h"
#include "core/runtime/plugin.h"
#include "core/runtime/process_state.h"

namespace backplane::runtime {

namespace {

std::string call_name(const Device& device, std::string_view call) {
  return "plugin '" + device.plugin().name() + "' (" + device.label() + "): " + std::string(call);
}

// Everything a blob depends on beside the plugin's own requirement.
std::string cache_key(const Device& device, const ExecutableRequest& request) {
  std::string text = device.plugin().sha256() + "\n";
  const bp_device_info& info = device.info();
  text.append(info.architecture.data ? info.architecture.data : "", info.architecture.size);
  text += "\n" + std::to_string(request.role) + "\n";
  for (const auto* list : {&request.inputs, &request.outputs})
    for (const bp_io_request& io : *list)
      text += std::to_string(io.layout.kind) + "," + std::to_string(io.flags) + ";";
  return sha256_hex(text + "\n" + request.graph_text);
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
  DiskCache* cache = api.executable_save != nullptr ? DiskCache::instance() : nullptr;
  const std::string key = cache ? cache_key(device, request) : std::string();
  if (cache) {
    if (const auto stored = cache->get(key)) {
      std::string_view requirement, blob;
      std::uint32_t answer = BP_BLOB_RECOMPILE;
      bp_executable* handle = nullptr;
      const bool intact = split_blob(*stored, requirement, blob);
      if (intact &&
          take_error(api.blob_check(device.plugin().handle(), &device.info(),
                                    {requirement.data(), requirement.size()}, &answer),
                     call_name(device, "blob_check"))
              .ok() &&
          answer == BP_BLOB_COMPATIBLE &&
          take_error(api.executable_load(device.handle(), blob.data(), blob.size(), &handle),
                     call_name(device, "executable_load"))
              .ok()) {
        std::unique_ptr<Executable> loaded(new Executable(&device, handle));
        loaded->from_cache_ = true;
        if (loaded->describe(input_count, output_count).ok()) return loaded;
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
  args.pair_id = request.pair_id;
  args.role = request.role;
  bp_executable* handle = nullptr;
  {
    const std::string call = call_name(device, "compile");
    const auto serialized = device.lock_call();
    const ProcessStateGuard process(call);
    const FpGuard fp("compile");
    BP_RETURN_IF_ERROR(
        take_error(api.compile(device.plugin().handle(), &args, &handle), call));
  }
  if (handle == nullptr)
    return Status(Code::kInternal, call_name(device, "compile") + " succeeded without executable");
  std::unique_ptr<Executable> made(new Executable(&device, handle));
  BP_RETURN_IF_ERROR(made->describe(input_count, output_count));
  if (cache && !made->requirement_.empty()) {
    ByteCollector bytes;
    if (take_error(api.executable_save(handle, bytes.sink()), call_name(device, "executable_save"))
            .ok())
      cache->put(key, join_blob(made->requirement_, bytes.bytes));
  }
  return made;
}

Executable::~Executable() { device_->api().executable_release(handle_); }

Status Executable::describe(std::size_t input_count, std::size_t output_count) {
  bp_executable_info info{};
  info.struct_size = sizeof info;
  BP_RETURN_IF_ERROR(take_error(device_->api().executable_describe(handle_, &info),
                                call_name(*device_, "executable_describe")));
  const auto read = [&](const bp_io_contract* first, std::size_t count,
                        std::vector<bp_io_contract>& out) -> Status {
    for (std::size_t i = 0; i < count; ++i) {
      bp_io_contract io{};
      std::memcpy(&io, bp_at(first, info.io_stride, i), std::min(info.io_stride, sizeof io));
      if (io.size_kind == BP_SIZE_UNBOUNDED || io.size_kind == BP_SIZE_BOUNDED)
        return Status(Code::kUnsupported,
                      call_name(*device_, "executable_describe") +
                          " answered a data-dependent size, which this host does not bind yet");
      if (io.layout.kind == BP_LAYOUT_ANY)
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

Result<std::uint64_t> Executable::workspace_bytes(std::span<const std::int64_t> dims) const {
  if (dims.empty() || device_->api().executable_sizes == nullptr) return workspace_bytes_;
  std::vector<std::uint64_t> sizes(outputs_.size() + 1);
  BP_RETURN_IF_ERROR(take_error(
      device_->api().executable_sizes(handle_, dims.data(), sizes.data(), sizes.size()),
      call_name(*device_, "executable_sizes")));
  return std::max(workspace_bytes_, sizes.back());
}

Status Executable::execute(const bp_execute_args& args) const {
  bp_error* error = nullptr;
  {
    const auto serialized = device_->lock_call();
    const FpGuard fp("execute");
    error = device_->api().execute(handle_, &args);
  }
  if (error == nullptr) return {};
  return take_error(error, call_name(*device_, "execute"));
}

}  // namespace backplane::runtime
