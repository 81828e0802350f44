// What one call in flight owns: arenas, streams, address table, binding arrays. Frames are kept and
// reused, so that a steady-state call allocates nothing.
#pragma once

#include <memory>
#include <vector>

#include "core/runtime/compiled_graph.h"

namespace backplane::runtime {

inline constexpr std::uint64_t kHostAlignment = 64;

struct CompiledGraph::Sizes {
  struct PartitionSizes {
    std::vector<std::uint64_t> input_bytes, input_offset;  // offset: of the view in its root
    std::uint64_t workspace_bytes = 0, workspace_offset = 0;
  };
  std::vector<std::int64_t> class_values;
  std::vector<std::uint64_t> slot_bytes, slot_offset;  // offset: in the place's arena
  std::vector<std::uint64_t> place_bytes;
  std::vector<PartitionSizes> partitions;
};

class Frame final : public FallbackRunner::Memory {
 public:
  explicit Frame(CompiledGraph& graph);
  ~Frame() override;
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  Status run(const CompiledGraph::Sizes& sizes, const CompiledGraph::Call& call);
  // Waits for everything this frame has under way; after a failed run.
  void drain();

  void* address(ir::ValueId root) const override;
  void set_address(ir::ValueId root, void* data) override;
  std::span<const std::int64_t> dim_values() const override { return sizes_->class_values; }

 private:
  struct HostArena {
    void operator()(void* memory) const;
  };
  struct PlaceState {
    DeviceBuffer arena;
    bp_stream* stream = nullptr;
    bp_event* event = nullptr;
  };
  Status check(const CompiledGraph::Call& call) const;
  Status prepare();
  Status finish_resident();
  Status copy(const CompiledGraph::Step& step);
  Status execute(const CompiledGraph::Step& step);
  bp_range range(std::uint32_t slot) const;
  bp_order order(std::uint32_t place, bool signals);
  Status wait(std::uint32_t place);

  CompiledGraph& graph_;
  const CompiledGraph::Sizes* sizes_ = nullptr;  // of the current call
  const CompiledGraph::Call* call_ = nullptr;
  std::uint64_t call_id_ = 0;
  std::unique_ptr<void, HostArena> host_arena_;
  std::uint64_t host_arena_bytes_ = 0;
  std::vector<PlaceState> places_;
  std::vector<void*> fallback_address_;  // by slot
  std::vector<bp_binding> inputs_, outputs_;
};

}  // namespace backplane::runtime
