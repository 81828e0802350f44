#include "core/runtime/worker/server.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/runtime/host/error.h"
#include "core/runtime/host/host_services.h"
#include "core/runtime/host/process_state.h"
#include "core/runtime/isolate/wire.h"
#include "core/runtime/plugin/device.h"
#include "core/runtime/plugin/figures.h"
#include "core/runtime/plugin/plugin.h"
#include "core/runtime/plugin/plugin_call.h"
#include "core/runtime/worker/objects.h"
#include "core/runtime/worker/thread_pool.h"

namespace backplane::runtime {

namespace {

constexpr std::uint64_t kWaitSliceNs = 100'000'000;

struct EndedSpan {
  std::string name;
  std::uint64_t begin_ns = 0, end_ns = 0;
};
// Of the call that this thread serves.
thread_local std::vector<EndedSpan>* spans = nullptr;
thread_local std::uint32_t* cancel_flag = nullptr;

std::uint64_t now_ns() { return host_api().clock_ns(nullptr); }

std::uint64_t begin_span(std::string_view, std::string_view name) {
  if (spans == nullptr) return 0;
  spans->push_back({std::string(name), now_ns(), 0});
  return spans->size();
}
void end_span(std::uint64_t span) {
  if (spans != nullptr && span <= spans->size()) (*spans)[span - 1].end_ns = now_ns();
}

bp_error* error_of(const Status& status) {
  if (status.ok()) return nullptr;
  const auto code = static_cast<bp_code>(status.code());
  return make_error(code <= BP_INTERNAL ? code : bp_code{BP_INTERNAL}, status.message());
}

class Order {
 public:
  explicit Order(WireReader& in) {
    view_.stream = object<bp_stream>(in);
    view_.signal = object<bp_event>(in);
    for (const std::uint64_t event : in.array<std::uint64_t>())
      waits_.push_back(reinterpret_cast<bp_event*>(event));
    view_.wait_count = waits_.size();
    if (!waits_.empty()) view_.waits = waits_.data();
  }
  Order(const Order&) = delete;
  Order& operator=(const Order&) = delete;
  const bp_order& get() const { return view_; }

 private:
  bp_order view_{};
  std::vector<bp_event*> waits_;
};

class Server {
 public:
  Server(std::string path, SharedMapping memory)
      : path_(std::move(path)), memory_(std::move(memory)) {}

  [[noreturn]] void serve(Channel channel) {
    std::string body;
    for (;;) {
      FrameHead head;
      const Channel::Heard heard = channel.receive(head, body);
      if (heard == Channel::Heard::kNothingYet) continue;
      if (heard == Channel::Heard::kEnd) ::_exit(0);  // the parent is gone
      WireWriter front, rest;
      answer(head, body, front, rest);
      front.append(rest);
      if (!channel.send(head, front.bytes())) ::_exit(0);
    }
  }

 private:
  void answer(const FrameHead& head, const std::string& body, WireWriter& front, WireWriter& rest) {
    set_pool_threads(head.thread_count);
    std::vector<EndedSpan> collected;
    spans = head.collects_spans != 0 ? &collected : nullptr;
    cancel_flag = head.cancel_offset != 0
                      ? reinterpret_cast<std::uint32_t*>(memory_.data() + head.cancel_offset)
                      : nullptr;
    WireReader in(body);
    bp_error* const error = guarded(head.entry, in, rest);
    spans = nullptr;
    cancel_flag = nullptr;
    std::erase_if(collected, [](const EndedSpan& span) { return span.end_ns == 0; });
    front.put<std::uint64_t>(collected.size());
    for (const EndedSpan& span : collected) {
      front.put_text(std::string_view(span.name));
      front.put(span.begin_ns);
      front.put(span.end_ns);
    }
    if (error == nullptr) {
      front.put<bp_code>(BP_OK);
      return;
    }
    const PluginError read = read_error(error);
    host_api().error_release(nullptr, error);
    front.put<bp_code>(read.code == BP_OK ? bp_code{BP_INTERNAL} : read.code);
    front.put_text(std::string_view(read.message));
    front.put_text(std::string_view(read.site));
    front.put_array(read.node_ids.data(), read.node_ids.size());
    rest = WireWriter();
  }

  // What the parent's own calls into a plugin have around them, as far as it is of this process.
  bp_error* guarded(WorkerEntry entry, WireReader& in, WireWriter& out) {
    const std::string name(entry_name(entry));
    try {
      const FpGuard guard(name);
      std::optional<ProcessStateGuard> process;
      if (entry == WorkerEntry::kDeviceOpen || entry == WorkerEntry::kCompile ||
          entry == WorkerEntry::kShutdown)
        process.emplace(name);
      if (entry == WorkerEntry::kHello) return hello(in, out);
      if (!is_loaded_.load(std::memory_order_acquire))
        return make_error(BP_INVALID_ARGUMENT, "the plugin was not loaded");
      return handle(entry, in, out);
    } catch (const std::exception& exception) {
      return make_error(BP_INTERNAL, thrown_text(exception.what()));
    } catch (...) {
      return make_error(BP_INTERNAL, thrown_text(nullptr));
    }
  }

  bp_error* hello(WireReader& in, WireWriter& out) {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    if (loaded_ == nullptr) {
      const std::string_view sha256 = in.text();
      if (!in.ok() || sha256.empty())
        return make_error(BP_INTERNAL, "the program and its worker are of two builds; reinstall");
      Result<std::unique_ptr<Plugin>> loaded = Plugin::load(path_, sha256);
      if (!loaded.ok()) return error_of(loaded.status());
      loaded_ = loaded->release();  // as long as the process
      api_ = loaded_->api();
      plugin_ = loaded_->handle();
      is_loaded_.store(true, std::memory_order_release);
    }
    out.put(loaded_->abi_version());
    out.put(api_.version);
    out.put(api_.flags);
    out.put(present());
    return nullptr;
  }

  std::uint64_t present() const {
    std::uint64_t bits = 0;
    const auto add = [&](bool has, WorkerEntry entry) {
      if (has) bits |= std::uint64_t{1} << static_cast<unsigned>(entry);
    };
    for (auto entry = static_cast<unsigned>(WorkerEntry::kDeviceCount);
         entry <= static_cast<unsigned>(WorkerEntry::kShutdown); ++entry)
      add(true, static_cast<WorkerEntry>(entry));
    add(api_.device_counters != nullptr, WorkerEntry::kDeviceCounters);
    for (const WorkerEntry entry :
         {WorkerEntry::kStreamCreate, WorkerEntry::kStreamRelease, WorkerEntry::kEventCreate,
          WorkerEntry::kEventRelease, WorkerEntry::kEventQuery, WorkerEntry::kEventWait})
      add(api_.stream_create != nullptr, entry);
    for (const WorkerEntry entry : {WorkerEntry::kLayoutBytes, WorkerEntry::kLayoutConvert})
      add(api_.layout_bytes != nullptr, entry);
    add(api_.executable_workspace != nullptr, WorkerEntry::kExecutableWorkspace);
    for (const WorkerEntry entry :
         {WorkerEntry::kExecutableSave, WorkerEntry::kBlobCheck, WorkerEntry::kExecutableLoad})
      add(api_.executable_save != nullptr, entry);
    for (const WorkerEntry entry : {WorkerEntry::kProfileBegin, WorkerEntry::kProfileEnd})
      add(api_.profile_begin != nullptr, entry);
    return bits;
  }

  bp_range range(const WireRange& wire) const {
    if (wire.is_shared != 0)
      return {nullptr, memory_.data() + wire.offset_bytes, 0, wire.size_bytes};
    return {reinterpret_cast<bp_buffer*>(wire.buffer), nullptr, wire.offset_bytes, wire.size_bytes};
  }
  std::vector<bp_binding> bindings(WireReader& in) const {
    std::vector<bp_binding> out;
    const auto count = in.get<std::uint32_t>();
    for (std::uint32_t i = 0; i < count && in.ok(); ++i) {
      bp_binding one{};
      one.range = range(in.get<WireRange>());
      std::ranges::copy(in.get<std::array<std::uint64_t, 2>>(), one.scalar);
      out.push_back(one);
    }
    return out;
  }

  // A device's description: the plugin's own, or what the host made up.
  struct Info {
    const bp_device_info* info = nullptr;
    std::unique_ptr<WireInfo> made_up;
  };
  bp_error* read_info(WireReader& in, Info& out) {
    const auto index = in.get<std::uint32_t>();
    if (index == BP_NONE) {
      out.made_up = std::make_unique<WireInfo>(in);
      out.info = &out.made_up->get();
      return nullptr;
    }
    return describe(index, out.info);
  }
  bp_error* describe(std::uint32_t index, const bp_device_info*& out_info) {
    const Result<bp_device_info> info = describe_device(*loaded_, index);
    if (!info.ok()) return error_of(info.status());
    const std::lock_guard lock(mutex_);
    bp_device_info& kept = infos_[index];
    // Answers of an earlier call may be in use: they are the same.
    if (kept.struct_size == 0) kept = *info;
    out_info = &kept;
    return nullptr;
  }

  // Until the work before it is over. Failures are told to whoever asks for the event.
  void wait_for(bp_event* event) const {
    for (;;) {
      bp_error* error = api_.event_wait(event, kWaitSliceNs);
      const bool is_late = host_api().error_code(nullptr, error) == BP_TIMEOUT;
      host_api().error_release(nullptr, error);
      if (!is_late) return;
      std::int32_t done = 0;
      error = api_.event_query(event, &done);
      const bool is_over = error != nullptr || done != 0;
      host_api().error_release(nullptr, error);
      if (is_over) return;
    }
  }

  bp_error* handle(WorkerEntry entry, WireReader& in, WireWriter& out);
  bp_error* copy(WireReader& in);
  bp_error* claims(WireReader& in, WireWriter& out);
  bp_error* compile(WireReader& in, WireWriter& out);
  bp_error* describe_executable(WireReader& in, WireWriter& out);
  bp_error* execute(WireReader& in);
  bp_error* convert_layout(WireReader& in);
  bp_error* end_profile(WireReader& in, WireWriter& out);

  const std::string path_;
  const SharedMapping memory_;
  std::atomic<bool> is_loaded_{false};  // what follows is there, for good
  Plugin* loaded_ = nullptr;
  bp_plugin_api api_{};
  bp_plugin* plugin_ = nullptr;
  std::mutex mutex_;  // guards infos_
  std::map<std::uint32_t, bp_device_info> infos_;
};

bp_error* Server::copy(WireReader& in) {
  auto* const device = object<bp_device>(in);
  bp_copy_args args{};
  args.struct_size = sizeof args;
  args.source = range(in.get<WireRange>());
  args.target = range(in.get<WireRange>());
  const Order order(in);
  args.order = order.get();
  const bool waits = in.get<std::uint32_t>() != 0;
  if (bp_error* const error = api_.copy(device, &args)) return error;
  if (waits && args.order.signal != nullptr) wait_for(args.order.signal);
  return nullptr;
}

bp_error* Server::claims(WireReader& in, WireWriter& out) {
  Info info;
  if (bp_error* const error = read_info(in, info)) return error;
  const WireGraph graph(in);
  ClaimCollector collector;
  if (bp_error* const error = api_.claims(plugin_, info.info, &graph.get(), collector.sink()))
    return error;
  out.put<std::uint64_t>(collector.claims.size());
  for (const CollectedClaim& one : collector.claims) {
    bp_claim claim{};
    claim.flags = one.flags;
    claim.time_ns = one.time_ns;
    claim.launch_ns = one.launch_ns;
    claim.workspace_bytes = one.workspace_bytes;
    claim.read_bytes = one.read_bytes;
    claim.written_bytes = one.written_bytes;
    out.put(claim);
    out.put_array(one.node_ids.data(), one.node_ids.size());
  }
  out.put<std::uint64_t>(collector.refusals.size());
  for (const CollectedRefusal& one : collector.refusals) {
    out.put(one.node_id);
    out.put(one.reason);
    out.put_text(std::string_view(one.text));
  }
  return nullptr;
}

bp_error* Server::compile(WireReader& in, WireWriter& out) {
  auto* const device = object<bp_device>(in);
  Info info;
  if (bp_error* const error = read_info(in, info)) return error;
  const WireGraph graph(in);
  std::vector<bp_io_request> inputs, outputs;
  for (auto* const list : {&inputs, &outputs})
    for (const bp_layout& layout : in.array<bp_layout>()) list->push_back({layout});
  bp_compile_args args{};
  args.struct_size = sizeof args;
  args.device = device;
  args.info = info.info;
  args.graph = &graph.get();
  args.inputs = inputs.data();
  args.outputs = outputs.data();
  args.io_stride = sizeof(bp_io_request);
  args.role = in.get<std::uint32_t>();
  CancelToken cancel;
  args.cancel = cancel.handle();
  bp_executable* made = nullptr;
  if (bp_error* const error = api_.compile(plugin_, &args, &made)) return error;
  return put_object(out, made, "compile");
}

bp_error* Server::describe_executable(WireReader& in, WireWriter& out) {
  auto* const executable = object<bp_executable>(in);
  const auto input_count = in.get<std::uint32_t>(), output_count = in.get<std::uint32_t>();
  bp_executable_info info{};
  info.struct_size = sizeof info;
  if (bp_error* const error = api_.executable_describe(executable, &info)) return error;
  if (info.requirement.size > kRequirementLimit)
    return make_error(BP_INTERNAL, "it answered requirement, a text of " +
                                       std::to_string(info.requirement.size) + " bytes");
  out.put(info);
  const auto put_contracts = [&](const bp_io_contract* first, std::uint32_t count) {
    // A stride that is none is told by the parent, which reads no element then.
    const bool is_array = first != nullptr && info.io_stride <= BP_STRUCT_SIZE_LIMIT;
    std::vector<bp_io_contract> all(is_array ? count : 0);
    for (std::size_t i = 0; i < all.size(); ++i)
      std::memcpy(&all[i], bp_at(first, info.io_stride, i),
                  std::min(info.io_stride, sizeof all[i]));
    out.put_array(all.data(), all.size());
  };
  put_contracts(info.inputs, input_count);
  put_contracts(info.outputs, output_count);
  out.put_text(info.requirement);
  return nullptr;
}

bp_error* Server::execute(WireReader& in) {
  auto* const executable = object<bp_executable>(in);
  const std::vector<bp_binding> inputs = bindings(in), outputs = bindings(in);
  bp_execute_args args{};
  args.struct_size = sizeof args;
  args.inputs = inputs.data();
  args.outputs = outputs.data();
  args.binding_stride = sizeof(bp_binding);
  args.workspace = range(in.get<WireRange>());
  const std::vector<std::int64_t> dims = in.array<std::int64_t>();
  args.dims = dims.data();
  const Order order(in);
  args.order = order.get();
  args.call_id = in.get<std::uint64_t>();
  return api_.execute(executable, &args);
}

// A pack of a device that works in host memory lies in shared memory, where it outlives the worker;
// a conversion writes to buffers.
bp_error* Server::convert_layout(WireReader& in) {
  auto* const device = object<bp_device>(in);
  const WireTensor source_desc(in), target_desc(in);
  const bp_range source = range(in.get<WireRange>());
  const auto wire = in.get<WireRange>();
  const bp_range target = range(wire);
  const Order order(in);
  if (wire.is_shared == 0)
    return api_.layout_convert(device, &source_desc.get(), &source, &target_desc.get(), &target,
                               &order.get());
  bp_buffer* buffer = nullptr;
  if (bp_error* const error = api_.buffer_create(device, target.size_bytes, &buffer)) return error;
  bp_copy_args out{};
  out.struct_size = sizeof out;
  out.source = {buffer, nullptr, 0, target.size_bytes};
  out.target = target;
  bp_error* error = api_.layout_convert(device, &source_desc.get(), &source, &target_desc.get(),
                                        &out.source, &order.get());
  if (error == nullptr) error = api_.copy(device, &out);
  api_.buffer_release(buffer);
  return error;
}

bp_error* Server::end_profile(WireReader& in, WireWriter& out) {
  ProfileCollector collector;
  if (bp_error* const error = api_.profile_end(object<bp_device>(in), collector.sink()))
    return error;
  out.put<std::uint64_t>(collector.ranges.size());
  for (const CollectedRange& one : collector.ranges) {
    bp_profile_range wire{};
    wire.begin_ns = one.begin_ns;
    wire.end_ns = one.end_ns;
    wire.uncertainty_ns = one.uncertainty_ns;
    wire.call_id = one.call_id;
    wire.device = one.device;
    wire.queue = one.queue;
    out.put(wire);
    out.put_text(std::string_view(one.name));
    out.put_array(one.node_ids.data(), one.node_ids.size());
  }
  return nullptr;
}

bp_error* Server::handle(WorkerEntry entry, WireReader& in, WireWriter& out) {
  switch (entry) {
    case WorkerEntry::kHello:
      break;
    case WorkerEntry::kDeviceCount:
      out.put(api_.device_count(plugin_));
      return nullptr;
    case WorkerEntry::kDeviceDescribe: {
      const bp_device_info* info = nullptr;
      if (bp_error* const error = describe(in.get<std::uint32_t>(), info)) return error;
      put_info(out, *info);
      return nullptr;
    }
    case WorkerEntry::kDeviceOpen: {
      bp_device* device = nullptr;
      if (bp_error* const error = api_.device_open(plugin_, in.get<std::uint32_t>(), &device))
        return error;
      return put_object(out, device, "device_open");
    }
    case WorkerEntry::kDeviceClose:
      api_.device_close(last_use<bp_device>(in));
      return nullptr;
    case WorkerEntry::kBufferCreate: {
      auto* const device = object<bp_device>(in);
      bp_buffer* buffer = nullptr;
      if (bp_error* const error = api_.buffer_create(device, in.get<std::uint64_t>(), &buffer))
        return error;
      return put_object(out, buffer, "buffer_create");
    }
    case WorkerEntry::kBufferRelease:
      api_.buffer_release(last_use<bp_buffer>(in));
      return nullptr;
    case WorkerEntry::kCopy:
      return copy(in);
    case WorkerEntry::kClaims:
      return claims(in, out);
    case WorkerEntry::kCompile:
      return compile(in, out);
    case WorkerEntry::kExecutableDescribe:
      return describe_executable(in, out);
    case WorkerEntry::kExecutableRelease:
      api_.executable_release(last_use<bp_executable>(in));
      return nullptr;
    case WorkerEntry::kExecute:
      return execute(in);
    case WorkerEntry::kShutdown:
      api_.shutdown(plugin_);
      return nullptr;
    case WorkerEntry::kDeviceCounters: {
      bp_device_counters counters{};
      counters.struct_size = sizeof counters;
      if (bp_error* const error = api_.device_counters(object<bp_device>(in), &counters))
        return error;
      out.put(counters);
      return nullptr;
    }
    case WorkerEntry::kStreamCreate: {
      bp_stream* stream = nullptr;
      if (bp_error* const error = api_.stream_create(object<bp_device>(in), &stream)) return error;
      out.put(reinterpret_cast<std::uint64_t>(stream));
      return nullptr;
    }
    case WorkerEntry::kStreamRelease:
      api_.stream_release(object<bp_stream>(in));
      return nullptr;
    case WorkerEntry::kEventCreate: {
      bp_event* event = nullptr;
      if (bp_error* const error = api_.event_create(object<bp_device>(in), &event)) return error;
      return put_object(out, event, "event_create");
    }
    case WorkerEntry::kEventRelease: {
      auto* const event = object<bp_event>(in);
      if (in.get<std::uint32_t>() != 0) wait_for(event);
      live<bp_event>().remove(event);
      api_.event_release(event);
      return nullptr;
    }
    case WorkerEntry::kEventQuery: {
      std::int32_t done = 0;
      if (bp_error* const error = api_.event_query(object<bp_event>(in), &done)) return error;
      out.put(done);
      return nullptr;
    }
    case WorkerEntry::kEventWait: {
      auto* const event = object<bp_event>(in);
      return api_.event_wait(event, in.get<std::uint64_t>());
    }
    case WorkerEntry::kLayoutBytes: {
      Info info;
      if (bp_error* const error = read_info(in, info)) return error;
      const WireTensor desc(in);
      std::uint64_t bytes = 0;
      if (bp_error* const error = api_.layout_bytes(plugin_, info.info, &desc.get(), &bytes))
        return error;
      out.put(bytes);
      return nullptr;
    }
    case WorkerEntry::kLayoutConvert:
      return convert_layout(in);
    case WorkerEntry::kExecutableWorkspace: {
      auto* const executable = object<bp_executable>(in);
      const std::vector<std::int64_t> dims = in.array<std::int64_t>();
      std::uint64_t bytes = 0;
      if (bp_error* const error = api_.executable_workspace(executable, dims.data(), &bytes))
        return error;
      out.put(bytes);
      return nullptr;
    }
    case WorkerEntry::kExecutableSave: {
      ByteCollector blob;
      if (bp_error* const error = api_.executable_save(object<bp_executable>(in), blob.sink()))
        return error;
      out.put_text(std::string_view(blob.bytes));
      return nullptr;
    }
    case WorkerEntry::kBlobCheck: {
      Info info;
      if (bp_error* const error = read_info(in, info)) return error;
      std::uint32_t found = 0;
      if (bp_error* const error = api_.blob_check(plugin_, info.info, in.string(), &found))
        return error;
      out.put(found);
      return nullptr;
    }
    case WorkerEntry::kExecutableLoad: {
      auto* const device = object<bp_device>(in);
      const std::string_view blob = in.text();
      bp_executable* made = nullptr;
      if (bp_error* const error = api_.executable_load(device, blob.data(), blob.size(), &made))
        return error;
      return put_object(out, made, "executable_load");
    }
    case WorkerEntry::kProfileBegin:
      return api_.profile_begin(object<bp_device>(in));
    case WorkerEntry::kProfileEnd:
      return end_profile(in, out);
  }
  return make_error(BP_UNSUPPORTED, "an entry that this worker process does not know");
}

}  // namespace

void serve_plugin(const std::string& plugin_path, SharedMapping memory, Channel control) {
  install_thread_pool();
  set_trace_hooks({begin_span, end_span});
  set_interrupt_check(
      [] { return cancel_flag != nullptr && std::atomic_ref(*cancel_flag).load() != 0; });
  auto* const server = new Server(plugin_path, std::move(memory));  // as long as the process
  for (;;) {
    const int fd = control.receive_descriptor();
    if (fd < 0) ::_exit(0);  // the parent is gone
    std::thread([server, fd] { server->serve(Channel(fd)); }).detach();
  }
}

}  // namespace backplane::runtime
