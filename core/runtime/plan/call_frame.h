// What one call in flight owns: arenas, streams, address table, binding arrays. Frames are kept and
// reused, so that a steady-state call allocates nothing.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "core/runtime/host/host_arena.h"
#include "core/runtime/plan/compiled_graph.h"
#include "core/runtime/plan/plan.h"

namespace backplane::runtime {

class MemoryCheck;

// Of inputs that must stay: more than a partition has bindings.
inline constexpr std::uint32_t kHeld = 1U << 24;

class CallFrame final : public FallbackRunner::Memory {
 public:
  explicit CallFrame(CompiledGraph& graph);
  ~CallFrame() override;
  CallFrame(const CallFrame&) = delete;
  CallFrame& operator=(const CallFrame&) = delete;

  Status run(const Plan& plan, const CompiledGraph::Call& call);
  // Waits for everything this frame has under way; after a failed run.
  void drain();
  void give_host_arena() { host_arena_ = HostArena(); }
  // Of an idle frame; the next call takes another.
  DeviceBuffer give_arena(const Device* device);
  // That its last call's work went to; null before the first, and where nothing is resident.
  DeviceQueue* queue() const { return queue_; }
  // Calls on the resident device return before their work is over.
  bool returns_early() const { return graph_.resident_place_ != 0; }

  void* address(ir::ValueId root) const override;
  void set_address(ir::ValueId root, void* data) override;
  std::span<const std::int64_t> dim_values() const override { return plan_->class_values; }

 private:
  friend class MemoryCheck;
  friend class CheckedExecution;
  struct PlaceState {
    DeviceBuffer arena;
    bp_stream* stream = nullptr;
    bp_event* event = nullptr;
    std::string_view last_nodes;  // executed there in this call, by an executable of the graph
    std::uint32_t first_queued = ir::kNone;  // the step since which nobody has waited there
  };
  Status check(const CompiledGraph::Call& call) const;
  Status prepare();
  Status run_step(std::uint32_t id);
  std::uint32_t place_of(const CompiledGraph::Step& step) const;
  // What a wait there stands for, of this call.
  std::string queued_text(std::uint32_t place) const;
  Status finish_resident();
  Status choose_queue();
  Status copy(const CompiledGraph::Step& step);
  Status execute(const CompiledGraph::Step& step);
  Status lend(std::uint32_t slot);
  void release(std::uint32_t slot);
  // Entries of bp_lending; `user` is the frame.
  static bp_error* lend_output(void* user, std::uint32_t output, bp_range* out_range);
  static void input_done(void* user, std::uint32_t input);
  static bp_error* lend_workspace(void* user, std::uint64_t bytes, bp_workspace_kind kind,
                                  bp_range* out_range);
  static void workspace_done(void* user, const bp_range* range, bp_workspace_kind kind);
  bp_range range(std::uint32_t slot) const;
  bp_order order(std::uint32_t place, bool signals);
  Status wait(std::uint32_t place);
  Status wait_for_work(std::uint32_t place);  // of the stream, up to now
  template <class Work>
  Status retried(std::uint32_t place, Work&& work);

  CompiledGraph& graph_;
  // Each partition is waited for, so that what fails on its queue is known to be its failure.
  const bool keeps_failures_;
  const Plan* plan_ = nullptr;  // of the current call
  const CompiledGraph::Call* call_ = nullptr;
  DeviceQueue* queue_ = nullptr;
  std::uint32_t step_ = 0;  // under way
  bool is_told_ = false;    // its failure says what it was in
  std::uint64_t call_id_ = 0;
  HostArena host_arena_;  // while a call runs
  std::vector<PlaceState> places_;
  std::vector<void*> fallback_address_;       // by slot
  std::vector<void*> lent_;                   // by export
  std::vector<bool> released_;                // by slot
  std::vector<std::uint32_t> open_bindings_;  // by slot, of the partition that is lent memory
  std::uint32_t lending_partition_ = 0;
  std::vector<bp_binding> inputs_, outputs_;
  std::unique_ptr<MemoryCheck> check_;  // null: nothing is checked
};

// Frames of a graph that no call uses.
class IdleFrames {
 public:
  std::unique_ptr<CallFrame> take();  // null where there is none
  void give(std::unique_ptr<CallFrame> frame);
  void clear();
  // A Device::Trim: their arenas on that device go back to it.
  static void trim(Device* device, void* frames);

 private:
  std::mutex mutex_;  // not held over a plugin call
  std::vector<std::unique_ptr<CallFrame>> frames_;
};

}  // namespace backplane::runtime
