// The C tables, filled from what the vendor's Device overrides; BP_PLUGIN exports the entry.
#pragma once

#include <backplane/sdk/device.hpp>

#include <array>
#include <mutex>

namespace backplane::sdk {

namespace detail {

// An open or described device and the arrays its bp_device_info points to.
struct DeviceSlot {
  std::unique_ptr<Device> device;
  DeviceInfo info;
  std::vector<bp_device_rate> rates;
};
struct Plugin {
  std::vector<DeviceSlot> devices;
};
// Emptied by the host's shutdown and never destroyed: when a process ends without one, the vendor's
// runtime may have ended before.
inline Plugin& g_plugin = *new Plugin;

inline bp_device_info describe(DeviceSlot& slot) {
  slot.info = slot.device->info();
  const DeviceInfo& in = slot.info;
  slot.rates.clear();
  for (const Rate& r : in.rates) slot.rates.push_back({r.dtype, 0, r.flop_per_s});
  auto out = make<bp_device_info>();
  out.kind = in.kind;
  out.flags = in.flags;
  out.name = raw(in.name);
  out.architecture = raw(in.architecture);
  out.driver = raw(in.driver);
  out.unique_id = raw(in.unique_id);
  out.memory_bytes = in.memory_bytes;
  out.buffer_limit_bytes = in.buffer_limit_bytes;
  out.buffer_alignment_bytes = out.offset_alignment_bytes = in.alignment_bytes;
  out.memory_bytes_per_s = in.memory_bytes_per_s;
  out.to_device_bytes_per_s = in.to_device_bytes_per_s;
  out.from_device_bytes_per_s = in.from_device_bytes_per_s;
  out.copy_latency_ns = in.copy_latency_ns;
  out.launch_latency_ns = in.launch_latency_ns;
  out.rates = slot.rates.data();
  out.rate_count = slot.rates.size();
  out.rate_stride = sizeof(bp_device_rate);
  return out;
}

inline TensorDesc desc_from(const bp_tensor_desc* theirs) {
  const auto in = read(theirs);
  TensorDesc out{in.dtype, {in.dims, in.dims + in.rank}, {}, in.layout};
  if (in.strides) {
    out.strides.assign(in.strides, in.strides + in.rank);
  } else {
    out.strides.assign(in.rank, 1);
    for (std::size_t i = in.rank; i-- > 1;)
      out.strides[i - 1] = out.strides[i] * std::max<std::int64_t>(out.dims[i], 1);
  }
  return out;
}

}  // namespace detail

template <class D>
struct Table {
  // Whether the vendor's class overrides a default.
#define BP_SDK_OVERRIDES(function) \
  (!std::is_same_v<decltype(&D::function), decltype(&Device::function)>)

  static D& device(bp_device* d) { return *reinterpret_cast<D*>(d); }
  static Executable& executable(bp_executable* x) { return *reinterpret_cast<Executable*>(x); }

  static std::uint32_t device_count(bp_plugin*) {
    return static_cast<std::uint32_t>(detail::g_plugin.devices.size());
  }
  static bp_error* device_describe(bp_plugin*, std::uint32_t index, bp_device_info* out) {
    return shield([&]() -> Status {
      if (index >= detail::g_plugin.devices.size())
        return Status(BP_INVALID_ARGUMENT, "no device with that index");
      answer(out, detail::describe(detail::g_plugin.devices[index]));
      return {};
    });
  }
  static bp_error* device_open(bp_plugin*, std::uint32_t index, bp_device** out) {
    return shield([&]() -> Status {
      if (index >= detail::g_plugin.devices.size())
        return Status(BP_INVALID_ARGUMENT, "no device with that index");
      D* opened = static_cast<D*>(detail::g_plugin.devices[index].device.get());
      BP_SDK_RETURN_IF_ERROR(opened->open());
      *out = reinterpret_cast<bp_device*>(opened);
      return {};
    });
  }
  static void device_close(bp_device*) {}

  static bp_error* buffer_create(bp_device* d, std::uint64_t bytes, bp_buffer** out) {
    return shield([&]() -> Status {
      auto buffer = device(d).allocate(bytes);
      if (!buffer.ok()) return buffer.status();
      *out = reinterpret_cast<bp_buffer*>(new Buffer(std::move(*buffer)));
      return {};
    });
  }
  static void buffer_release(bp_buffer* b) { delete reinterpret_cast<Buffer*>(b); }
  static bp_error* copy(bp_device* d, const bp_copy_args* theirs) {
    return shield([&] {
      const auto args = read(theirs);
      return device(d).copy({Range(args.source), Range(args.target)}, Order(args.order));
    });
  }

  // The device that a description is of: the one whose name and id match, else the first.
  static D& described(const bp_device_info* info) {
    for (auto& slot : detail::g_plugin.devices)
      if (info && view(info->name) == slot.info.name &&
          view(info->unique_id) == slot.info.unique_id)
        return *static_cast<D*>(slot.device.get());
    return *static_cast<D*>(detail::g_plugin.devices.front().device.get());
  }
  static bp_error* claims(bp_plugin*, const bp_device_info* info, const bp_graph* graph,
                          bp_claim_sink* sink) {
    return shield([&]() -> Status {
      const auto mine = read(graph);
      const Claims all = described(info).claims(GraphView(mine));
      for (const auto& set : all.sets) {
        auto claim = make<bp_claim>();
        claim.node_ids = set.nodes.data();
        claim.node_count = set.nodes.size();
        claim.flags =
            (set.divisible ? BP_CLAIM_DIVISIBLE : 0) | (set.estimated ? BP_CLAIM_ESTIMATED : 0);
        claim.time_ns = set.cost.time_ns;
        claim.launch_ns = set.cost.launch_ns;
        claim.workspace_bytes = set.cost.workspace_bytes;
        claim.read_bytes = set.cost.read_bytes;
        claim.written_bytes = set.cost.written_bytes;
        BP_SDK_RETURN_IF_ERROR(Status::adopt(host().claim_add(sink, &claim)));
      }
      for (const Refusal& r : all.refused)
        BP_SDK_RETURN_IF_ERROR(
            Status::adopt(host().refuse_add(sink, r.node, r.reason, raw(r.text))));
      return {};
    });
  }

  // Fills what the vendor left open in the contract.
  static Status finish(Executable& x, std::size_t input_count, std::size_t output_count,
                       std::size_t dim_class_count) {
    const bp_io_contract plain{{BP_LAYOUT_STRIDED, 0, 0}};
    x.inputs.resize(input_count, plain);
    x.outputs.resize(output_count, plain);
    x.dim_class_count = dim_class_count;
    if (dim_class_count == 0) {
      auto bytes = x.workspace_bytes({});
      if (!bytes.ok()) return bytes.status();
      x.static_workspace_bytes_ = *bytes;
    }
    return {};
  }
  static bp_error* compile(bp_plugin*, const bp_compile_args* theirs, bp_executable** out) {
    return shield([&]() -> Status {
      const auto args = read(theirs);
      const auto graph = read(args.graph);
      D& target = args.device ? device(args.device) : described(args.info);
      auto made = target.compile(Subgraph(graph), CompileOptions(args));
      if (!made.ok()) return made.status();
      BP_SDK_RETURN_IF_ERROR(
          finish(**made, graph.input_count, graph.output_count, graph.dim_class_count));
      *out = reinterpret_cast<bp_executable*>((*made).release());
      return {};
    });
  }
  static bp_error* executable_describe(bp_executable* x, bp_executable_info* out) {
    return shield([&]() -> Status {
      const Executable& in = executable(x);
      auto info = make<bp_executable_info>();
      info.flags = in.flags;
      info.inputs = in.inputs.data();
      info.outputs = in.outputs.data();
      info.io_stride = sizeof(bp_io_contract);
      info.workspace_bytes = in.static_workspace_bytes_;
      info.internal_bytes = in.internal_bytes;
      info.time_ns = in.time_ns;
      info.requirement = raw(in.requirement);
      answer(out, info);
      return {};
    });
  }
  static bp_error* executable_workspace(bp_executable* x, const std::int64_t* dims,
                                        std::uint64_t* out) {
    return shield([&]() -> Status {
      auto bytes = executable(x).workspace_bytes({dims, executable(x).dim_class_count});
      if (!bytes.ok()) return bytes.status();
      *out = *bytes;
      return {};
    });
  }
  static void executable_release(bp_executable* x) {
    if (x) delete &executable(x);
  }
  static bp_error* execute(bp_executable* x, const bp_execute_args* theirs) {
    return shield([&] {
      if (theirs->struct_size >= sizeof *theirs) return executable(x).execute(Execution(*theirs));
      const auto args = read(theirs);
      return executable(x).execute(Execution(args));
    });
  }
  static void shutdown(bp_plugin*) { detail::g_plugin.devices.clear(); }

  static bp_error* device_counters(bp_device* d, bp_device_counters* out) {
    return shield([&]() -> Status {
      auto counters = make<bp_device_counters>();
      counters.health = BP_HEALTH_OK;
      BP_SDK_RETURN_IF_ERROR(device(d).counters(counters));
      answer(out, counters);
      return {};
    });
  }

  static bp_error* stream_create(bp_device* d, bp_stream** out) {
    return shield([&]() -> Status {
      auto stream = device(d).create_stream();
      if (!stream.ok()) return stream.status();
      *out = reinterpret_cast<bp_stream*>((*stream).release());
      return {};
    });
  }
  static void stream_release(bp_stream* s) { delete reinterpret_cast<Stream*>(s); }
  static bp_error* event_create(bp_device* d, bp_event** out) {
    return shield([&]() -> Status {
      auto event = device(d).create_event();
      if (!event.ok()) return event.status();
      *out = reinterpret_cast<bp_event*>((*event).release());
      return {};
    });
  }
  static void event_release(bp_event* e) { delete reinterpret_cast<Event*>(e); }
  static bp_error* event_query(bp_event* e, std::int32_t* out_done) {
    return shield([&]() -> Status {
      bool done = false;
      Status status = reinterpret_cast<Event*>(e)->query(done);
      *out_done = done ? 1 : 0;
      return status;
    });
  }
  static bp_error* event_wait(bp_event* e, std::uint64_t timeout_ns) {
    return shield([&] { return reinterpret_cast<Event*>(e)->wait(timeout_ns); });
  }

  static bp_error* layout_bytes(bp_plugin*, const bp_device_info* info, const bp_tensor_desc* desc,
                                std::uint64_t* out) {
    return shield([&]() -> Status {
      auto bytes = described(info).layout_bytes(detail::desc_from(desc));
      if (!bytes.ok()) return bytes.status();
      *out = *bytes;
      return {};
    });
  }
  static bp_error* layout_convert(bp_device* d, const bp_tensor_desc* source_desc,
                                  const bp_range* source, const bp_tensor_desc* target_desc,
                                  const bp_range* target, const bp_order* order) {
    return shield([&] {
      return device(d).layout_convert(detail::desc_from(source_desc), Range(*source),
                                      detail::desc_from(target_desc), Range(*target),
                                      Order(*order));
    });
  }

  static bp_error* executable_save(bp_executable* x, bp_byte_sink* sink) {
    return shield([&]() -> Status {
      auto blob = executable(x).save();
      if (!blob.ok()) return blob.status();
      return Status::adopt(host().bytes_write(sink, blob->data(), blob->size()));
    });
  }
  static bp_error* blob_check(bp_plugin*, const bp_device_info* info, bp_string requirement,
                              std::uint32_t* out) {
    return shield([&]() -> Status {
      *out = described(info).check_blob(view(requirement));
      return {};
    });
  }
  // A blob's executable must state its own contract: inputs and outputs filled in.
  static bp_error* executable_load(bp_device* d, const void* data, std::size_t size,
                                   bp_executable** out) {
    return shield([&]() -> Status {
      auto made = device(d).load({static_cast<const std::byte*>(data), size});
      if (!made.ok()) return made.status();
      Executable& x = **made;
      BP_SDK_RETURN_IF_ERROR(finish(x, x.inputs.size(), x.outputs.size(), x.dim_class_count));
      *out = reinterpret_cast<bp_executable*>((*made).release());
      return {};
    });
  }

  static bp_error* profile_begin(bp_device* d) {
    return shield([&] { return device(d).begin_profile(); });
  }
  static bp_error* profile_end(bp_device* d, bp_profile_sink* sink) {
    return shield([&] { return device(d).end_profile(sink); });
  }

  static const bp_plugin_api* get() {
    static const bp_plugin_api table = [] {
      auto t = make<bp_plugin_api>();
      t.version = BP_ABI_VERSION;
      t.device_count = device_count;
      t.device_describe = device_describe;
      t.device_open = device_open;
      t.device_close = device_close;
      t.buffer_create = buffer_create;
      t.buffer_release = buffer_release;
      t.copy = copy;
      t.claims = claims;
      t.compile = compile;
      t.executable_describe = executable_describe;
      t.executable_release = executable_release;
      t.execute = execute;
      t.shutdown = shutdown;
      t.executable_workspace = executable_workspace;
      if constexpr (BP_SDK_OVERRIDES(counters)) t.device_counters = device_counters;
      if constexpr (BP_SDK_OVERRIDES(create_stream) && BP_SDK_OVERRIDES(create_event)) {
        t.stream_create = stream_create;
        t.stream_release = stream_release;
        t.event_create = event_create;
        t.event_release = event_release;
        t.event_query = event_query;
        t.event_wait = event_wait;
      }
      if constexpr (BP_SDK_OVERRIDES(layout_bytes) && BP_SDK_OVERRIDES(layout_convert)) {
        t.layout_bytes = layout_bytes;
        t.layout_convert = layout_convert;
      }
      if constexpr (BP_SDK_OVERRIDES(check_blob) && BP_SDK_OVERRIDES(load)) {
        t.executable_save = executable_save;
        t.blob_check = blob_check;
        t.executable_load = executable_load;
      }
      if constexpr (BP_SDK_OVERRIDES(begin_profile) && BP_SDK_OVERRIDES(end_profile)) {
        t.profile_begin = profile_begin;
        t.profile_end = profile_end;
      }
      return t;
    }();
    return &table;
  }
#undef BP_SDK_OVERRIDES

  // Several devices: the vendor's class has `static std::vector<std::unique_ptr<D>> enumerate()`.
  static Status enumerate() {
    auto add = [](std::unique_ptr<Device> one) {
      auto& slot = detail::g_plugin.devices.emplace_back();
      slot.device = std::move(one);
      slot.info = slot.device->info();
    };
    detail::g_plugin.devices.clear();
    if constexpr (requires { D::enumerate(); }) {
      for (auto& one : D::enumerate()) add(std::move(one));
    } else {
      add(std::make_unique<D>());
    }
    return {};
  }

  static void negotiate(bp_negotiation* n) noexcept {
    if (n == nullptr || n->magic != BP_NEGOTIATE_MAGIC) return;
    n->plugin_min = n->plugin_max = BP_ABI_VERSION;
    if (n->host_max < BP_ABI_VERSION || n->host_min > BP_ABI_VERSION) {
      n->result = BP_NEGOTIATE_VERSION;
      return;
    }
    detail::g_host = n->host;
    n->chosen = BP_ABI_VERSION;
    if (bp_error* error = shield([] { return enumerate(); })) {
      const Status status = Status::adopt(error);
      const std::string_view text = status.message();
      const std::size_t size = std::min(text.size(), sizeof n->message - 1);
      std::memcpy(n->message, text.data(), size);
      n->message[size] = 0;
      n->result = BP_NEGOTIATE_FAILED;
      return;
    }
    n->api = get();
    n->plugin = reinterpret_cast<bp_plugin*>(&detail::g_plugin);
    n->result = BP_NEGOTIATE_OK;
  }
};

#if defined(__SANITIZE_ADDRESS__)
inline constexpr std::uint32_t kSanitizer = BP_SANITIZER_ADDRESS;
#elif defined(__SANITIZE_THREAD__)
inline constexpr std::uint32_t kSanitizer = BP_SANITIZER_THREAD;
#else
inline constexpr std::uint32_t kSanitizer = BP_SANITIZER_NONE;
#endif

}  // namespace backplane::sdk

// The one exported symbol and the ELF note. `name`, `vendor` and `version` are string literals.
#define BP_PLUGIN(name, vendor, version, DeviceClass)                                         \
  BP_NOTE(BP_ABI_VERSION, BP_ABI_VERSION, name, vendor, version, backplane::sdk::kSanitizer); \
  extern "C" BP_EXPORT void backplane_plugin_negotiate(bp_negotiation* negotiation) {         \
    backplane::sdk::Table<DeviceClass>::negotiate(negotiation);                               \
  }
