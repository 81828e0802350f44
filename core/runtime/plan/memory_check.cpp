#include "core/runtime/plan/memory_check.h"

#include <algorithm>
#include <cstdlib>

#include "core/base/content_hash.h"
#include "core/ir/view.h"
#include "core/runtime/plan/checked_execution.h"
#include "core/runtime/plan/guarded_range.h"
#include "core/runtime/plugin/plugin.h"

namespace backplane::runtime {

namespace {

// By value: made by an operator that leaves its result unset, or computed from that.
std::vector<bool> find_unset(const ir::Graph& graph) {
  std::vector<bool> out(graph.values.size(), false);
  for (const ir::Node& node : graph.nodes) {
    const bool unset =
        node.op->name.find("empty") != std::string_view::npos ||
        node.op->name.starts_with("aten.resize") ||
        std::ranges::any_of(node.operands, [&](ir::ValueId v) { return v != ir::kNone && out[v]; });
    for (const ir::ValueId result : node.results)
      if (result != ir::kNone) out[result] = unset;
  }
  return out;
}

}  // namespace

Result<bool> memory_checks() {
  const char* const text = std::getenv("BACKPLANE_CHECK");
  const std::string_view wanted = text != nullptr ? text : "";
  if (wanted.empty() || wanted == "memory") return !wanted.empty();
  return Status(Code::kInvalidArgument,
                "BACKPLANE_CHECK is '" + std::string(wanted) + "'; it must be 'memory' or empty");
}

MemoryCheck::MemoryCheck(CallFrame& frame)
    : frame_(frame),
      graph_(frame.graph_),
      contents_(frame.graph_.slots_.size()),
      may_be_unset_(find_unset(frame.graph_.graph_)) {}

Device* MemoryCheck::device_of(std::uint32_t slot) const {
  return graph_.places_[graph_.slots_[slot].place];
}

std::vector<std::uint32_t> MemoryCheck::reads(std::uint32_t step) const {
  const CompiledGraph::Step& s = graph_.steps_[step];
  std::vector<std::uint32_t> out;
  switch (s.kind) {
    case CompiledGraph::StepKind::kUpload:
    case CompiledGraph::StepKind::kDownload:
      return {s.index};
    case CompiledGraph::StepKind::kExecute:
      for (const auto& bound : graph_.partitions_[s.index].inputs) out.push_back(bound.slot);
      break;
    case CompiledGraph::StepKind::kFallback:
      for (const ir::ValueId operand : graph_.graph_.nodes[s.index].operands) {
        if (operand == ir::kNone) continue;
        const std::uint32_t slot =
            graph_.host_slot_of_value_[ir::view_root(graph_.graph_, operand)];
        if (slot != ir::kNone) out.push_back(slot);
      }
      break;
  }
  return out;
}

std::vector<std::uint32_t> MemoryCheck::writes(std::uint32_t step) const {
  const CompiledGraph::Step& s = graph_.steps_[step];
  std::vector<std::uint32_t> out;
  switch (s.kind) {
    case CompiledGraph::StepKind::kUpload:
    case CompiledGraph::StepKind::kDownload:
      return {s.target};
    case CompiledGraph::StepKind::kExecute:
      for (const auto& bound : graph_.partitions_[s.index].outputs) out.push_back(bound.slot);
      break;
    case CompiledGraph::StepKind::kFallback:
      for (const ir::ValueId result : graph_.graph_.nodes[s.index].results)
        if (result != ir::kNone) out.push_back(graph_.host_slot_of_value_[result]);
      break;
  }
  return out;
}

Result<std::uint64_t> MemoryCheck::hash(std::uint32_t slot) const {
  const bp_range range = frame_.range(slot);
  if (range.buffer == nullptr) {
    if (range.host == nullptr || range.size_bytes == 0) return std::uint64_t{0};
    return content_hash(static_cast<const char*>(range.host) + range.offset_bytes,
                        static_cast<std::size_t>(range.size_bytes));
  }
  BP_ASSIGN_OR_RETURN(const std::vector<std::byte> content, read_range(device_of(slot), range));
  return content_hash(content.data(), content.size());
}

Status MemoryCheck::begin() {
  contents_.assign(contents_.size(), {});
  for (std::size_t place = 0; place < graph_.places_.size(); ++place) {
    const std::uint64_t bytes = frame_.plan_->place_bytes[place];
    bp_range arena{nullptr, frame_.host_arena_.data(), 0, bytes};
    if (place != 0) arena = {frame_.places_[place].arena.get(), nullptr, 0, bytes};
    BP_RETURN_IF_ERROR(fill_range(graph_.places_[place], arena, Filling::kUnwritten));
  }
  for (std::uint32_t id = 0; id < contents_.size(); ++id) {
    if (graph_.slots_[id].kind != CompiledGraph::SlotKind::kInput) continue;
    BP_ASSIGN_OR_RETURN(contents_[id].hash, hash(id));
    contents_[id].state = State::kWritten;
  }
  return {};
}

std::string MemoryCheck::owner_text(std::uint32_t slot) const {
  const auto extent = [&](std::uint32_t id) {
    const bp_range r = frame_.range(id);
    const auto begin = r.buffer == nullptr
                           ? reinterpret_cast<std::uintptr_t>(r.host) + r.offset_bytes
                           : static_cast<std::uintptr_t>(r.offset_bytes);
    return std::pair(begin, begin + r.size_bytes);
  };
  const auto [begin, end] = extent(slot);
  for (std::uint32_t id = 0; id < contents_.size(); ++id) {
    const CompiledGraph::Slot& other = graph_.slots_[id];
    if (id == slot || other.kind == CompiledGraph::SlotKind::kPack ||
        contents_[id].state == State::kUnwritten ||
        (frame_.range(id).buffer == nullptr) != (frame_.range(slot).buffer == nullptr))
      continue;
    const auto [first, last] = extent(id);
    if (first >= end || begin >= last) continue;
    return ". It lies in the memory of " + graph_.value_text(other.root) +
           (contents_[id].state == State::kFreed
                ? ", which nobody needs after step " + std::to_string(contents_[id].step)
                : "");
  }
  return "";
}

Status MemoryCheck::check_content(std::uint32_t id, const std::string& reader) {
  const CompiledGraph::Slot& slot = graph_.slots_[id];
  if (slot.kind == CompiledGraph::SlotKind::kPack || frame_.plan_->slot_bytes[id] == 0) return {};
  const Content& content = contents_[id];
  const std::string start = "BACKPLANE_CHECK=memory: " + graph_.value_text(slot.root);
  switch (content.state) {
    case State::kUnwritten:
      return {Code::kInternal, start + " was not written before it was read by " + reader};
    case State::kFreed:
      return {Code::kInternal, start + " was given up after step " + std::to_string(content.step) +
                                   ", and is read by " + reader};
    case State::kWritten:
      break;
  }
  BP_ASSIGN_OR_RETURN(const std::uint64_t now, hash(id));
  if (now == content.hash) return {};
  const std::string written = slot.kind == CompiledGraph::SlotKind::kInput
                                  ? ", an input,"
                                  : ", written in " + graph_.step_text(content.step) + ",";
  return {Code::kInternal, start + written + " had changed before it was read by " + reader +
                               owner_text(id) + writer_text(id)};
}

std::string MemoryCheck::writer_text(std::uint32_t id) const {
  if (graph_.slots_[id].kind == CompiledGraph::SlotKind::kInput) return "";
  const std::uint32_t place = frame_.place_of(graph_.steps_[contents_[id].step]);
  const Device* const device = graph_.places_[place];
  if (device == nullptr) return "";
  return ". Plugin '" + device->plugin().name() + "' (" + device->label() + ") wrote it" +
         (device->has_streams() ? ", or still did: an event may have come before its work" : "");
}

Status MemoryCheck::before(std::uint32_t step) {
  for (const std::uint32_t slot : reads(step))
    BP_RETURN_IF_ERROR(check_content(slot, graph_.step_text(step)));
  return {};
}

Status MemoryCheck::after(std::uint32_t step) {
  for (const std::uint32_t slot : writes(step)) {
    BP_ASSIGN_OR_RETURN(contents_[slot].hash, hash(slot));
    contents_[slot].state = State::kWritten;
    contents_[slot].step = step;
  }
  for (std::uint32_t id = 0; id < contents_.size(); ++id) {
    const CompiledGraph::Slot& slot = graph_.slots_[id];
    if (!slot.dies_after(step) || contents_[id].state != State::kWritten) continue;
    if (slot.kind == CompiledGraph::SlotKind::kArena) {
      BP_RETURN_IF_ERROR(fill_range(device_of(id), frame_.range(id), Filling::kFreed));
    } else if (slot.kind == CompiledGraph::SlotKind::kPack) {
      continue;
    }
    contents_[id].state = State::kFreed;
    contents_[id].step = step;
  }
  return {};
}

Status MemoryCheck::end() {
  for (std::uint32_t id = 0; id < contents_.size(); ++id)
    if (contents_[id].state == State::kWritten) BP_RETURN_IF_ERROR(check_content(id, "the caller"));
  return {};
}

Status MemoryCheck::execute(std::uint32_t step, const bp_execute_args& args) {
  return CheckedExecution(*this, step, args).run();
}

}  // namespace backplane::runtime
