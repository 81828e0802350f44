// A graph compiled for a set of devices: a static plan of steps, and per set of sizes an arena and
// ready-made bindings. Knows nothing of torch: the caller lends memory for inputs and outputs and
// runs the nodes that no plugin took.
//
// Every value lives in the memory of its view root. A plan talks about roots and places:
//   place 0   host memory, shared with devices that bind it
//   place k   device k's own memory
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/ir/dim_expression.h"
#include "core/ir/graph.h"
#include "core/partition/partition.h"
#include "core/runtime/plan/plan.h"
#include "core/runtime/plugin/device.h"
#include "core/runtime/plugin/executable.h"
#include "core/runtime/plugin/pack_cache.h"

namespace backplane::runtime {

enum class Role : std::uint8_t { kInference, kForward, kBackward };

// Inputs and outputs that the caller keeps in the memory of one device between calls. Such a call
// goes through the device's queue, and may return while its work is under way.
struct Residence {
  Device* device = nullptr;           // null: everything is on the host
  std::vector<bool> inputs, outputs;  // by position in the graph's
  // Of the outputs: those that stay on the host if a fallback makes them. May be empty.
  std::vector<bool> kept_where_made;
};

// Nodes that a device is not to get, though it claims them, and why.
struct Withdrawal {
  const Device* device = nullptr;
  std::vector<ir::NodeId> nodes;
  std::string reason;
};

struct CompileOptions {
  Role role = Role::kInference;
  bool pack_weights = true;  // static inputs may take opaque layouts
  Residence residence;
  partition::Options partition;
  std::vector<Withdrawal> withdrawals;
};

// Runs nodes on the host's own framework and keeps their results for the length of a call.
class FallbackRunner {
 public:
  virtual ~FallbackRunner() = default;
  // Address of a root in host memory, for operands.
  class Memory {
   public:
    virtual ~Memory() = default;
    virtual void* address(ir::ValueId root) const = 0;
    // Where the runner put a result's root; it stays valid until the call ends.
    virtual void set_address(ir::ValueId root, void* data) = 0;
    virtual std::span<const std::int64_t> dim_values() const = 0;
  };
  // Throws nothing: plugins may be at work in the call's memory.
  virtual Status run(ir::NodeId node, Memory& memory) = 0;
  // The result's last reader has run, and it is no output.
  virtual void release(ir::ValueId /*root*/) {}
};

// Gives the memory of outputs when they are first written, and hears when inputs were read for the
// last time.
class MemoryLender {
 public:
  virtual ~MemoryLender() = default;
  virtual Result<void*> lend_output(std::size_t position) = 0;  // in exports()
  virtual void release_input(std::size_t position) = 0;
};

// What one partition is and what it cost so far.
struct PartitionReport {
  std::string device;  // label, "aten" for the host
  std::vector<ir::NodeId> nodes;
  double predicted_ns = 0;
  std::atomic<std::uint64_t> measured_ns{0}, calls{0};
  bool from_cache = false;
  PartitionReport() = default;
  PartitionReport(const PartitionReport&) = delete;
};
struct RefusalReport {
  ir::NodeId node = 0;
  std::string device, text;
};

class CompiledGraph {
 public:
  // How a caller makes output i: a view of the memory of `root`.
  enum class Source : std::uint8_t { kInput, kConstant, kPlugin, kFallback };
  struct Export {
    ir::ValueId root = 0;
    Source source = Source::kPlugin;
    // kPlugin and kFallback: the memory lent for it is the device's, else the host's.
    bool on_device = false;
  };

  static Result<std::unique_ptr<CompiledGraph>> compile(
      ir::Graph graph, const std::vector<Device*>& devices, const CompileOptions& options,
      std::span<const std::string> integer_arguments);
  ~CompiledGraph();
  CompiledGraph(const CompiledGraph&) = delete;
  CompiledGraph& operator=(const CompiledGraph&) = delete;

  const ir::Graph& graph() const { return graph_; }
  const ir::DimProgram& dim_program() const { return dim_program_; }
  // The roots of the outputs, each once, inputs included.
  const std::vector<Export>& exports() const { return exports_; }
  // Positions in graph().inputs that are packed or resident on a device.
  std::span<const std::uint32_t> packed_inputs() const { return packed_inputs_; }
  // The device that inputs and outputs are bound on. Null also where it works on the host's memory:
  // then they are bound by address like all others.
  Device* resident_device() const { return places_[resident_place_]; }

  // At these values of the dim classes. Made anew: the caller keeps it.
  Result<std::unique_ptr<const Plan>> plan(std::span<const std::int64_t> class_values) const;

  using PackSet = std::vector<std::shared_ptr<const Pack>>;
  // The packs of the static inputs, as they are now; `tensors` in the order of packed_inputs(),
  // which become what is packed: the view that the device wants, with its dtype, dims and strides.
  Result<std::shared_ptr<const PackSet>> packs(std::span<StaticTensor> tensors);

  struct Call {
    std::span<void* const> inputs;   // address per graph input; ignored for packed ones
    std::span<void* const> outputs;  // address per export whose source is kPlugin
    // Instead of an address, by the same positions: where they are on the resident device. Both are
    // empty on a graph without one.
    std::span<const bp_range> device_inputs = {}, device_outputs = {};
    // Where the work of a resident device goes; null: its own queue.
    DeviceQueue* queue = nullptr;
    const PackSet* packs = nullptr;
    FallbackRunner* fallback = nullptr;
    // Where set: `outputs` that are null are asked of it, each once and only if it has a size.
    MemoryLender* lender = nullptr;
    // Where set: a partition whose plugin answered `execute` with UNSUPPORTED.
    std::optional<std::uint32_t>* out_refused = nullptr;
  };
  // Any thread, several calls at a time. Returns when all outputs on the host are written.
  Status run(const Plan& plan, const Call& call);
  // Before any lock that a thread of the parent may have held when this process was forked.
  Status check_process() const;
  // After a failed run: whether one of its devices may still work in the caller's memory, which is
  // then never to be given back.
  bool was_given_up() const;
  // Of a partition, by its number, that failed or gave something wrong at these sizes; what to add
  // to the message (replay.h).
  std::string keep_for_replay(std::size_t partition, std::span<const std::int64_t> class_values,
                              const std::string& message) const;
  std::size_t partition_count() const { return partitions_.size(); }
  // What takes a partition from its device, in another compile of graph().
  Withdrawal withdrawal_of(std::size_t partition, const std::string& reason) const;

  // ---- Reports
  const std::vector<std::unique_ptr<PartitionReport>>& partitions() const { return reports_; }
  const std::vector<RefusalReport>& refusals() const { return refusals_; }
  std::size_t fallback_node_count() const;  // views do not count
  std::size_t plugin_node_count() const;
  std::string print_plan() const;
  double compile_ns() const { return compile_ns_; }
  // Times partitions while on; costs two clock reads per partition.
  void set_timing(bool on) { timing_.store(on, std::memory_order_relaxed); }

 private:
  friend class PlanBuilder;
  friend class CallFrame;
  friend class MemoryCheck;
  friend class CheckedExecution;

  enum class StepKind : std::uint8_t { kUpload, kDownload, kExecute, kFallback };
  struct Step {
    StepKind kind = StepKind::kExecute;
    std::uint32_t index = 0;   // slot to copy from, partition, or node
    std::uint32_t target = 0;  // copies: slot to copy to
    CopyCause cause = CopyCause::kOther;
    bool signals = false;  // the host waits for its device after this step
  };
  enum class SlotKind : std::uint8_t { kInput, kOutput, kFallback, kArena, kPack };
  // Memory of one root in one place. A pack's root is the value that was packed.
  struct Slot {
    ir::ValueId root = 0;
    std::uint32_t place = 0;
    SlotKind kind = SlotKind::kArena;
    std::uint32_t index = 0;  // input, export or pack position
    std::uint32_t first_step = UINT32_MAX, last_step = 0;
    bool is_output = false;  // the caller reads it after the call
    bool dies_after(std::uint32_t step) const { return last_step == step && !is_output; }
  };
  struct Bound {  // one operand or result of a partition
    std::uint32_t slot = 0;
    ir::ValueId value = 0;
  };
  struct CompiledPartition {
    Device* device = nullptr;
    std::uint32_t place = 0;
    std::unique_ptr<Executable> executable;
    std::vector<Bound> inputs, outputs;
    std::uint32_t report = 0;
  };

  explicit CompiledGraph(ir::Graph graph);
  std::unique_ptr<class CallFrame> take_frame();
  bool forget_what_is_lost();
  // For messages.
  std::string value_text(ir::ValueId value) const;
  std::string step_text(std::uint32_t step) const;

  ir::Graph graph_;
  ir::DimProgram dim_program_;
  std::vector<Device*> places_;  // places_[0] is null: the host
  std::uint32_t resident_place_ = 0;
  std::vector<Slot> slots_;
  std::vector<Step> steps_;
  std::vector<std::vector<std::uint32_t>> released_after_;  // slots, by step
  std::vector<CompiledPartition> partitions_;
  std::vector<Export> exports_;
  std::vector<std::uint32_t> packed_inputs_;
  // A static input, or a view of one, as a device wants it.
  struct PackWish {
    std::uint32_t input = 0;
    Device* device = nullptr;
    bp_layout layout{};
    ir::DType dtype = ir::DType::kFloat32;
    std::vector<std::int64_t> dims, strides;
    std::int64_t offset_bytes = 0;  // into the input
  };
  std::vector<PackWish> pack_wishes_;              // parallel to packed_inputs_
  std::vector<std::uint32_t> host_slot_of_value_;  // slot of a root in place 0, or kNone

  std::vector<std::unique_ptr<PartitionReport>> reports_;
  std::vector<RefusalReport> refusals_;
  double compile_ns_ = 0;
  std::atomic<bool> timing_{false};
  bool checks_memory_ = false;  // BACKPLANE_CHECK=memory
  std::atomic<std::uint64_t> next_call_id_{1};

  std::shared_ptr<class IdleFrames> idle_frames_;

  std::mutex mutex_;                      // guards what follows; never held over a plugin call
  std::shared_ptr<const PackSet> packs_;  // null where a stale pack was dropped
  std::uint64_t packs_epoch_ = 0;         // of the PackCache when packs_ was made
};

}  // namespace backplane::runtime
