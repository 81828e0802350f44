#include "core/runtime/plan/call_frame.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

#include "core/base/log.h"
#include "core/runtime/host/error.h"
#include "core/runtime/host/host_services.h"
#include "core/runtime/plan/lending.h"
#include "core/runtime/plan/memory_check.h"
#include "core/runtime/plan/replay.h"
#include "core/runtime/plugin/device_queue.h"
#include "core/runtime/plugin/plugin.h"

namespace backplane::runtime {

namespace {

MemoryUse memory_use(bp_workspace_kind kind) {
  return kind == BP_WORKSPACE_SCRATCH ? MemoryUse::kScratch : MemoryUse::kValues;
}

}  // namespace

CallFrame::CallFrame(CompiledGraph& graph)
    : graph_(graph), keeps_failures_(keeps_failures()), places_(graph.places_.size()) {
  std::size_t inputs = 0, outputs = 0;
  for (const auto& p : graph.partitions_) {
    inputs = std::max(inputs, p.inputs.size());
    outputs = std::max(outputs, p.outputs.size());
  }
  inputs_.resize(inputs);
  outputs_.resize(outputs);
  fallback_address_.resize(graph.slots_.size());
  open_bindings_.resize(graph.slots_.size());
  if (graph.checks_memory_) check_ = std::make_unique<MemoryCheck>(*this);
}

CallFrame::~CallFrame() {
  // A failure is told to whoever reads what the work was to write.
  if (queue_ != nullptr) queue_->drain();
  for (std::size_t i = 1; i < places_.size(); ++i) {
    Device* device = graph_.places_[i];
    places_[i].arena = DeviceBuffer();
    if (places_[i].event) device->release_event(places_[i].event);
    if (places_[i].stream && i != graph_.resident_place_) device->release_stream(places_[i].stream);
  }
}

Status CallFrame::finish_resident() { return queue_ != nullptr ? queue_->synchronize() : Status(); }

// Its memory is used again in the order of one queue: before it goes to another, the work of the
// old one is over.
Status CallFrame::choose_queue() {
  DeviceQueue* chosen = call_->queue;
  if (chosen == nullptr) {
    BP_ASSIGN_OR_RETURN(chosen, graph_.resident_device()->queue());
  }
  if (queue_ != nullptr && queue_ != chosen) queue_->drain();
  queue_ = chosen;
  places_[graph_.resident_place_].stream = queue_->stream();
  return {};
}

Status CallFrame::prepare() {
  BP_ASSIGN_OR_RETURN(host_arena_, HostArena::take(plan_->place_bytes[0]));
  if (returns_early()) BP_RETURN_IF_ERROR(choose_queue());
  for (std::size_t i = 1; i < places_.size(); ++i) {
    Device* device = graph_.places_[i];
    places_[i].last_nodes = {};
    places_[i].first_queued = ir::kNone;
    if (device->has_streams()) {
      // Each by itself: an earlier call may have got one and not the other.
      if (places_[i].stream == nullptr && i != graph_.resident_place_) {
        BP_ASSIGN_OR_RETURN(places_[i].stream, device->create_stream());
      }
      if (places_[i].event == nullptr) {
        BP_ASSIGN_OR_RETURN(places_[i].event, device->create_event());
      }
    }
    if (places_[i].arena.bytes() < plan_->place_bytes[i]) {
      if (i == graph_.resident_place_ && places_[i].arena) BP_RETURN_IF_ERROR(finish_resident());
      places_[i].arena = DeviceBuffer();
      BP_ASSIGN_OR_RETURN(places_[i].arena, device->allocate(plan_->place_bytes[i]));
    }
  }
  return {};
}

bp_range CallFrame::range(std::uint32_t id) const {
  const CompiledGraph::Slot& slot = graph_.slots_[id];
  const std::uint64_t bytes = plan_->slot_bytes[id];
  void* host = nullptr;
  switch (slot.kind) {
    case CompiledGraph::SlotKind::kPack:
      return (*call_->packs)[slot.index]->range();
    case CompiledGraph::SlotKind::kInput:
      if (slot.place != 0) return call_->device_inputs[slot.index];
      host = call_->inputs[slot.index];
      break;
    case CompiledGraph::SlotKind::kOutput:
      if (slot.place != 0) return call_->device_outputs[slot.index];
      host = lent_[slot.index];
      break;
    case CompiledGraph::SlotKind::kFallback:
      host = fallback_address_[id];
      break;
    case CompiledGraph::SlotKind::kArena:
      if (slot.place != 0)
        return {places_[slot.place].arena.get(), nullptr, plan_->slot_offset[id], bytes};
      host = host_arena_.data() + plan_->slot_offset[id];
      break;
  }
  return {nullptr, host, 0, bytes};
}

void* CallFrame::address(ir::ValueId root) const {
  const std::uint32_t slot = graph_.host_slot_of_value_[root];
  return slot == ir::kNone ? nullptr : range(slot).host;
}

void CallFrame::set_address(ir::ValueId root, void* data) {
  fallback_address_[graph_.host_slot_of_value_[root]] = data;
}

bp_order CallFrame::order(std::uint32_t place, bool signals) {
  bp_order out{};
  if (place == 0) return out;
  out.stream = places_[place].stream;
  if (signals) out.signal = places_[place].event;
  return out;
}

Status CallFrame::wait(std::uint32_t place) {
  if (place == 0 || places_[place].event == nullptr) return {};
  Status status = graph_.places_[place]->wait(places_[place].event, places_[place].last_nodes);
  if (status.ok()) [[likely]] {
    places_[place].first_queued = ir::kNone;
    return status;
  }
  is_told_ = true;
  return {status.code(), status.message() + queued_text(place)};
}

std::uint32_t CallFrame::place_of(const CompiledGraph::Step& step) const {
  switch (step.kind) {
    case CompiledGraph::StepKind::kUpload:
    case CompiledGraph::StepKind::kDownload:
      return std::max(graph_.slots_[step.index].place, graph_.slots_[step.target].place);
    case CompiledGraph::StepKind::kExecute:
      return graph_.partitions_[step.index].place;
    case CompiledGraph::StepKind::kFallback:
      break;
  }
  return 0;
}

std::string CallFrame::queued_text(std::uint32_t place) const {
  constexpr std::size_t kShown = 4;
  std::vector<std::uint32_t> queued;
  if (places_[place].first_queued != ir::kNone)
    for (std::uint32_t id = places_[place].first_queued; id <= step_; ++id)
      if (place_of(graph_.steps_[id]) == place) queued.push_back(id);
  if (queued.empty()) return {};
  std::string text = queued.size() == 1 ? ", in " : ", in one of ";
  // The last ones: a wait ends what was queued after the one before.
  const std::size_t first = queued.size() - std::min(queued.size(), kShown);
  if (first != 0) text += std::to_string(first) + " earlier steps; ";
  for (std::size_t i = first; i < queued.size(); ++i)
    text += (i == first ? "" : "; ") + graph_.step_text(queued[i]);
  return text;
}

Status CallFrame::lend(std::uint32_t id) {
  const CompiledGraph::Slot& slot = graph_.slots_[id];
  if (call_->lender == nullptr || slot.kind != CompiledGraph::SlotKind::kOutput ||
      slot.place != 0 || lent_[slot.index] != nullptr || plan_->slot_bytes[id] == 0)
    return {};
  BP_ASSIGN_OR_RETURN(lent_[slot.index], call_->lender->lend_output(slot.index));
  return {};
}

// What no later step reads goes back.
void CallFrame::release(std::uint32_t id) {
  const CompiledGraph::Slot& slot = graph_.slots_[id];
  if (released_[id]) return;  // by its last reader itself
  released_[id] = true;
  if (slot.kind == CompiledGraph::SlotKind::kFallback)
    call_->fallback->release(slot.root);
  else if (slot.kind == CompiledGraph::SlotKind::kInput && slot.place == 0 &&
           call_->lender != nullptr)
    call_->lender->release_input(slot.index);
}

// Work that found no memory is tried once more after everybody has given up what he keeps for
// later. Its operands are as they were: an executable writes its outputs alone.
template <class Work>
Status CallFrame::retried(std::uint32_t place, Work&& work) {
  Status status = work();
  if (place == 0 || status.code() != Code::kOutOfMemory) [[likely]]
    return status;
  drain();
  graph_.places_[place]->trim();
  return work();
}

bp_error* CallFrame::lend_output(void* user, std::uint32_t output, bp_range* out_range) {
  CallFrame& frame = *static_cast<CallFrame*>(user);
  const auto& outputs = frame.graph_.partitions_[frame.lending_partition_].outputs;
  if (output >= outputs.size()) return make_error(BP_INVALID_ARGUMENT, "no such output");
  const Status status = frame.lend(outputs[output].slot);
  if (!status.ok()) return make_error(BP_OUT_OF_MEMORY, status.message());
  *out_range = frame.range(outputs[output].slot);
  return nullptr;
}

void CallFrame::input_done(void* user, std::uint32_t input) {
  CallFrame& frame = *static_cast<CallFrame*>(user);
  const auto& inputs = frame.graph_.partitions_[frame.lending_partition_].inputs;
  if (input >= inputs.size()) return;
  const std::uint32_t id = inputs[input].slot;
  // Several views of one value may be bound: the last one counts.
  if (--frame.open_bindings_[id] == 0) frame.release(id);
}

bp_error* CallFrame::lend_workspace(void* /*user*/, std::uint64_t bytes, bp_workspace_kind kind,
                                    bp_range* out_range) {
  void* const memory = take_host_memory(bytes, memory_use(kind));
  if (memory == nullptr)
    return make_error(BP_OUT_OF_MEMORY,
                      "no host memory for a workspace of " + std::to_string(bytes) + " bytes");
  *out_range = {nullptr, memory, 0, bytes};
  return nullptr;
}

void CallFrame::workspace_done(void* /*user*/, const bp_range* range, bp_workspace_kind kind) {
  give_host_memory(range->host, range->size_bytes, memory_use(kind));
}

Status CallFrame::copy(const CompiledGraph::Step& step) {
  BP_RETURN_IF_ERROR(lend(step.target));
  const bp_range source = range(step.index), target = range(step.target);
  const std::uint32_t place = place_of(step);
  if (log_enabled("transfers"))
    log_topic("transfers", (step.kind == CompiledGraph::StepKind::kUpload ? "to " : "from ") +
                               graph_.places_[place]->label() + " %" +
                               graph_.graph_.values[graph_.slots_[step.index].root].name + ": " +
                               std::to_string(source.size_bytes) + " bytes (" +
                               std::string(copy_cause_name(step.cause)) + ")");
  const bool signals = step.signals || check_ != nullptr;
  // An empty value has no memory; a signal is still owed.
  if (source.size_bytes != 0 || signals)
    BP_RETURN_IF_ERROR(retried(place, [&] {
      return graph_.places_[place]->copy_async(source, target, step.cause, order(place, signals));
    }));
  return signals ? wait(place) : Status();
}

Status CallFrame::execute(const CompiledGraph::Step& step) {
  const CompiledGraph::CompiledPartition& p = graph_.partitions_[step.index];
  const Plan::Partition& sizes = plan_->partitions[step.index];
  for (std::size_t i = 0; i < p.inputs.size(); ++i) {
    const CompiledGraph::Bound& bound = p.inputs[i];
    const CompiledGraph::Slot& slot = graph_.slots_[bound.slot];
    bp_range r = range(bound.slot);
    if (graph_.graph_.values[bound.value].is_host_scalar) {
      std::memcpy(inputs_[i].scalar, r.host, r.size_bytes);
      inputs_[i].range = {};
      continue;
    }
    // A pack is bound whole, and in its own layout; unless a part of it was asked for.
    if (slot.kind != CompiledGraph::SlotKind::kPack || slot.root != bound.value) {
      r.offset_bytes += sizes.input_offset[i];
      r.size_bytes = sizes.input_bytes[i];
    }
    inputs_[i].range = r.size_bytes != 0 ? r : bp_range{};
  }
  places_[p.place].last_nodes = p.executable->nodes();
  const bool lends = call_->lender != nullptr && p.place == 0 && p.executable->lends();
  const bp_lending entries{sizeof entries,  this,           &lend_output, &input_done,
                           &lend_workspace, &workspace_done};
  std::optional<Lending> lending;
  if (lends) {
    lending.emplace(entries, p.device->plugin().name(), p.inputs.size(), p.outputs.size());
    lending_partition_ = step.index;
    for (const CompiledGraph::Bound& bound : p.inputs) open_bindings_[bound.slot] = 0;
    const auto id = static_cast<std::uint32_t>(&step - graph_.steps_.data());
    // What is read later, or shown, is never counted down to zero.
    for (const CompiledGraph::Bound& bound : p.inputs)
      open_bindings_[bound.slot] += graph_.slots_[bound.slot].dies_after(id) ? 1 : kHeld;
  }
  for (std::size_t i = 0; i < p.outputs.size(); ++i) {
    if (!lends) BP_RETURN_IF_ERROR(lend(p.outputs[i].slot));
    const bp_range r = range(p.outputs[i].slot);
    outputs_[i].range = r.size_bytes != 0 ? r : bp_range{};
  }
  bp_execute_args args{};
  if (lends) args.lending = lending->handle();
  args.struct_size = sizeof args;
  args.inputs = inputs_.data();
  args.outputs = outputs_.data();
  args.binding_stride = sizeof(bp_binding);
  args.dims = sizes.dims.data();
  args.order = order(p.place, step.signals);
  args.call_id = call_id_;
  if (sizes.workspace_bytes != 0) {
    if (p.place == 0)
      args.workspace = {nullptr, host_arena_.data() + sizes.workspace_offset, 0,
                        sizes.workspace_bytes};
    else
      args.workspace = {places_[p.place].arena.get(), nullptr, sizes.workspace_offset,
                        sizes.workspace_bytes};
  }
  PartitionReport& report = *graph_.reports_[p.report];
  report.calls.fetch_add(1, std::memory_order_relaxed);
  const auto execute = [&] {
    if (check_) [[unlikely]]
      return check_->execute(static_cast<std::uint32_t>(&step - graph_.steps_.data()), args);
    Status status = p.executable->execute(args);
    return status.ok() && lending ? lending->finish() : status;
  };
  if (!graph_.timing_.load(std::memory_order_relaxed) && !keeps_failures_) {
    BP_RETURN_IF_ERROR(retried(p.place, execute));
    if (queue_ != nullptr && p.place == graph_.resident_place_)
      queue_->note_work(graph_.graph_.name, p.executable->nodes());
    return step.signals ? wait(p.place) : Status();
  }
  const auto start = std::chrono::steady_clock::now();
  BP_RETURN_IF_ERROR(retried(p.place, execute));
  Status status;
  if (step.signals)
    status = wait(p.place);
  else if (p.place != 0 && p.place == graph_.resident_place_)
    status = finish_resident();
  else if (p.place != 0 && places_[p.place].event != nullptr)
    status = wait_for_work(p.place);
  report.measured_ns.fetch_add(
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                     std::chrono::steady_clock::now() - start)
                                     .count()),
      std::memory_order_relaxed);
  return status;
}

Status CallFrame::wait_for_work(std::uint32_t place) {
  const bp_range nothing{};
  BP_RETURN_IF_ERROR(
      graph_.places_[place]->copy_async(nothing, nothing, CopyCause::kOther, order(place, true)));
  return wait(place);
}

void CallFrame::drain() {
  // Whatever was wrong has been reported; only the waiting matters here.
  for (std::uint32_t i = 1; i < places_.size(); ++i)
    if (places_[i].event != nullptr) static_cast<void>(wait_for_work(i));
}

Status CallFrame::check(const CompiledGraph::Call& call) const {
  const std::size_t packs = call.packs != nullptr ? call.packs->size() : 0;
  const bool has_ranges =
      graph_.resident_place_ == 0 || (call.device_inputs.size() == call.inputs.size() &&
                                      call.device_outputs.size() == call.outputs.size());
  if (has_ranges && call.inputs.size() == graph_.graph_.inputs.size() &&
      call.outputs.size() == graph_.exports_.size() && packs == graph_.pack_wishes_.size())
      [[likely]]
    return {};
  return {Code::kInvalidArgument, "The graph takes " + std::to_string(graph_.graph_.inputs.size()) +
                                      " inputs, " + std::to_string(graph_.exports_.size()) +
                                      " outputs and " + std::to_string(graph_.pack_wishes_.size()) +
                                      " packs; given were " + std::to_string(call.inputs.size()) +
                                      ", " + std::to_string(call.outputs.size()) + " and " +
                                      std::to_string(packs) + "."};
}

Status CallFrame::run(const Plan& plan, const CompiledGraph::Call& call) {
  plan_ = &plan;
  call_ = &call;
  call_id_ = graph_.next_call_id_.fetch_add(1, std::memory_order_relaxed);
  BP_RETURN_IF_ERROR(check(call));
  BP_RETURN_IF_ERROR(prepare());
  lent_.assign(call.outputs.begin(), call.outputs.end());
  released_.assign(graph_.slots_.size(), false);
  if (check_) BP_RETURN_IF_ERROR(check_->begin());
  for (std::uint32_t id = 0; id < graph_.steps_.size(); ++id) {
    if (check_) BP_RETURN_IF_ERROR(check_->before(id));
    BP_RETURN_IF_ERROR(run_step(id));
    if (check_) BP_RETURN_IF_ERROR(check_->after(id));
    for (const std::uint32_t slot : graph_.released_after_[id]) release(slot);
  }
  return check_ ? check_->end() : Status();
}

Status CallFrame::run_step(std::uint32_t id) {
  const CompiledGraph::Step& step = graph_.steps_[id];
  step_ = id;
  is_told_ = false;
  PlaceState& state = places_[place_of(step)];
  if (state.first_queued == ir::kNone) state.first_queued = id;
  switch (step.kind) {
    case CompiledGraph::StepKind::kUpload:
    case CompiledGraph::StepKind::kDownload: {
      Status status = copy(step);
      if (status.ok() || is_told_) [[likely]]
        return status;
      return {status.code(), status.message() + ", in " + graph_.step_text(id)};
    }
    case CompiledGraph::StepKind::kExecute: {
      Status status = execute(step);
      if (status.ok()) [[likely]]
        return status;
      if (status.code() == Code::kUnsupported && call_->out_refused != nullptr &&
          graph_.partitions_[step.index].device->check_usable("execute").ok())
        *call_->out_refused = step.index;
      return {status.code(),
              status.message() + (is_told_ ? std::string() : ", in " + graph_.step_text(id)) +
                  graph_.keep_for_replay(step.index, plan_->class_values, status.message())};
    }
    case CompiledGraph::StepKind::kFallback:
      break;
  }
  if (call_->fallback == nullptr)
    return {Code::kUnsupported, "node " + std::to_string(step.index) +
                                    " needs a framework to run on, and there is none"};
  const HostSpan span([&] {
    return "cpu: " + std::string(graph_.graph().nodes[step.index].op->name) + " (node " +
           std::to_string(step.index) + ")";
  });
  return call_->fallback->run(step.index, *this);
}

DeviceBuffer CallFrame::give_arena(const Device* device) {
  for (std::size_t i = 1; i < places_.size(); ++i)
    if (graph_.places_[i] == device) return std::move(places_[i].arena);
  return {};
}

std::unique_ptr<CallFrame> IdleFrames::take() {
  const std::lock_guard lock(mutex_);
  if (frames_.empty()) return nullptr;
  std::unique_ptr<CallFrame> frame = std::move(frames_.back());
  frames_.pop_back();
  return frame;
}

void IdleFrames::give(std::unique_ptr<CallFrame> frame) {
  const std::lock_guard lock(mutex_);
  frames_.push_back(std::move(frame));
}

void IdleFrames::clear() {
  std::vector<std::unique_ptr<CallFrame>> gone;
  const std::lock_guard lock(mutex_);
  gone.swap(frames_);
}

void IdleFrames::trim(Device* device, void* frames) {
  auto& idle = *static_cast<IdleFrames*>(frames);
  std::vector<DeviceBuffer> arenas;  // released without the lock
  std::vector<DeviceQueue*> queues;  // whose work may still use them
  {
    const std::lock_guard lock(idle.mutex_);
    for (const auto& frame : idle.frames_) {
      DeviceBuffer arena = frame->give_arena(device);
      if (!arena) continue;
      if (frame->queue() != nullptr) queues.push_back(frame->queue());
      arenas.push_back(std::move(arena));
    }
  }
  std::ranges::sort(queues);
  queues.erase(std::unique(queues.begin(), queues.end()), queues.end());
  for (DeviceQueue* const queue : queues) queue->drain();
}

std::unique_ptr<CallFrame> CompiledGraph::take_frame() {
  std::unique_ptr<CallFrame> frame = idle_frames_->take();
  return frame ? std::move(frame) : std::make_unique<CallFrame>(*this);
}

// What a worker process held is gone, and another takes its place: weights are packed anew from the
// host's tensors, arenas come anew. True where the frame is of no use any more.
bool CompiledGraph::forget_what_is_lost() {
  bool is_any = false;
  for (Device* const device : places_) {
    if (device == nullptr || !device->loses_memory()) continue;
    PackCache::instance().forget(*device);
    device->trim();
    is_any = true;
  }
  return is_any;
}

Status CompiledGraph::check_process() const {
  for (const Device* device : places_)
    if (device != nullptr) BP_RETURN_IF_ERROR(device->check_process("a call"));
  return {};
}

bool CompiledGraph::was_given_up() const {
  return std::ranges::any_of(
      places_, [](const Device* device) { return device != nullptr && device->is_given_up(); });
}

Status CompiledGraph::run(const Plan& plan, const Call& call) {
  BP_RETURN_IF_ERROR(check_process());
  std::unique_ptr<CallFrame> frame = take_frame();
  Status status = frame->run(plan, call);
  if (!status.ok() && was_given_up()) {
    static_cast<void>(frame.release());  // for good: a device may still write to it
    return status;
  }
  // After a failure work may still be under way in the frame's memory and the caller's.
  if (!status.ok()) frame->drain();
  if (status.code() == Code::kDeviceLost && forget_what_is_lost()) return status;
  frame->give_host_arena();
  idle_frames_->give(std::move(frame));
  return status;
}

}  // namespace backplane::runtime
