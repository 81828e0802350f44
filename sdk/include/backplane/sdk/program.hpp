// ProgramExecutable: an executable made of one kernel per node (or per group of nodes), for devices
// whose memory their own code addresses through pointers. It resolves sizes, turns views into
// pointer arithmetic, plans the workspace by lifetimes, and keeps one Instance per set of sizes.
//
//   plugin: groups nodes into Steps, gives a KernelFactory    (compile time)
//   SDK:    per sizes: specs, storage, workspace, kernels      (first call at these sizes)
//   call:   a table of pointers, then step after step; no allocation, no lock held over a kernel
#pragma once

#include <backplane/sdk/device.hpp>

#include <array>
#include <cstdlib>
#include <list>
#include <mutex>
#include <optional>
#include <stdexcept>

namespace backplane::sdk {

// A tensor at known sizes. Strides in elements; meaningless for an opaque layout.
struct TensorSpec {
  bp_dtype dtype{};
  std::vector<std::int64_t> dims, strides;
  bp_layout layout{BP_LAYOUT_STRIDED, 0, 0};

  std::size_t rank() const { return dims.size(); }
  std::int64_t elements() const {
    std::int64_t n = 1;
    for (std::int64_t d : dims) n *= d;
    return n;
  }
  // Bytes from the first to past the last element.
  std::int64_t span_bytes() const {
    std::int64_t last = 0;
    for (std::size_t i = 0; i < dims.size(); ++i) {
      if (dims[i] == 0) return 0;
      last += (dims[i] - 1) * strides[i];
    }
    return (last + 1) * element_bytes(dtype);
  }
  // Row-major without gaps; dims of size 1 have any stride, as in PyTorch.
  bool contiguous() const {
    std::int64_t expected = 1;
    for (std::size_t i = dims.size(); i-- > 0;) {
      if (dims[i] == 1) continue;
      if (strides[i] != expected) return dims.empty() || elements() == 0;
      expected *= dims[i];
    }
    return true;
  }
};

inline std::vector<std::int64_t> row_major(const std::vector<std::int64_t>& dims) {
  std::vector<std::int64_t> strides(dims.size(), 1);
  for (std::size_t i = dims.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<std::int64_t>(dims[i], 1);
  return strides;
}

// One kernel: the nodes it computes, the values it reads and writes. By default one node, with
// operands and results exactly as the node lists them (BP_NONE where absent).
struct Step {
  std::vector<std::uint32_t> nodes;     // indices into the graph; empty: copies operand to result
  std::vector<std::uint32_t> operands;  // value indices
  std::vector<std::uint32_t> results;   // value indices
  bool is_copy() const { return nodes.empty(); }
};

struct KernelCall {
  std::byte* const* operands;  // null where absent or empty; views are already applied
  std::byte* const* results;
  std::byte* scratch;  // scratch_bytes() of memory of this call
};
// Prepared for one set of sizes. Immutable: run may be called by several threads at once.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual Status run(const KernelCall& call) const = 0;
  virtual std::uint64_t scratch_bytes() const { return 0; }
};

// What a factory sees of one step at one set of sizes.
class StepContext {
 public:
  StepContext(const GraphView& graph, const Step& step, const std::vector<TensorSpec>& specs,
              Dims dims)
      : graph_(graph), step_(step), specs_(specs), dims_(dims) {}
  const GraphView& graph() const { return graph_; }
  const Step& step() const { return step_; }
  NodeView node(std::size_t i = 0) const { return node_at(step_.nodes[i]); }
  // A node of the graph, with the numbers that it has at these sizes.
  NodeView node_at(std::uint32_t index) const { return graph_[index].at(dims_.values()); }
  const Dims& dims() const { return dims_; }
  const TensorSpec& value(std::uint32_t index) const { return specs_[index]; }
  bool has_operand(std::size_t i) const {
    return i < step_.operands.size() && step_.operands[i] != BP_NONE;
  }
  const TensorSpec& operand(std::size_t i) const { return specs_[step_.operands[i]]; }
  // Of a value among the step's operands.
  std::optional<std::size_t> find_position(std::uint32_t value) const {
    const auto at = std::find(step_.operands.begin(), step_.operands.end(), value);
    if (at == step_.operands.end()) return std::nullopt;
    return static_cast<std::size_t>(at - step_.operands.begin());
  }
  std::size_t position(std::uint32_t value) const {
    if (const auto at = find_position(value)) return *at;
    throw std::logic_error("a value that the step does not bind");
  }
  const TensorSpec& result(std::size_t i = 0) const { return specs_[step_.results[i]]; }
  // Integer and integer-list attributes of node(0) with dim classes resolved.
  std::int64_t int_or(std::string_view name, std::int64_t fallback) const {
    return dims_.attribute(node(), name, fallback);
  }
  std::vector<std::int64_t> ints(std::string_view name) const { return dims_.list(node(), name); }

 private:
  const GraphView& graph_;
  const Step& step_;
  const std::vector<TensorSpec>& specs_;
  Dims dims_;
};
using KernelFactory = std::function<Result<std::unique_ptr<Kernel>>(const StepContext&)>;

// May give values that never leave the program other strides than the graph's, before anything is
// placed. Results of view ops must still be views of their operand.
using Relayout = std::function<void(const GraphView&, std::vector<TensorSpec>&)>;
// ---- Views ----------------------------------------------------------------------------------

// Whether results of the op are other views of operand 0's memory.
inline bool is_view_op(std::string_view op) {
  static constexpr std::string_view kViews[] = {"aten.alias",
                                                "aten.as_strided",
                                                "aten.detach",
                                                "aten.diagonal",
                                                "aten.expand",
                                                "aten.permute",
                                                "aten.select.int",
                                                "aten.slice.Tensor",
                                                "aten.split.Tensor",
                                                "aten.split_with_sizes",
                                                "aten.squeeze",
                                                "aten.squeeze.dim",
                                                "aten.squeeze.dims",
                                                "aten.t",
                                                "aten.transpose.int",
                                                "aten.unbind.int",
                                                "aten.unfold",
                                                "aten.unsqueeze",
                                                "aten.view",
                                                "aten.view.dtype",
                                                "aten.view_as_complex",
                                                "aten.view_as_real",
                                                "aten._reshape_alias",
                                                "aten._unsafe_view"};
  return std::find(std::begin(kViews), std::end(kViews), op) != std::end(kViews);
}

namespace detail {

inline std::int64_t wrap(std::int64_t dim, std::size_t rank) {
  return dim < 0 ? dim + static_cast<std::int64_t>(std::max<std::size_t>(rank, 1)) : dim;
}

// Elements from the start of operand 0 to the start of result `which` of a view op.
inline std::int64_t view_offset(const NodeView& node, const TensorSpec& in, std::size_t which,
                                const Dims& dims) {
  const std::string_view op = node.op();
  if (op == "aten.slice.Tensor") {
    const auto d = static_cast<std::size_t>(wrap(dims.attribute(node, "dim", 0), in.rank()));
    std::int64_t start = dims.attribute(node, "start", 0);
    if (start < 0) start += in.dims[d];
    start = std::clamp<std::int64_t>(start, 0, in.dims[d]);
    return start * in.strides[d];
  }
  if (op == "aten.select.int") {
    const auto d = static_cast<std::size_t>(wrap(dims.attribute(node, "dim", 0), in.rank()));
    std::int64_t index = dims.attribute(node, "index", 0);
    if (index < 0) index += in.dims[d];
    return index * in.strides[d];
  }
  if (op == "aten.diagonal") {
    const auto d1 = static_cast<std::size_t>(wrap(dims.attribute(node, "dim1", 0), in.rank()));
    const auto d2 = static_cast<std::size_t>(wrap(dims.attribute(node, "dim2", 1), in.rank()));
    const std::int64_t offset = dims.attribute(node, "offset", 0);
    return offset >= 0 ? offset * in.strides[d2] : -offset * in.strides[d1];
  }
  if (op == "aten.unbind.int") {
    const auto d = static_cast<std::size_t>(wrap(dims.attribute(node, "dim", 0), in.rank()));
    return static_cast<std::int64_t>(which) * in.strides[d];
  }
  if (op == "aten.split.Tensor") {
    const auto d = static_cast<std::size_t>(wrap(dims.attribute(node, "dim", 0), in.rank()));
    return static_cast<std::int64_t>(which) * dims.attribute(node, "split_size", 1) * in.strides[d];
  }
  if (op == "aten.split_with_sizes") {
    const auto d = static_cast<std::size_t>(wrap(dims.attribute(node, "dim", 0), in.rank()));
    const auto sizes = dims.list(node, "split_sizes");
    std::int64_t start = 0;
    for (std::size_t i = 0; i < which; ++i) start += sizes[i];
    return start * in.strides[d];
  }
  // The graph's values carry no storage offset: operand 0 of an as_strided counts as its base.
  if (op == "aten.as_strided") return dims.attribute(node, "storage_offset", 0);
  return 0;
}

}  // namespace detail

// ---- Instance: everything for one set of sizes -------------------------------------------------

class Instance {
 public:
  static constexpr std::uint64_t kAlignment = 64;

  // `layouts` are the contract's layouts of the inputs (opaque for packed weights).
  static Result<std::shared_ptr<const Instance>> make(const GraphView& graph,
                                                      std::span<const Step> steps,
                                                      std::span<const bp_layout> input_layouts,
                                                      Dims dims, const KernelFactory& factory,
                                                      const Relayout& relayout = {}) {
    auto instance = std::make_shared<Instance>();
    instance->resolve(graph, input_layouts, dims);
    if (relayout) relayout(graph, instance->specs_);
    instance->place(graph, dims);
    BP_SDK_RETURN_IF_ERROR(instance->prepare(graph, steps, dims, factory));
    instance->plan_workspace(graph);
    instance->find_lifetimes(graph);
    return std::shared_ptr<const Instance>(std::move(instance));
  }

  std::uint64_t workspace_bytes() const { return workspace_bytes_; }
  const std::vector<TensorSpec>& specs() const { return specs_; }

  // `inputs` and `outputs` are addresses in binding order; workspace is aligned to kAlignment.
  // Where memory is lent, outputs without an address come when they are first written, and without
  // a workspace so do intermediates.
  Status run(std::span<std::byte* const> inputs, std::span<std::byte* const> outputs,
             std::byte* workspace, const Lending& lending = Lending(nullptr)) const {
    thread_local std::vector<std::byte*> addresses;  // grows to the largest program, then stays
    addresses.resize(pointer_count_);
    for (std::size_t i = 0; i < bound_.size(); ++i) {
      const Bound& b = bound_[i];
      std::byte* base = nullptr;
      switch (b.place) {
        case Place::kNone:
          break;
        case Place::kInput:
          base = inputs[b.index];
          break;
        case Place::kOutput:
          base = outputs[b.index];
          break;
        case Place::kWorkspace:
          base = workspace ? workspace + storages_[b.index].offset : nullptr;
          break;
        case Place::kConstant:
          base = b.constant;
          break;
      }
      addresses[i] = base ? base + b.offset : nullptr;
    }
    Lent lent(lending, lending && workspace == nullptr ? storages_.size() : 0);
    if (lending)
      for (const std::uint32_t input : unread_) lending.input_done(input);
    for (const Prepared& p : prepared_) {
      std::byte* scratch = workspace ? workspace + scratch_offset_ : nullptr;
      if (lending) {
        BP_SDK_RETURN_IF_ERROR(lend_outputs(p, outputs, lending, addresses));
        if (!workspace) BP_SDK_RETURN_IF_ERROR(lend_intermediates(p, lent, addresses, scratch));
      }
      std::byte* const* first = addresses.data() + p.first;
      const std::uint64_t span = host().span_begin(host().host, raw(p.name));
      BP_SDK_RETURN_IF_ERROR(p.kernel->run({first, first + p.operand_count, scratch}));
      if (span != 0) host().span_end(host().host, span);
      if (!lending) continue;
      for (const std::uint32_t input : p.last_read) lending.input_done(input);
      if (!workspace) lent.give_after(p);
    }
    return {};
  }

 private:
  enum class Place : std::uint8_t { kNone, kInput, kOutput, kWorkspace, kConstant };
  // A piece of memory that one or more values live in.
  struct Storage {
    Place place = Place::kWorkspace;
    std::uint32_t index = 0;  // binding
    std::byte* constant = nullptr;
    std::int64_t bytes = 0;
    std::uint64_t offset = 0;  // in the workspace
    std::size_t first_step = SIZE_MAX, last_step = 0;
  };
  struct Home {
    std::uint32_t storage = BP_NONE;
    std::int64_t offset_bytes = 0;
  };
  struct Prepared {
    std::unique_ptr<Kernel> kernel;
    std::size_t first = 0, operand_count = 0;  // into bound_
    std::string name;                          // of its span: the ops, "aten.linear+aten.gelu"
    std::vector<std::uint32_t> first_written;  // outputs
    std::vector<std::uint32_t> last_read;      // inputs
    std::vector<std::uint32_t> begins, ends;   // storages in the workspace
    std::uint64_t scratch_bytes = 0;
  };
  // Memory of intermediates during one call, given back also when the call fails.
  class Lent {
   public:
    Lent(const Lending& lending, std::size_t storage_count)
        : lending_(lending), ranges_(storage_count) {}
    ~Lent() {
      for (Range& range : ranges_) give(range, BP_WORKSPACE_INTERMEDIATE);
      give(scratch_, BP_WORKSPACE_SCRATCH);
    }
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;

    Status take(std::uint32_t storage, std::int64_t bytes, std::byte*& out_address) {
      return take(ranges_[storage], static_cast<std::uint64_t>(bytes), BP_WORKSPACE_INTERMEDIATE,
                  out_address);
    }
    Status take_scratch(std::uint64_t bytes, std::byte*& out_address) {
      return bytes == 0 ? Status() : take(scratch_, bytes, BP_WORKSPACE_SCRATCH, out_address);
    }
    void give_after(const Prepared& step) {
      for (const std::uint32_t storage : step.ends)
        give(ranges_[storage], BP_WORKSPACE_INTERMEDIATE);
      give(scratch_, BP_WORKSPACE_SCRATCH);
    }

   private:
    Status take(Range& range, std::uint64_t bytes, bp_workspace_kind kind,
                std::byte*& out_address) {
      auto taken = lending_.lend_workspace(bytes, kind);
      if (!taken.ok()) return taken.status();
      range = *taken;
      out_address = range.data();
      return {};
    }
    void give(Range& range, bp_workspace_kind kind) {
      if (range.bytes() != 0) lending_.workspace_done(range, kind);
      range = Range();
    }

    const Lending& lending_;
    std::vector<Range> ranges_;  // by storage
    Range scratch_;
  };
  struct Bound {
    Place place = Place::kNone;
    std::uint32_t index = 0;
    std::int64_t offset = 0;
    std::byte* constant = nullptr;
  };

  Status lend_outputs(const Prepared& step, std::span<std::byte* const> outputs,
                      const Lending& lending, std::vector<std::byte*>& addresses) const {
    for (const std::uint32_t output : step.first_written) {
      if (outputs[output] != nullptr) continue;
      auto range = lending.lend_output(output);
      if (!range.ok()) return range.status();
      for (const std::size_t at : bound_to_output_[output])
        addresses[at] = range->data() + bound_[at].offset;
    }
    return {};
  }

  Status lend_intermediates(const Prepared& step, Lent& lent, std::vector<std::byte*>& addresses,
                            std::byte*& out_scratch) const {
    for (const std::uint32_t storage : step.begins) {
      std::byte* base = nullptr;
      BP_SDK_RETURN_IF_ERROR(lent.take(storage, storages_[storage].bytes, base));
      for (const std::size_t at : bound_to_storage_[storage])
        addresses[at] = base + bound_[at].offset;
    }
    return lent.take_scratch(step.scratch_bytes, out_scratch);
  }

  // When memory is first written and last read, by step.
  void find_lifetimes(const GraphView& graph) {
    bound_to_output_.resize(graph.outputs().size());
    bound_to_storage_.resize(storages_.size());
    for (std::size_t i = 0; i < bound_.size(); ++i) {
      if (bound_[i].place == Place::kOutput) bound_to_output_[bound_[i].index].push_back(i);
      if (bound_[i].place == Place::kWorkspace) bound_to_storage_[bound_[i].index].push_back(i);
    }
    for (std::uint32_t id = 0; id < storages_.size(); ++id) {
      const Storage& s = storages_[id];
      if (s.place != Place::kWorkspace || s.first_step == SIZE_MAX) continue;
      prepared_[s.first_step].begins.push_back(id);
      prepared_[s.last_step].ends.push_back(id);
    }
    std::vector<bool> lent(graph.outputs().size(), false);
    for (std::size_t p = 0; p < prepared_.size(); ++p) {
      const std::size_t end = p + 1 < prepared_.size() ? prepared_[p + 1].first : bound_.size();
      for (std::size_t i = prepared_[p].first; i < end; ++i) {
        if (bound_[i].place != Place::kOutput || lent[bound_[i].index]) continue;
        lent[bound_[i].index] = true;
        prepared_[p].first_written.push_back(bound_[i].index);
      }
    }
    for (const Storage& s : storages_) {
      if (s.place != Place::kInput) continue;
      (s.first_step == SIZE_MAX ? unread_ : prepared_[s.last_step].last_read).push_back(s.index);
    }
  }

  void resolve(const GraphView& graph, std::span<const bp_layout> layouts, const Dims& dims) {
    specs_.resize(graph.value_count());
    for (std::uint32_t i = 0; i < specs_.size(); ++i) {
      const ValueView v = graph.value(i);
      specs_[i].dtype = v.dtype();
      specs_[i].dims = dims(v.dims());
      specs_[i].strides = dims(v.strides());
    }
    for (std::size_t i = 0; i < layouts.size(); ++i) specs_[graph.inputs()[i]].layout = layouts[i];
  }

  std::uint32_t new_storage(Storage s) {
    storages_.push_back(s);
    return static_cast<std::uint32_t>(storages_.size() - 1);
  }

  void place(const GraphView& graph, const Dims& dims) {
    homes_.assign(graph.value_count(), {});
    for (std::uint32_t i = 0; i < graph.inputs().size(); ++i) {
      Storage s;
      s.place = Place::kInput;
      s.index = i;
      homes_[graph.inputs()[i]] = {new_storage(s), 0};
    }
    for (std::uint32_t i = 0; i < homes_.size(); ++i) {
      const bp_value& v = graph.value(i).raw();
      if ((v.flags & BP_VALUE_CONSTANT) == 0 || v.producer != BP_NONE) continue;
      Storage s;
      s.place = Place::kConstant;
      s.constant = static_cast<std::byte*>(const_cast<void*>(v.data));  // kernels only read it
      homes_[i] = {new_storage(s), 0};
    }
    for (std::size_t n = 0; n < graph.size(); ++n) {
      const NodeView node = graph[n];
      const bool view = is_view_op(node.op());
      for (std::size_t r = 0; r < node.result_count(); ++r) {
        const std::uint32_t result = node.result_index(r);
        if (result == BP_NONE) continue;
        if (view && specs_[node.operand_index(0)].layout.kind != BP_LAYOUT_OPAQUE) {
          const std::uint32_t in = node.operand_index(0);
          homes_[result] = homes_[in];
          homes_[result].offset_bytes +=
              detail::view_offset(node, specs_[in], r, dims) * element_bytes(specs_[in].dtype);
        } else {
          Storage s;
          s.bytes = std::max<std::int64_t>(specs_[result].span_bytes(), 1);
          homes_[result] = {new_storage(s), 0};
        }
      }
    }
    // An output moves its storage into the binding when it covers all of it; else it is copied.
    output_copied_.assign(graph.outputs().size(), false);
    for (std::uint32_t i = 0; i < graph.outputs().size(); ++i) {
      const std::uint32_t value = graph.outputs()[i];
      Storage& s = storages_[homes_[value].storage];
      if (s.place == Place::kWorkspace && homes_[value].offset_bytes == 0 &&
          specs_[value].span_bytes() == s.bytes) {
        s.place = Place::kOutput;
        s.index = i;
      } else {
        output_copied_[i] = true;
      }
    }
  }

  void bind(std::uint32_t value) {
    Bound b;
    if (value != BP_NONE && specs_[value].elements() != 0) {
      const Home& home = homes_[value];
      Storage& s = storages_[home.storage];
      s.first_step = std::min(s.first_step, prepared_.size());
      s.last_step = std::max(s.last_step, prepared_.size());
      b.place = s.place;
      b.index = s.place == Place::kWorkspace ? home.storage : s.index;
      b.offset = home.offset_bytes;
      b.constant = s.constant;
    }
    bound_.push_back(b);
  }

  Status add_step(const GraphView& graph, const Step& step, const Dims& dims,
                  const KernelFactory& factory) {
    auto kernel = factory(StepContext(graph, step, specs_, dims));
    if (!kernel.ok()) return kernel.status();
    Prepared p;
    p.first = bound_.size();
    p.operand_count = step.operands.size();
    for (std::uint32_t v : step.operands) bind(v);
    for (std::uint32_t v : step.results) bind(v);
    p.scratch_bytes = (*kernel)->scratch_bytes();
    scratch_bytes_ = std::max(scratch_bytes_, p.scratch_bytes);
    p.kernel = std::move(*kernel);
    for (std::size_t i = 0; i < step.nodes.size(); ++i)
      (p.name += i ? "+" : "") += graph[step.nodes[i]].op();
    if (step.is_copy()) p.name = "copy";
    prepared_.push_back(std::move(p));
    return {};
  }

  Status prepare(const GraphView& graph, std::span<const Step> steps, const Dims& dims,
                 const KernelFactory& factory) {
    for (const Step& step : steps) {
      // Views need no kernel; neither does a step that writes nothing.
      if (step.nodes.size() == 1 && is_view_op(graph[step.nodes[0]].op())) continue;
      BP_SDK_RETURN_IF_ERROR(add_step(graph, step, dims, factory));
    }
    for (std::uint32_t i = 0; i < graph.outputs().size(); ++i) {
      if (!output_copied_[i] || specs_[graph.outputs()[i]].elements() == 0) continue;
      const Step copy{{}, {graph.outputs()[i]}, {graph.outputs()[i]}};
      BP_SDK_RETURN_IF_ERROR(add_step(graph, copy, dims, factory));
      bound_.back() = {Place::kOutput, i, 0, nullptr};
    }
    return {};
  }

  // Lifetimes over steps; largest first, lowest free offset.
  void plan_workspace(const GraphView&) {
    std::vector<std::uint32_t> order;
    for (std::uint32_t i = 0; i < storages_.size(); ++i)
      if (storages_[i].place == Place::kWorkspace && storages_[i].first_step != SIZE_MAX)
        order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return storages_[a].bytes > storages_[b].bytes;
    });
    std::vector<std::uint32_t> placed;  // sorted by offset
    std::uint64_t total = 0;
    for (std::uint32_t id : order) {
      Storage& s = storages_[id];
      const auto bytes = align(static_cast<std::uint64_t>(s.bytes));
      std::uint64_t at = 0;
      for (std::uint32_t other : placed) {
        const Storage& o = storages_[other];
        if (o.last_step < s.first_step || o.first_step > s.last_step) continue;
        if (o.offset >= at + bytes) break;
        at = std::max(at, o.offset + align(static_cast<std::uint64_t>(o.bytes)));
      }
      s.offset = at;
      total = std::max(total, at + bytes);
      placed.insert(std::upper_bound(placed.begin(), placed.end(), id,
                                     [&](std::uint32_t a, std::uint32_t b) {
                                       return storages_[a].offset < storages_[b].offset;
                                     }),
                    id);
    }
    scratch_offset_ = total;
    workspace_bytes_ = total + align(scratch_bytes_);
    pointer_count_ = bound_.size();
  }
  static std::uint64_t align(std::uint64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  std::vector<TensorSpec> specs_;
  std::vector<Home> homes_;
  std::vector<Storage> storages_;
  std::vector<bool> output_copied_;
  std::vector<Prepared> prepared_;
  std::vector<Bound> bound_;
  std::vector<std::vector<std::size_t>> bound_to_output_, bound_to_storage_;  // into bound_
  std::vector<std::uint32_t> unread_;  // inputs that no step reads
  std::size_t pointer_count_ = 0;
  std::uint64_t scratch_bytes_ = 0, scratch_offset_ = 0, workspace_bytes_ = 0;
};

// One step per node, in order.
inline std::vector<Step> step_per_node(const GraphView& graph) {
  std::vector<Step> steps;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    Step step{{static_cast<std::uint32_t>(i)}, {}, {}};
    for (std::size_t k = 0; k < graph[i].operand_count(); ++k)
      step.operands.push_back(graph[i].operand_index(k));
    for (std::size_t k = 0; k < graph[i].result_count(); ++k)
      step.results.push_back(graph[i].result_index(k));
    steps.push_back(std::move(step));
  }
  return steps;
}

class ProgramExecutable : public Executable {
 public:
  static constexpr std::size_t kInstanceLimit = 256;  // sets of sizes kept, least recently used out

  // `input_layouts` may be empty: all strided.
  ProgramExecutable(const Subgraph& graph, std::vector<Step> steps, KernelFactory factory,
                    std::vector<bp_layout> input_layouts = {}, Relayout relayout = {})
      : graph_(graph.raw()),
        view_(graph_.view()),
        steps_(std::move(steps)),
        factory_(std::move(factory)),
        layouts_(std::move(input_layouts)),
        relayout_(std::move(relayout)) {
    const bp_io_contract plain{0, BP_SIZE_STATIC, {BP_LAYOUT_STRIDED, 0, 0}, 0, BP_NONE, 0};
    dim_class_count = view_.dim_class_count();
    inputs.resize(view_.inputs().size(), plain);
    outputs.resize(view_.outputs().size(), plain);
    for (std::size_t i = 0; i < layouts_.size(); ++i) inputs[i].layout = layouts_[i];
  }

  // Intermediates come from bp_lending one by one instead of one workspace for the whole call.
  // Costs two calls of the host for each; worth it where much else is alive meanwhile.
  void lend_intermediates() { lends_intermediates_ = true; }

  Result<std::uint64_t> workspace_bytes(std::span<const std::int64_t> dims) override {
    if (lends_each()) return std::uint64_t{0};
    auto found = instance(dims);
    if (!found.ok()) return found.status();
    return (*found)->workspace_bytes();
  }

  Status execute(const Execution& call) override {
    auto found = instance({call.dims(), view_.dim_class_count()});
    if (!found.ok()) return found.status();
    std::array<std::byte*, 64> small;
    std::vector<std::byte*> large;
    const std::size_t count = inputs.size() + outputs.size();
    std::byte** at = small.data();
    if (count > small.size()) {
      large.resize(count);
      at = large.data();
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) at[i] = address(call.input(i));
    for (std::size_t i = 0; i < outputs.size(); ++i)
      at[inputs.size() + i] = Range(call.output(i).range).data();
    std::byte* workspace = call.workspace().data();
    const bool lent = lends_each() && call.lending();
    // The host asked for the size at another variant, or lends nothing: this call brings its own.
    std::unique_ptr<std::byte[]> own;
    if (!lent && (*found)->workspace_bytes() > call.workspace().bytes()) {
      own.reset(new std::byte[(*found)->workspace_bytes() + Instance::kAlignment]);
      const auto base = reinterpret_cast<std::uintptr_t>(own.get());
      workspace = own.get() + (Instance::kAlignment - base % Instance::kAlignment);
    }
    return (*found)->run({at, inputs.size()}, {at + inputs.size(), outputs.size()}, workspace,
                         call.lending());
  }

  const GraphView& graph() const { return view_; }

  // What beside the sizes kernels are prepared for: the number of threads, say.
  virtual std::int64_t variant() const { return 0; }

  // The program at these sizes; made at the first call. Safe from several threads.
  Result<std::shared_ptr<const Instance>> instance(std::span<const std::int64_t> dims) {
    const std::int64_t wanted = variant();
    {
      const std::lock_guard lock(mutex_);
      for (auto it = instances_.begin(); it != instances_.end(); ++it) {
        if (it->variant != wanted ||
            !std::equal(dims.begin(), dims.end(), it->dims.begin(), it->dims.end()))
          continue;
        if (it != instances_.begin()) instances_.splice(instances_.begin(), instances_, it);
        return instances_.front().instance;
      }
    }
    auto made = Instance::make(view_, steps_, layouts_, Dims(dims), factory_, relayout_);
    if (!made.ok()) return made.status();
    const std::lock_guard lock(mutex_);
    instances_.push_front({{dims.begin(), dims.end()}, wanted, *made});
    if (instances_.size() > kInstanceLimit) instances_.pop_back();
    return *made;
  }

 private:
  // Under BACKPLANE_CHECK=memory the host sees each intermediate by itself.
  bool lends_each() const {
    static const bool checked = [] {
      const char* const text = std::getenv("BACKPLANE_CHECK");
      return text != nullptr && std::string_view(text) == "memory";
    }();
    return lends_intermediates_ || (checked && (flags & BP_EXECUTABLE_LENDING) != 0);
  }

  struct Entry {
    std::vector<std::int64_t> dims;
    std::int64_t variant;
    std::shared_ptr<const Instance> instance;
  };
  // A host scalar is bound by value: its address is that of the binding's own bytes.
  static std::byte* address(const bp_binding& binding) {
    if (binding.range.buffer == nullptr && binding.range.host == nullptr)
      return reinterpret_cast<std::byte*>(const_cast<std::uint64_t*>(binding.scalar));
    return Range(binding.range).data();
  }

  OwnedGraph graph_;
  GraphView view_;
  std::vector<Step> steps_;
  KernelFactory factory_;
  std::vector<bp_layout> layouts_;
  Relayout relayout_;
  bool lends_intermediates_ = false;
  std::mutex mutex_;
  std::list<Entry> instances_;
};

}  // namespace backplane::sdk
