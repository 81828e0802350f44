// The C tables, filled from what the vendor's Device overrides; BP_PLUGIN exports the entry.
#pragma once

#include <backplane/sdk/device.hpp>
#include <backplane/sdk/tensor_spec.hpp>

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

// Of what was said when the plugin was loaded: earlier answers point into it.
inline bp_device_info describe(const DeviceSlot& slot) {
  const DeviceInfo& in = slot.info;
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
  out.torch_device = raw(in.torch_device);
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

inline bool lies_in_its_buffer(const bp_range& range) {
  if (range.buffer == nullptr) return true;
  const std::uint64_t bytes = reinterpret_cast<const Buffer*>(range.buffer)->bytes();
  return range.offset_bytes <= bytes && range.size_bytes <= bytes - range.offset_bytes;
}

// Before a vendor's code sees it: one tensor, known layouts, and ranges that are large enough.
inline Status check_conversion(Device& device, const LayoutConversion& conversion) {
  const TensorDesc &from = conversion.source_desc, &to = conversion.target_desc;
  if (from.dims != to.dims || !(from.dtype == to.dtype))
    return {BP_INVALID_ARGUMENT, "a layout conversion keeps element type and dims"};
  const auto check = [&](const TensorDesc& desc, const Range& range) -> Status {
    std::uint64_t bytes = 0;
    if (desc.layout.kind == BP_LAYOUT_STRIDED) {
      bytes = static_cast<std::uint64_t>(
          TensorSpec{desc.dtype, desc.dims, desc.strides, desc.layout}.span_bytes());
    } else {
      auto packed = device.layout_bytes(desc);
      if (!packed.ok()) return packed.status();
      bytes = *packed;
    }
    if (range.bytes() >= bytes) return {};
    return {BP_INVALID_ARGUMENT, "a range has " + std::to_string(range.bytes()) +
                                     " bytes, its tensor " + std::to_string(bytes)};
  };
  BP_SDK_RETURN_IF_ERROR(check(from, conversion.source));
  return check(to, conversion.target);
}

// What is written in a node that these headers have no word for.
inline std::optional<Refusal> not_understood(const NodeView& node) {
  constexpr std::uint64_t kKnownEffects = BP_EFFECT_RANDOM | BP_EFFECT_MUTATES;
  constexpr std::uint64_t kMustUnderstand = ~UINT64_C(0) << 32;
  if ((node.raw().effects & ~kKnownEffects) != 0)
    return Refusal{0, BP_REFUSED_OTHER, "an effect that is not known"};
  for (std::size_t i = 0; i < node.attribute_count(); ++i)
    if (const bp_attribute_kind kind = node.raw_attribute(i).kind;
        kind < BP_ATTRIBUTE_NONE || kind > BP_ATTRIBUTE_BOOLS)
      return Refusal{0, BP_REFUSED_ATTRIBUTE, "an attribute of a kind that is not known"};
  const auto check = [&](std::uint32_t index) -> std::optional<Refusal> {
    if (index == BP_NONE) return std::nullopt;
    const bp_value& value = node.value(index).raw();
    if (value.dtype.code > BP_DTYPE_BOOL || value.dtype.lanes != 1)
      return Refusal{0, BP_REFUSED_DTYPE, "an element type that is not known"};
    if (value.layout.kind < BP_LAYOUT_STRIDED || value.layout.kind > BP_LAYOUT_OPAQUE)
      return Refusal{0, BP_REFUSED_LAYOUT, "a layout of a kind that is not known"};
    if ((value.flags & kMustUnderstand) != 0)
      return Refusal{0, BP_REFUSED_OTHER, "a value that must be understood, and is not"};
    return std::nullopt;
  };
  for (std::size_t i = 0; i < node.operand_count(); ++i)
    if (auto refusal = check(node.operand_index(i))) return refusal;
  for (std::size_t i = 0; i < node.result_count(); ++i)
    if (auto refusal = check(node.result_index(i))) return refusal;
  return std::nullopt;
}

// Bytes that a binding must have where sizes are known when it is compiled; else 0.
inline std::uint64_t least_bytes(const ValueView& value) {
  if (value.has(BP_VALUE_HOST_SCALAR)) return 0;
  std::int64_t last = 0;
  for (std::size_t i = 0; i < value.rank(); ++i) {
    const bp_dim dim = value.dims()[i], stride = value.strides()[i];
    if (dim <= 0 || stride < 0) return 0;
    last += (dim - 1) * stride;
  }
  return static_cast<std::uint64_t>((last + 1) * element_bytes(value.dtype()));
}
inline void note_sizes(const GraphView& graph, Executable& x) {
  const auto note = [&](std::span<const std::uint32_t> values,
                        const std::vector<bp_io_contract>& contracts) {
    for (std::size_t i = 0; i < values.size(); ++i)
      x.least_bytes_.push_back(
          contracts[i].layout.kind == BP_LAYOUT_STRIDED ? least_bytes(graph.value(values[i])) : 0);
  };
  note(graph.inputs(), x.inputs);
  note(graph.outputs(), x.outputs);
}

// Before a vendor's code sees them: ranges that lie in their buffers and are large enough.
inline Status check_bindings(const Executable& x, const Execution& call) {
  const std::size_t inputs = x.inputs.size(), count = inputs + x.outputs.size();
  for (std::size_t i = 0; i < count; ++i) {
    const bp_range& range = (i < inputs ? call.input(i) : call.output(i - inputs)).range;
    const std::uint64_t least = i < x.least_bytes_.size() ? x.least_bytes_[i] : 0;
    const bool is_lent = i >= inputs && call.lending();
    const bool is_there = range.buffer != nullptr || range.host != nullptr || is_lent;
    if (lies_in_its_buffer(range) && (least == 0 || (is_there && range.size_bytes >= least)))
      continue;
    const std::string name =
        (i < inputs ? "input " : "output ") + std::to_string(i < inputs ? i : i - inputs);
    if (!lies_in_its_buffer(range))
      return {BP_INVALID_ARGUMENT, "the range of " + name + " reaches past the end of its buffer"};
    return {BP_INVALID_ARGUMENT, is_there ? "the range of " + name + " has " +
                                                std::to_string(range.size_bytes) +
                                                " bytes, needed are " + std::to_string(least)
                                          : "nothing is bound to " + name};
  }
  if (!lies_in_its_buffer(call.raw().workspace))
    return {BP_INVALID_ARGUMENT, "the workspace reaches past the end of its buffer"};
  return {};
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
      BP_SDK_RETURN_IF_ERROR(check_size(out));
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
      // What no address space holds would overflow in a vendor's rounding.
      constexpr std::uint64_t kMost = UINT64_C(1) << 62;
      if (bytes >= kMost)
        return {BP_OUT_OF_MEMORY, "no device has " + std::to_string(bytes) + " bytes"};
      auto buffer = device(d).allocate(bytes);
      if (!buffer.ok()) return buffer.status();
      *out = reinterpret_cast<bp_buffer*>(new Buffer(std::move(*buffer)));
      return {};
    });
  }
  static void buffer_release(bp_buffer* b) { delete reinterpret_cast<Buffer*>(b); }
  static bp_error* copy(bp_device* d, const bp_copy_args* theirs) {
    return shield([&]() -> Status {
      BP_SDK_RETURN_IF_ERROR(check_size(theirs));
      const auto args = read(theirs);
      if (args.source.size_bytes != args.target.size_bytes)
        return {BP_INVALID_ARGUMENT, "a copy of " + std::to_string(args.source.size_bytes) +
                                         " bytes to " + std::to_string(args.target.size_bytes)};
      if (args.source.buffer == nullptr && args.target.buffer == nullptr &&
          args.source.size_bytes != 0)
        return {BP_INVALID_ARGUMENT, "a copy from host memory to host memory"};
      if (!detail::lies_in_its_buffer(args.source) || !detail::lies_in_its_buffer(args.target))
        return {BP_INVALID_ARGUMENT, "a copy reaches past the end of its buffer"};
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
      BP_SDK_RETURN_IF_ERROR(check_size(graph));
      const auto mine = read(graph);
      D& target = described(info);
      Claims all = target.claims(GraphView(mine));
      refuse_unknown(target, GraphView(mine), all);
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

  // What a newer host says and this plugin's headers do not know, whatever the vendor's code thinks
  // of it.
  static void refuse_unknown(D& target, const GraphView& graph, Claims& claims) {
    for (std::size_t i = 0; i < graph.size(); ++i) {
      const NodeView node = graph[i];
      std::optional<Refusal> refusal = detail::not_understood(node);
      if (!refusal && node.op_version() != target.op_version(node.op()))
        refusal = Refusal{0, BP_REFUSED_OP,
                          std::string(node.op()) + " of version " +
                              std::to_string(node.op_version()) + " is not known"};
      if (!refusal) continue;
      const std::uint32_t id = node.id();
      bool was_claimed = false;
      for (Claims::Set& set : claims.sets) {
        const auto found = std::find(set.nodes.begin(), set.nodes.end(), id);
        if (found == set.nodes.end()) continue;
        was_claimed = true;
        if (set.divisible)
          set.nodes.erase(found);
        else
          set.nodes.clear();
      }
      if (!was_claimed) continue;
      refusal->node = id;
      claims.refused.push_back(std::move(*refusal));
    }
    std::erase_if(claims.sets, [](const Claims::Set& set) { return set.nodes.empty(); });
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
      BP_SDK_RETURN_IF_ERROR(check_size(theirs));
      const auto args = read(theirs);
      BP_SDK_RETURN_IF_ERROR(check_size(args.graph));
      const auto graph = read(args.graph);
      D& target = args.device ? device(args.device) : described(args.info);
      auto made = target.compile(Subgraph(graph), CompileOptions(args));
      if (!made.ok()) return made.status();
      BP_SDK_RETURN_IF_ERROR(
          finish(**made, graph.input_count, graph.output_count, graph.dim_class_count));
      detail::note_sizes(GraphView(graph), **made);
      *out = reinterpret_cast<bp_executable*>((*made).release());
      return {};
    });
  }
  static bp_error* executable_describe(bp_executable* x, bp_executable_info* out) {
    return shield([&]() -> Status {
      BP_SDK_RETURN_IF_ERROR(check_size(out));
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
    return shield([&]() -> Status {
      BP_SDK_RETURN_IF_ERROR(check_size(theirs));
      const Execution call(*theirs);
      BP_SDK_RETURN_IF_ERROR(detail::check_bindings(executable(x), call));
      return executable(x).execute(call);
    });
  }
  static void shutdown(bp_plugin*) { detail::g_plugin.devices.clear(); }

  static bp_error* device_counters(bp_device* d, bp_device_counters* out) {
    return shield([&]() -> Status {
      BP_SDK_RETURN_IF_ERROR(check_size(out));
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
      BP_SDK_RETURN_IF_ERROR(check_size(desc));
      auto bytes = described(info).layout_bytes(detail::desc_from(desc));
      if (!bytes.ok()) return bytes.status();
      *out = *bytes;
      return {};
    });
  }
  static bp_error* layout_convert(bp_device* d, const bp_tensor_desc* source_desc,
                                  const bp_range* source, const bp_tensor_desc* target_desc,
                                  const bp_range* target, const bp_order* order) {
    return shield([&]() -> Status {
      BP_SDK_RETURN_IF_ERROR(check_size(source_desc));
      BP_SDK_RETURN_IF_ERROR(check_size(target_desc));
      if (!detail::lies_in_its_buffer(*source) || !detail::lies_in_its_buffer(*target))
        return {BP_INVALID_ARGUMENT, "a conversion reaches past the end of its buffer"};
      const LayoutConversion conversion{detail::desc_from(source_desc),
                                        detail::desc_from(target_desc), Range(*source),
                                        Range(*target)};
      BP_SDK_RETURN_IF_ERROR(detail::check_conversion(device(d), conversion));
      return device(d).layout_convert(conversion, Order(*order));
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

  static bp_error* memory_import(bp_device* d, bp_buffer** out) {
    return shield([&]() -> Status {
      auto memory = device(d).import_memory();
      if (!memory.ok()) return memory.status();
      *out = reinterpret_cast<bp_buffer*>(new Buffer(std::move(*memory)));
      return {};
    });
  }
  static bp_error* stream_import(bp_device* d, std::uint64_t handle, bp_stream** out) {
    return shield([&]() -> Status {
      auto stream = device(d).import_stream(handle);
      if (!stream.ok()) return stream.status();
      *out = reinterpret_cast<bp_stream*>((*stream).release());
      return {};
    });
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
      if constexpr (BP_SDK_OVERRIDES(import_memory) && BP_SDK_OVERRIDES(import_stream)) {
        t.memory_import = memory_import;
        t.stream_import = stream_import;
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
      for (const Rate& r : slot.info.rates) slot.rates.push_back({r.dtype, 0, r.flop_per_s});
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
