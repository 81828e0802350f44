// What a vendor derives from: Device and Executable, and the small types they speak.
#pragma once

#include <backplane/sdk/graph.hpp>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace backplane::sdk {

struct Rate {
  bp_dtype dtype;
  double flop_per_s;
};
struct DeviceInfo {
  std::string name;
  std::uint32_t kind = BP_DEVICE_ACCELERATOR;
  std::uint64_t flags = 0;  // BP_DEVICE_*
  std::string architecture{}, driver{}, unique_id{};
  std::uint64_t memory_bytes = 0;
  std::uint64_t buffer_limit_bytes = 0;
  std::uint32_t alignment_bytes = 64;  // of buffers and of offsets into them
  double memory_bytes_per_s = 0;
  double to_device_bytes_per_s = 0, from_device_bytes_per_s = 0;
  double copy_latency_ns = 0, launch_latency_ns = 0;
  std::vector<Rate> rates{};
  std::string torch_device{};  // PyTorch's name of it ("cuda:0"), with Device::import_memory
};

// Device memory: whatever pointer the vendor's allocator gives, freed by `free`.
class Buffer {
 public:
  Buffer(void* data, std::size_t bytes, std::function<void(void*)> free)
      : data_(data, std::move(free)), bytes_(bytes) {}
  template <class T = std::byte>
  T* data() const {
    return static_cast<T*>(data_.get());
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<void, std::function<void(void*)>> data_;
  std::size_t bytes_;
};

// Memory of the host's, for a device that works there or pretends to have its own. `freed` hears of
// its end.
inline Result<Buffer> host_buffer(std::size_t bytes, std::function<void()> freed = {}) {
  constexpr std::size_t kAlignment = 64;
  void* const memory =
      std::aligned_alloc(kAlignment, (bytes + kAlignment) / kAlignment * kAlignment);
  if (memory == nullptr) return Status(BP_OUT_OF_MEMORY, "out of host memory");
  return Buffer(memory, bytes, [freed = std::move(freed)](void* at) {
    if (freed) freed();
    std::free(at);
  });
}

// A bound stretch of a buffer or of host memory. A value: it may outlive the call's arguments.
class Range {
 public:
  Range() = default;
  explicit Range(const bp_range& range) : range_(range) {}
  Buffer* buffer() const { return reinterpret_cast<Buffer*>(range_.buffer); }  // null: host memory
  std::byte* host() const { return static_cast<std::byte*>(range_.host) + range_.offset_bytes; }
  // Address, for devices whose buffers are plain pointers.
  template <class T = std::byte>
  T* data() const {
    if (buffer() == nullptr) return range_.host ? reinterpret_cast<T*>(host()) : nullptr;
    // Imported memory begins at 0, which is no pointer to add to.
    return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(buffer()->data()) +
                                range_.offset_bytes);
  }
  std::uint64_t bytes() const { return range_.size_bytes; }
  const bp_range& raw() const { return range_; }
  std::uint64_t offset_bytes() const { return range_.offset_bytes; }

 private:
  bp_range range_{};
};

// Streams and events, for devices that have them: derive, and override Device::create_stream and
// create_event. Work given to a stream runs in order.
class Event {
 public:
  virtual ~Event() = default;
  virtual Status query(bool& out_done) = 0;  // a failure of the work is returned, each time
  virtual Status wait(std::uint64_t timeout_ns) = 0;
};
class Stream {
 public:
  virtual ~Stream() = default;
};

// The order a call runs in: after `stream`'s earlier work and `waits`, before `signal` completes.
// All null on a device without streams: finish before returning.
class Order {
 public:
  Order() = default;
  explicit Order(const bp_order& order) : order_(order) {}
  Stream* stream() const { return reinterpret_cast<Stream*>(order_.stream); }
  std::size_t wait_count() const { return order_.wait_count; }
  Event* wait(std::size_t i) const { return reinterpret_cast<Event*>(order_.waits[i]); }
  Event* signal() const { return reinterpret_cast<Event*>(order_.signal); }
  // Of work that is waited for.
  Order without_signal() const {
    Order out = *this;
    out.order_.signal = nullptr;
    return out;
  }

 private:
  bp_order order_{};
};

struct Copy {
  Range source, target;  // of equal size; at most one of them in host memory
  std::size_t bytes() const { return source.bytes(); }
};

// ---- Claims ---------------------------------------------------------------------------------

struct Cost {
  double time_ns = 0, launch_ns = 0;
  std::uint64_t workspace_bytes = 0, read_bytes = 0, written_bytes = 0;
};
struct Refusal {
  std::uint32_t node;
  bp_refusal reason;
  std::string text;
};
struct Claims {
  struct Set {
    std::vector<std::uint32_t> nodes;  // node ids
    Cost cost;
    bool divisible = true, estimated = false;
  };
  std::vector<Set> sets;
  std::vector<Refusal> refused;
};

// One divisible claim of every node for which `decide` answers no refusal. The cost model is the
// host's.
using Decide = std::function<std::optional<Refusal>(const NodeView&)>;
inline Claims claim_where(const GraphView& graph, const Decide& decide) {
  Claims claims;
  Claims::Set all;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const NodeView node = graph[i];
    std::optional<Refusal> refusal;
    try {
      refusal = decide(node);
    } catch (const UnknownNumber& unknown) {
      refusal = Refusal{0, BP_REFUSED_ATTRIBUTE, unknown.what()};
    }
    if (refusal) {
      refusal->node = node.id();
      claims.refused.push_back(std::move(*refusal));
    } else {
      all.nodes.push_back(node.id());
    }
  }
  if (!all.nodes.empty()) claims.sets.push_back(std::move(all));
  return claims;
}
// One divisible claim of every node whose op is listed, with the vendor's estimate per node.
inline Claims claim_ops(const GraphView& graph, std::initializer_list<std::string_view> ops,
                        const std::function<Cost(const NodeView&)>& cost) {
  Claims claims = claim_where(graph, [&](const NodeView& node) -> std::optional<Refusal> {
    if (std::find(ops.begin(), ops.end(), node.op()) != ops.end()) return std::nullopt;
    return Refusal{0, BP_REFUSED_OP, "no kernel for " + std::string(node.op())};
  });
  for (auto& set : claims.sets) {
    set.estimated = true;
    for (std::size_t i = 0; i < graph.size(); ++i) {
      if (!std::binary_search(set.nodes.begin(), set.nodes.end(), graph[i].id())) continue;
      const Cost one = cost(graph[i]);
      set.cost.time_ns += one.time_ns;
      set.cost.launch_ns += one.launch_ns;
      set.cost.workspace_bytes = std::max(set.cost.workspace_bytes, one.workspace_bytes);
      set.cost.read_bytes += one.read_bytes;
      set.cost.written_bytes += one.written_bytes;
    }
  }
  return claims;
}

// ---- Compile and execute --------------------------------------------------------------------

// What the host asks of compile, beside the graph.
class CompileOptions {
 public:
  explicit CompileOptions(const bp_compile_args& args) : args_(&args) {}
  const bp_io_request& input(std::size_t i) const {
    return *static_cast<const bp_io_request*>(bp_at(args_->inputs, args_->io_stride, i));
  }
  const bp_io_request& output(std::size_t i) const {
    return *static_cast<const bp_io_request*>(bp_at(args_->outputs, args_->io_stride, i));
  }
  bool wants_any_input(std::size_t i) const { return input(i).layout.kind == BP_LAYOUT_ANY; }
  bool wants_any_output(std::size_t i) const { return output(i).layout.kind == BP_LAYOUT_ANY; }
  bool cancelled() const { return host().is_cancelled(args_->cancel) != 0; }
  std::uint32_t role() const { return args_->role; }
  const bp_compile_args& raw() const { return *args_; }

 private:
  const bp_compile_args* args_;
};

// The host's memory that comes late and goes early; on executables that say BP_EXECUTABLE_LENDING.
class Lending {
 public:
  explicit Lending(const bp_lending* lending) : lending_(lending) {}
  explicit operator bool() const { return lending_ != nullptr; }
  // Once per output, before it is written.
  Result<Range> lend_output(std::uint32_t output) const {
    bp_range range{};
    if (bp_error* error = lending_->lend_output(lending_->user, output, &range))
      return Status::adopt(error);
    return Range(range);
  }
  void input_done(std::uint32_t input) const { lending_->input_done(lending_->user, input); }
  // To be given back by workspace_done before execute returns.
  Result<Range> lend_workspace(std::uint64_t bytes, bp_workspace_kind kind) const {
    bp_range range{};
    if (bp_error* error = lending_->lend_workspace(lending_->user, bytes, kind, &range))
      return Status::adopt(error);
    return Range(range);
  }
  void workspace_done(const Range& range, bp_workspace_kind kind) const {
    lending_->workspace_done(lending_->user, &range.raw(), kind);
  }

 private:
  const bp_lending* lending_;
};

// The arguments of one execute call; valid until it returns.
class Execution {
 public:
  explicit Execution(const bp_execute_args& args) : args_(args) {}
  const bp_binding& input(std::size_t i) const {
    return *static_cast<const bp_binding*>(bp_at(args_.inputs, args_.binding_stride, i));
  }
  const bp_binding& output(std::size_t i) const {
    return *static_cast<const bp_binding*>(bp_at(args_.outputs, args_.binding_stride, i));
  }
  Range workspace() const { return Range(args_.workspace); }
  const std::int64_t* dims() const { return args_.dims; }
  std::int64_t dim(bp_dim d) const { return d < 0 ? args_.dims[-1 - d] : d; }
  Order order() const { return Order(args_.order); }
  std::uint64_t call_id() const { return args_.call_id; }
  Lending lending() const { return Lending(args_.lending); }
  const bp_execute_args& raw() const { return args_; }

 private:
  const bp_execute_args& args_;
};

// A copy of a call's arguments, for work that runs after execute has returned: without its order,
// which whoever queues it has read, and without lending, which ends with the call.
class KeptExecution {
 public:
  KeptExecution(const Execution& call, std::size_t inputs, std::size_t outputs,
                std::size_t dim_classes)
      : args_(make<bp_execute_args>()) {
    bindings_.reserve(inputs + outputs);
    for (std::size_t i = 0; i < inputs; ++i) bindings_.push_back(call.input(i));
    for (std::size_t i = 0; i < outputs; ++i) bindings_.push_back(call.output(i));
    if (dim_classes != 0) dims_.assign(call.dims(), call.dims() + dim_classes);
    args_.inputs = bindings_.data();
    args_.outputs = bindings_.data() + inputs;
    args_.binding_stride = sizeof(bp_binding);
    args_.workspace = call.raw().workspace;
    args_.dims = dims_.data();
    args_.call_id = call.call_id();
  }
  KeptExecution(const KeptExecution&) = delete;
  KeptExecution& operator=(const KeptExecution&) = delete;

  std::span<const bp_binding> bindings() const { return bindings_; }
  bp_execute_args& args() { return args_; }
  Execution call() const { return Execution(args_); }

 private:
  std::vector<bp_binding> bindings_;
  std::vector<std::int64_t> dims_;
  bp_execute_args args_;
};

class Executable;
namespace detail {
void note_sizes(const GraphView& graph, Executable& x);
Status check_bindings(const Executable& x, const Execution& call);
}  // namespace detail

class Executable {
 public:
  virtual ~Executable() = default;
  // Any thread, several calls at a time: an executable is immutable once compiled.
  virtual Status execute(const Execution& call) = 0;
  // Bytes of scratch memory one call needs, at these values of the dim classes.
  virtual Result<std::uint64_t> workspace_bytes(std::span<const std::int64_t> /*dims*/) {
    return std::uint64_t{0};
  }
  virtual Result<std::string> save() { return Status(BP_UNSUPPORTED, "no blob"); }

  // The contract. Empty entries are filled in: device memory, strides as the graph says.
  std::vector<bp_io_contract> inputs, outputs;
  std::uint64_t flags = 0;           // BP_EXECUTABLE_*
  std::uint64_t internal_bytes = 0;  // device memory it holds by itself
  double time_ns = 0;
  std::string requirement;          // see blob_check; empty: cannot be serialized
  std::size_t dim_class_count = 0;  // of its graph; compile fills it in, load must state it

 private:
  template <class D>
  friend struct Table;
  friend void detail::note_sizes(const GraphView& graph, Executable& x);
  friend Status detail::check_bindings(const Executable& x, const Execution& call);
  std::uint64_t static_workspace_bytes_ = 0;
  std::vector<std::uint64_t> least_bytes_;  // of inputs, then outputs; 0: not known
};

struct TensorDesc {
  bp_dtype dtype;
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> strides;  // row-major filled in where the host gave none
  bp_layout layout;
};

// Of one tensor, from one layout to another; of equal element type and dims.
struct LayoutConversion {
  TensorDesc source_desc, target_desc;
  Range source, target;
  bool unpacks() const { return target_desc.layout.kind != BP_LAYOUT_OPAQUE; }
  const TensorDesc& packed() const { return unpacks() ? source_desc : target_desc; }
  const TensorDesc& plain() const { return unpacks() ? target_desc : source_desc; }
};

// One device. Everything below the line has a default; overriding one fills its table entry.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceInfo info() const = 0;  // constructor and info must not touch the hardware
  virtual Result<Buffer> allocate(std::size_t bytes) = 0;
  virtual Status copy(const Copy& copy, const Order& order) = 0;
  virtual Claims claims(const GraphView& graph) = 0;
  virtual Result<std::unique_ptr<Executable>> compile(const Subgraph& graph,
                                                      const CompileOptions& options) = 0;
  // -------------------------------------------------------------------------------------------
  virtual Status open() { return {}; }
  // Which version of an operator's meaning the kernels are written to; nodes of another are
  // refused.
  virtual std::uint32_t op_version(std::string_view /*op*/) const { return 1; }
  virtual Status counters(bp_device_counters& /*out*/) { return {}; }
  virtual Result<std::unique_ptr<Stream>> create_stream() {
    return Status(BP_UNSUPPORTED, "no streams");
  }
  virtual Result<std::unique_ptr<Event>> create_event() {
    return Status(BP_UNSUPPORTED, "no events");
  }
  // Over memory and streams of PyTorch's own device, which DeviceInfo::torch_device names. The
  // buffer begins at address 0 and reaches to the end of all memory.
  virtual Result<Buffer> import_memory() { return Status(BP_UNSUPPORTED, "no import"); }
  virtual Result<std::unique_ptr<Stream>> import_stream(std::uint64_t /*handle*/) {
    return Status(BP_UNSUPPORTED, "no import");
  }
  // Between the two the device notes what it does when; the second hands that to
  // host().profile_add, on the host's clock.
  virtual Status begin_profile() { return Status(BP_UNSUPPORTED, "no profiles"); }
  virtual Status end_profile(bp_profile_sink* /*sink*/) {
    return Status(BP_UNSUPPORTED, "no profiles");
  }
  virtual Result<std::uint64_t> layout_bytes(const TensorDesc& /*desc*/) {
    return Status(BP_UNSUPPORTED, "no opaque layouts");
  }
  // The ranges hold what the descriptions and layout_bytes say.
  virtual Status layout_convert(const LayoutConversion& /*conversion*/, const Order& /*order*/) {
    return Status(BP_UNSUPPORTED, "no opaque layouts");
  }
  // BP_BLOB_*: what a blob with this requirement is worth here.
  virtual std::uint32_t check_blob(std::string_view /*requirement*/) { return BP_BLOB_RECOMPILE; }
  virtual Result<std::unique_ptr<Executable>> load(std::span<const std::byte> /*blob*/) {
    return Status(BP_UNSUPPORTED, "no blobs");
  }
};

}  // namespace backplane::sdk
