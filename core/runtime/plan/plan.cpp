#include "core/runtime/plan/plan.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "core/base/checked.h"
#include "core/ir/view.h"
#include "core/runtime/host/host_arena.h"
#include "core/runtime/plan/compiled_graph.h"

namespace backplane::runtime {

Result<std::unique_ptr<const Plan>> CompiledGraph::plan(
    std::span<const std::int64_t> values) const {
  if (values.size() != graph_.dim_classes.size())
    return Status(Code::kInvalidArgument,
                  "The graph has " + std::to_string(graph_.dim_classes.size()) +
                      " dim classes; given were " + std::to_string(values.size()) + ".");
  auto made = std::make_unique<Plan>();
  made->class_values.assign(values.begin(), values.end());
  made->slot_bytes.resize(slots_.size());
  made->slot_offset.assign(slots_.size(), 0);
  made->place_bytes.assign(places_.size(), 0);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const ir::TensorType& type = graph_.values[slots_[i].root].type;
    const std::vector<std::int64_t> dims = ir::resolve(type.dims, values);
    if (std::ranges::any_of(dims, [](std::int64_t dim) { return dim < 0; }))
      return Status(Code::kInvalidArgument,
                    "%" + graph_.values[slots_[i].root].name + " would have a negative size.");
    made->slot_bytes[i] = static_cast<std::uint64_t>(
        ir::span_bytes(type.dtype, dims, ir::resolve(type.strides, values)));
  }
  for (const CompiledPartition& p : partitions_) {
    Plan::Partition sizes;
    for (const Bound& b : p.inputs) {
      const ir::TensorType& type = graph_.values[b.value].type;
      sizes.input_bytes.push_back(static_cast<std::uint64_t>(ir::span_bytes(
          type.dtype, ir::resolve(type.dims, values), ir::resolve(type.strides, values))));
      sizes.input_offset.push_back(
          slots_[b.slot].root == b.value
              ? 0
              : static_cast<std::uint64_t>(ir::view_offset_bytes(graph_, b.value, values)));
    }
    sizes.dims = class_values_of(graph_, p.executable->offsets(), values);
    BP_ASSIGN_OR_RETURN(sizes.workspace_bytes, p.executable->workspace_bytes(sizes.dims));
    made->partitions.push_back(std::move(sizes));
  }
  // The arena of each place: slots and workspaces by lifetime, largest first, lowest free offset.
  struct Item {
    std::uint64_t bytes, offset;
    std::uint32_t first, last;
    std::uint64_t* out;
  };
  for (std::uint32_t place = 0; place < places_.size(); ++place) {
    const std::uint64_t alignment = place == 0 ? kHostAlignment : places_[place]->alignment_bytes();
    const auto too_large = [&](std::uint64_t bytes, const std::string& what) {
      return Status(Code::kOutOfMemory,
                    (place == 0 ? std::string("the host") : places_[place]->label()) + ": " + what +
                        " of " + std::to_string(bytes) + " bytes, aligned to " +
                        std::to_string(alignment) + ", leaves the address space");
    };
    std::vector<Item> items;
    for (std::size_t i = 0; i < slots_.size(); ++i)
      if (slots_[i].place == place && slots_[i].kind == SlotKind::kArena &&
          slots_[i].first_step != UINT32_MAX) {
        const auto bytes = checked_round_up(made->slot_bytes[i], alignment);
        if (!bytes) return too_large(made->slot_bytes[i], "%" + graph_.values[slots_[i].root].name);
        items.push_back(
            {*bytes, 0, slots_[i].first_step, slots_[i].last_step, &made->slot_offset[i]});
      }
    for (std::uint32_t s = 0; s < steps_.size(); ++s)
      if (steps_[s].kind == StepKind::kExecute && partitions_[steps_[s].index].place == place) {
        Plan::Partition& sizes = made->partitions[steps_[s].index];
        const auto bytes = checked_round_up(sizes.workspace_bytes, alignment);
        if (!bytes) return too_large(sizes.workspace_bytes, "the workspace of " + step_text(s));
        items.push_back({*bytes, 0, s, s, &sizes.workspace_offset});
      }
    std::stable_sort(items.begin(), items.end(),
                     [](const Item& a, const Item& b) { return a.bytes > b.bytes; });
    std::vector<const Item*> placed;  // by offset
    for (Item& item : items) {
      std::uint64_t at = 0;
      for (const Item* other : placed) {
        if (other->last < item.first || other->first > item.last) continue;
        const auto end = checked_add(at, item.bytes);
        if (end && other->offset >= *end) break;
        at = std::max(at, other->offset + other->bytes);  // what is placed has an end
      }
      const auto end = checked_add(at, item.bytes);
      if (!end) return too_large(item.bytes, "one of its values");
      item.offset = *item.out = at;
      made->place_bytes[place] = std::max(made->place_bytes[place], *end);
      placed.insert(
          std::upper_bound(placed.begin(), placed.end(), &item,
                           [](const Item* a, const Item* b) { return a->offset < b->offset; }),
          &item);
    }
  }
  return std::unique_ptr<const Plan>(std::move(made));
}

}  // namespace backplane::runtime
