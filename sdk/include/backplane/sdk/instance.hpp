// Instance: a program at one set of sizes. Where every value lies, and the kernels, ready to run.
#pragma once

#include <backplane/sdk/step.hpp>

#include <memory>
#include <string>

namespace backplane::sdk {

// Memory of constants by value; empty: they are read where the graph has them.
using Constants = std::vector<std::shared_ptr<std::byte>>;

class Instance {
 public:
  static constexpr std::uint64_t kAlignment = 64;

  // `layouts` are the contract's layouts of the inputs (opaque for packed weights).
  static Result<std::shared_ptr<const Instance>> make(const GraphView& graph,
                                                      std::span<const Step> steps,
                                                      std::span<const bp_layout> input_layouts,
                                                      Dims dims, const KernelFactory& factory,
                                                      const Relayout& relayout = {},
                                                      const Constants& constants = {}) {
    auto instance = std::make_shared<Instance>();
    instance->resolve(graph, input_layouts, dims);
    if (relayout) relayout(graph, instance->specs_);
    instance->place(graph, dims, constants);
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
             std::byte* workspace, const Lending& lending = Lending(nullptr),
             CallContext* context = nullptr) const {
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
      const Status status = guarded([&] {
        return p.kernel->run({first, first + p.operand_count, scratch, context});
      });
      if (span != 0) host().span_end(host().host, span);
      if (!status.ok()) return status.about(p.node_ids, p.name);
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
    std::vector<std::uint32_t> node_ids;
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

  void place(const GraphView& graph, const Dims& dims, const Constants& constants) {
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
      // Kernels only read it.
      s.constant = constants.empty() ? static_cast<std::byte*>(const_cast<void*>(v.data))
                                     : constants[i].get();
      homes_[i] = {new_storage(s), 0};
    }
    for (std::size_t n = 0; n < graph.size(); ++n) {
      const NodeView node = graph[n];
      const bool view = node.is_view();
      for (std::size_t r = 0; r < node.result_count(); ++r) {
        const std::uint32_t result = node.result_index(r);
        if (result == BP_NONE) continue;
        if (view) {
          const std::uint32_t in = node.operand_index(0);
          homes_[result] = homes_[in];
          if (specs_[in].layout.kind ==
              BP_LAYOUT_OPAQUE) {  // a weight that somebody packed, turned
            specs_[result].layout = specs_[in].layout;
            continue;
          }
          homes_[result].offset_bytes +=
              view_offset(node.result(r), specs_[in], graph.value(in), dims) *
              element_bytes(specs_[in].dtype);
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
    Prepared p;
    for (std::size_t i = 0; i < step.nodes.size(); ++i) {
      (p.name += i ? "+" : "") += graph[step.nodes[i]].op();
      p.node_ids.push_back(graph[step.nodes[i]].id());
    }
    if (step.is_copy()) p.name = "copy";
    std::unique_ptr<Kernel> kernel;
    const Status status = guarded([&]() -> Status {
      auto made = factory(StepContext(graph, step, specs_, dims));
      if (!made.ok()) return made.status();
      kernel = std::move(*made);
      return {};
    });
    if (!status.ok()) return status.about(p.node_ids, p.name);
    p.first = bound_.size();
    p.operand_count = step.operands.size();
    for (std::uint32_t v : step.operands) bind(v);
    for (std::uint32_t v : step.results) bind(v);
    p.scratch_bytes = kernel->scratch_bytes();
    scratch_bytes_ = std::max(scratch_bytes_, p.scratch_bytes);
    p.kernel = std::move(kernel);
    prepared_.push_back(std::move(p));
    return {};
  }

  Status prepare(const GraphView& graph, std::span<const Step> steps, const Dims& dims,
                 const KernelFactory& factory) {
    for (const Step& step : steps) {
      // Views need no kernel; neither does a step that writes nothing.
      if (step.nodes.size() == 1 && graph[step.nodes[0]].is_view()) continue;
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

}  // namespace backplane::sdk
