#include "core/runtime/plan/plan_builder.h"

#include <algorithm>

#include "core/ir/text.h"
#include "core/ir/view.h"
#include "core/runtime/plan/replay.h"
#include "core/runtime/plugin/plugin.h"

namespace backplane::runtime {

bool is_place(const Device& device) {
  // Steps on the host's memory are over when they return; a device with streams has more to say.
  return !device.binds_host_memory() || device.has_streams();
}

bool PlanBuilder::is_view(ir::NodeId node) const {
  const ir::Node& n = graph_.nodes[node];
  return n.op->op_class == ir::OpClass::kView && !n.operands.empty() && n.operands[0] != ir::kNone;
}

bool PlanBuilder::produced_in(ir::ValueId root, std::uint32_t partition) const {
  const ir::NodeId producer = graph_.values[root].producer;
  return producer != ir::kNone && cut_.of_node[producer] == partition;
}

bool PlanBuilder::is_claimed(partition::TargetId target, ir::NodeId node) const {
  return std::ranges::any_of(targets_[target].claims, [&](const partition::Claim& claim) {
    return std::binary_search(claim.nodes.begin(), claim.nodes.end(), node);
  });
}

// What is bound for an operand from outside: the operand itself, as an offset into its root; where
// the device cannot bind that offset, a value it is a view of, and the plugin makes the views.
ir::ValueId PlanBuilder::entry_of(ir::ValueId operand, const Device& device,
                                  std::uint32_t place) const {
  const ir::ValueId root = ir::view_root(graph_, operand);
  if (graph_.values[root].is_host_scalar) return root;
  if (place == 0 || graph_.values[operand].is_static) return operand;  // a pack has no offset
  const auto alignment = static_cast<std::int64_t>(device.alignment_bytes());
  for (ir::ValueId v = operand; v != root;
       v = graph_.nodes[graph_.values[v].producer].operands[0]) {
    const auto offset = ir::constant_view_offset_bytes(graph_, v);
    if (offset && *offset % alignment == 0) return v;
  }
  return root;
}

void PlanBuilder::find_needed_roots() {
  for (ir::NodeId n = 0; n < graph_.nodes.size(); ++n) {
    if (is_view(n)) continue;  // metadata: who reads through it counts
    for (const ir::ValueId operand : graph_.nodes[n].operands) {
      if (operand == ir::kNone) continue;
      const ir::ValueId root = ir::view_root(graph_, operand);
      if (!produced_in(root, cut_.of_node[n])) needed_.insert(root);
    }
  }
}

void PlanBuilder::find_exports() {
  for (std::size_t position = 0; position < graph_.outputs.size(); ++position) {
    const ir::ValueId root = ir::view_root(graph_, graph_.outputs[position]);
    if (const auto known = export_of_root_.find(root); known != export_of_root_.end()) {
      // Wanted in both places: the caller copies from the device.
      CompiledGraph::Export& e = out_.exports_[known->second];
      e.on_device = e.on_device || is_resident_output(position, e.source);
      continue;
    }
    export_of_root_[root] = static_cast<std::uint32_t>(out_.exports_.size());
    const ir::Value& v = graph_.values[root];
    auto source = CompiledGraph::Source::kFallback;
    if (v.kind == ir::ValueKind::kInput) {
      source = CompiledGraph::Source::kInput;
    } else if (v.kind == ir::ValueKind::kConstant) {
      source = CompiledGraph::Source::kConstant;
    } else {
      needed_.insert(root);
      if (cut_.partitions[cut_.of_node[v.producer]].target != partition::kHost)
        source = CompiledGraph::Source::kPlugin;
    }
    out_.exports_.push_back({root, source, is_resident_output(position, source)});
  }
}

bool PlanBuilder::is_resident_output(std::size_t position, CompiledGraph::Source source) const {
  const Residence& residence = options_.residence;
  if (out_.resident_place_ == 0 || !residence.outputs[position]) return false;
  return source != CompiledGraph::Source::kFallback || residence.kept_where_made.empty() ||
         !residence.kept_where_made[position];
}

void PlanBuilder::find_inputs() {
  for (std::uint32_t i = 0; i < graph_.inputs.size(); ++i) {
    CompiledGraph::Slot slot;
    slot.root = graph_.inputs[i];
    slot.kind = CompiledGraph::SlotKind::kInput;
    slot.index = i;
    if (out_.resident_place_ != 0 && options_.residence.inputs[i])
      slot.place = out_.resident_place_;
    new_slot(slot);
  }
}

std::uint32_t PlanBuilder::place_of(const Device* device) {
  if (!is_place(*device)) return 0;
  for (std::uint32_t i = 1; i < out_.places_.size(); ++i)
    if (out_.places_[i] == device) return i;
  out_.places_.push_back(const_cast<Device*>(device));
  return static_cast<std::uint32_t>(out_.places_.size() - 1);
}

std::uint32_t PlanBuilder::new_slot(CompiledGraph::Slot slot) {
  const auto id = static_cast<std::uint32_t>(out_.slots_.size());
  out_.slots_.push_back(slot);
  if (slot.kind != CompiledGraph::SlotKind::kPack) {
    slot_of_[{slot.root, slot.place}] = id;
    if (slot.place == 0) out_.host_slot_of_value_[slot.root] = id;
  }
  return id;
}

// Where a result goes: straight into the caller's memory when it is an output, else the arena.
std::uint32_t PlanBuilder::new_result_slot(ir::ValueId root, std::uint32_t place,
                                           bool by_fallback) {
  CompiledGraph::Slot slot;
  slot.root = root;
  slot.place = place;
  const auto exported = export_of_root_.find(root);
  if (by_fallback) {
    slot.kind = CompiledGraph::SlotKind::kFallback;
  } else if (exported != export_of_root_.end() &&
             graph_.values[root].kind == ir::ValueKind::kResult &&
             place == (out_.exports_[exported->second].on_device ? out_.resident_place_ : 0)) {
    slot.kind = CompiledGraph::SlotKind::kOutput;
    slot.index = exported->second;
  }
  return new_slot(slot);
}

std::uint32_t PlanBuilder::host_slot(ir::ValueId root) {
  if (const auto found = slot_of_.find({root, 0}); found != slot_of_.end()) return found->second;
  // Only on a device: bring it here. The lowest place that has it.
  const auto from = slot_of_.lower_bound({root, 1});
  const std::uint32_t source = from->second;
  const std::uint32_t target = new_result_slot(root, 0, false);
  const CopyCause cause = out_.slots_[target].kind == CompiledGraph::SlotKind::kOutput
                              ? CopyCause::kOutput
                              : CopyCause::kFallback;
  out_.steps_.push_back({CompiledGraph::StepKind::kDownload, source, target, cause, false});
  return target;
}

std::uint32_t PlanBuilder::device_slot(ir::ValueId root, std::uint32_t place) {
  if (const auto found = slot_of_.find({root, place}); found != slot_of_.end())
    return found->second;
  const std::uint32_t source = host_slot(root);
  if (place == 0) return source;
  const CopyCause cause =
      graph_.values[root].kind == ir::ValueKind::kInput ? CopyCause::kInput : CopyCause::kFallback;
  const std::uint32_t target = new_result_slot(root, place, false);
  out_.steps_.push_back({CompiledGraph::StepKind::kUpload, source, target, cause, false});
  return target;
}

std::uint32_t PlanBuilder::pack_slot(ir::ValueId value, Device* device, std::uint32_t place,
                                     bp_layout layout) {
  const auto key = std::make_tuple(value, device, layout.kind, layout.layout_id);
  if (const auto found = packs_.find(key); found != packs_.end()) return found->second;
  const ir::ValueId root = ir::view_root(graph_, value);
  const auto input = std::find(graph_.inputs.begin(), graph_.inputs.end(), root);
  CompiledGraph::PackWish wish;
  wish.input = static_cast<std::uint32_t>(input - graph_.inputs.begin());
  wish.device = device;
  wish.layout = layout;
  const std::vector<std::int64_t> hints = ir::hint_values(graph_);
  wish.dtype = graph_.values[value].type.dtype;
  wish.dims = ir::resolve(graph_.values[value].type.dims, hints);
  wish.strides = ir::resolve(graph_.values[value].type.strides, hints);
  wish.offset_bytes = ir::view_offset_bytes(graph_, value, hints);
  CompiledGraph::Slot slot;
  slot.root = value;
  slot.place = place;
  slot.kind = CompiledGraph::SlotKind::kPack;
  slot.index = static_cast<std::uint32_t>(out_.pack_wishes_.size());
  out_.pack_wishes_.push_back(std::move(wish));
  out_.packed_inputs_.push_back(out_.pack_wishes_.back().input);
  return packs_[key] = new_slot(slot);
}

std::uint32_t PlanBuilder::input_slot(ir::ValueId value, Device* device, std::uint32_t place,
                                      bp_layout layout) {
  const ir::ValueId root = ir::view_root(graph_, value);
  if (graph_.values[value].is_host_scalar) return host_slot(root);
  if (graph_.values[value].is_static && (layout.kind == BP_LAYOUT_OPAQUE || place != 0))
    return pack_slot(value, device, place, layout);
  // Of a weight, but its offset or size follows the call: the weight stays whole on the device.
  if (graph_.values[root].is_static && place != 0)
    return pack_slot(root, device, place, {BP_LAYOUT_STRIDED, 0, 0});
  return device_slot(root, place);
}

// Everything that the plugin sees of a partition, as a key for caches.
std::string PlanBuilder::content_text(std::span<const ir::NodeId> nodes,
                                      std::span<const ir::ValueId> inputs,
                                      std::span<const ir::ValueId> outputs) const {
  std::string text;
  for (const ir::DimClass& c : graph_.dim_classes)  // the order is that of the dims of a call
    text += c.name + " = " + c.expression + " [" + std::to_string(c.min) + ", " +
            std::to_string(c.max) + "] / " + std::to_string(c.divisor) + "\n";
  const auto add_value = [&](ir::ValueId v) {
    const ir::Value& value = graph_.values[v];
    text += "%" + value.name + ": " + ir::print_type(graph_, value.type);
    if (value.is_static) text += " static";
    if (value.is_saved) text += " saved";
    if (value.is_host_scalar) text += " scalar";
    text += "\n";
  };
  for (const ir::ValueId v : inputs) add_value(v);
  std::set<ir::ValueId> constants;
  for (const ir::NodeId n : nodes) {
    text += ir::print_node(graph_, n) + "\n";
    for (const ir::ValueId v : graph_.nodes[n].operands) {
      if (v == ir::kNone || !graph_.values[v].constant || !constants.insert(v).second) continue;
      add_value(v);
      const auto& bytes = graph_.values[v].constant->bytes;
      text += std::to_string(bytes.size()) + ":";
      text.append(bytes.begin(), bytes.end());
    }
  }
  for (const ir::ValueId v : outputs) text += "return %" + graph_.values[v].name + "\n";
  return text;
}

Status PlanBuilder::add_host_partition(std::uint32_t index) {
  for (const ir::NodeId n : cut_.partitions[index].nodes) {
    if (is_view(n)) continue;
    const ir::Node& node = graph_.nodes[n];
    for (const ir::ValueId operand : node.operands) {
      if (operand == ir::kNone) continue;
      const ir::ValueId root = ir::view_root(graph_, operand);
      if (graph_.values[root].kind != ir::ValueKind::kConstant) host_slot(root);
    }
    out_.steps_.push_back({CompiledGraph::StepKind::kFallback, n, 0, CopyCause::kOther, false});
    for (const ir::ValueId result : node.results)
      if (result != ir::kNone) new_result_slot(result, 0, true);
  }
  return {};
}

Status PlanBuilder::gather(std::uint32_t index, Piece& out_piece, BrokenClaim& broken) {
  const partition::Partition& part = cut_.partitions[index];
  Device* device = devices_[part.target];
  out_piece.device = device;
  out_piece.place = place_of(device);
  std::set<ir::NodeId> nodes;
  std::set<ir::ValueId> seen;
  for (const ir::NodeId n : part.nodes) {
    if (is_view(n)) continue;
    nodes.insert(n);
    for (const ir::ValueId operand : graph_.nodes[n].operands) {
      if (operand == ir::kNone) continue;
      const ir::ValueId root = ir::view_root(graph_, operand);
      const bool inside =
          graph_.values[root].kind == ir::ValueKind::kConstant || produced_in(root, index);
      const ir::ValueId entry = inside ? root : entry_of(operand, *device, out_piece.place);
      for (ir::ValueId v = operand; v != entry;) {
        const ir::NodeId view = graph_.values[v].producer;
        if (!is_claimed(part.target, view)) {
          broken.target = part.target;
          broken.nodes = {n};
          broken.status = Status(Code::kUnsupported, "it reads %" + graph_.values[operand].name +
                                                         ", a view that " + device->label() +
                                                         " can neither make nor bind");
          return broken.status;
        }
        nodes.insert(view);
        v = graph_.nodes[view].operands[0];
      }
      if (!inside && seen.insert(entry).second) out_piece.inputs.push_back(entry);
    }
    for (const ir::ValueId result : graph_.nodes[n].results)
      if (result != ir::kNone && needed_.contains(result)) out_piece.outputs.push_back(result);
  }
  out_piece.nodes.assign(nodes.begin(), nodes.end());
  out_piece.has_effects =
      std::ranges::any_of(nodes, [&](ir::NodeId n) { return ir::has_effects(graph_.nodes[n]); });
  return {};
}

Result<std::unique_ptr<Executable>> PlanBuilder::compile(const Piece& piece, std::uint32_t index,
                                                         BrokenClaim& broken) {
  const GraphArrays arrays(graph_, piece.nodes, piece.inputs, piece.outputs);
  const bool packs = options_.pack_weights && piece.device->api().layout_convert != nullptr;
  std::vector<bp_io_request> input_wishes(piece.inputs.size());
  std::vector<bp_io_request> output_wishes(piece.outputs.size());
  for (std::size_t i = 0; i < piece.inputs.size(); ++i) {
    input_wishes[i].layout.kind = BP_LAYOUT_STRIDED;
    if (graph_.values[piece.inputs[i]].is_static && packs)
      input_wishes[i].layout.kind = BP_LAYOUT_ANY;
  }
  for (bp_io_request& wish : output_wishes) wish.layout.kind = BP_LAYOUT_STRIDED;

  ExecutableRequest request;
  request.inputs = input_wishes;
  request.outputs = output_wishes;
  request.role = options_.role == Role::kInference ? BP_ROLE_SINGLE
                 : options_.role == Role::kForward ? BP_ROLE_FORWARD
                                                   : BP_ROLE_BACKWARD;
  request.graph_text = content_text(piece.nodes, piece.inputs, piece.outputs);
  request.out_faulty_nodes = &broken.named;

  broken.named.clear();
  auto compiled = Executable::compile(*piece.device, arrays, request);
  if (compiled.ok()) return compiled;
  broken.target = cut_.partitions[index].target;
  broken.partition = index;
  broken.nodes = piece.nodes;
  broken.is_compiled = true;
  broken.status = compiled.take_status();
  std::erase_if(broken.named, [&](ir::NodeId n) {
    return !std::ranges::binary_search(piece.nodes, n) || is_view(n);
  });
  return broken.status;
}

Status PlanBuilder::gather_alone(std::uint32_t index, Piece& out_piece) {
  find_needed_roots();
  for (const ir::ValueId output : graph_.outputs) needed_.insert(ir::view_root(graph_, output));
  BrokenClaim unbindable;  // says nothing of the whole, where no such view is an input
  return gather(index, out_piece, unbindable);
}

Status PlanBuilder::try_partition(std::uint32_t index, BrokenClaim& broken) {
  Piece piece;
  if (!gather_alone(index, piece).ok() || !piece.is_needed()) return {};
  return compile(piece, index, broken).take_status();
}

std::string PlanBuilder::keep_for_replay(std::uint32_t index, const std::string& message) {
  Piece piece;
  if (!gather_alone(index, piece).ok()) return {};
  return runtime::keep_for_replay({graph_, piece.nodes, piece.inputs, piece.outputs,
                                   ir::hint_values(graph_), piece.device->label(), message});
}

Status PlanBuilder::add_plugin_partition(std::uint32_t index, BrokenClaim& broken) {
  Piece piece;
  BP_RETURN_IF_ERROR(gather(index, piece, broken));
  if (!piece.is_needed()) return {};
  Device* const device = piece.device;
  CompiledGraph::CompiledPartition made;
  made.device = device;
  made.place = piece.place;
  BP_ASSIGN_OR_RETURN(made.executable, compile(piece, index, broken));
  for (std::size_t i = 0; i < piece.inputs.size(); ++i)
    made.inputs.push_back(
        {input_slot(piece.inputs[i], device, piece.place, made.executable->input(i).layout),
         piece.inputs[i]});
  out_.steps_.push_back({CompiledGraph::StepKind::kExecute,
                         static_cast<std::uint32_t>(out_.partitions_.size()), 0, CopyCause::kOther,
                         false});
  for (const ir::ValueId v : piece.outputs)
    made.outputs.push_back({new_result_slot(v, made.place, false), v});
  made.report = static_cast<std::uint32_t>(out_.reports_.size());
  auto report = std::make_unique<PartitionReport>();
  report->device = device->label();
  report->nodes = piece.nodes;
  report->predicted_ns = cut_.partitions[index].predicted_ns;
  report->from_cache = made.executable->from_cache();
  out_.reports_.push_back(std::move(report));
  out_.partitions_.push_back(std::move(made));
  return {};
}

void PlanBuilder::finish_exports() {
  for (const CompiledGraph::Export& e : out_.exports_) {
    const bool is_computed =
        e.source == CompiledGraph::Source::kPlugin || e.source == CompiledGraph::Source::kFallback;
    if (e.on_device && is_computed)
      device_slot(e.root, out_.resident_place_);
    else if (e.source == CompiledGraph::Source::kPlugin)
      host_slot(e.root);
  }
}

void PlanBuilder::mark_lifetimes() {
  const auto touch = [&](std::uint32_t slot, std::uint32_t step) {
    CompiledGraph::Slot& s = out_.slots_[slot];
    s.first_step = std::min(s.first_step, step);
    s.last_step = std::max(s.last_step, step);
  };
  for (std::uint32_t i = 0; i < out_.steps_.size(); ++i) {
    const CompiledGraph::Step& step = out_.steps_[i];
    switch (step.kind) {
      case CompiledGraph::StepKind::kUpload:
        // The copy may still read its source after later host steps have begun.
        touch(step.index, static_cast<std::uint32_t>(out_.steps_.size()));
        touch(step.index, i);
        touch(step.target, i);
        break;
      case CompiledGraph::StepKind::kDownload:
        touch(step.index, i);
        touch(step.target, i);
        break;
      case CompiledGraph::StepKind::kExecute: {
        const CompiledGraph::CompiledPartition& p = out_.partitions_[step.index];
        for (const auto& b : p.inputs) touch(b.slot, i);
        for (const auto& b : p.outputs) touch(b.slot, i);
        break;
      }
      case CompiledGraph::StepKind::kFallback:
        for (const ir::ValueId operand : graph_.nodes[step.index].operands) {
          if (operand == ir::kNone) continue;
          const auto found = slot_of_.find({ir::view_root(graph_, operand), 0U});
          if (found != slot_of_.end()) touch(found->second, i);
        }
        for (const ir::ValueId result : graph_.nodes[step.index].results)
          if (result != ir::kNone) touch(slot_of_.at({result, 0U}), i);
        break;
    }
  }
  out_.released_after_.resize(out_.steps_.size());
  for (std::uint32_t id = 0; id < out_.slots_.size(); ++id) {
    CompiledGraph::Slot& slot = out_.slots_[id];
    // A copy of it in an arena is read by steps alone.
    slot.is_output =
        slot.kind != CompiledGraph::SlotKind::kArena && export_of_root_.contains(slot.root);
    const bool is_lent = slot.kind == CompiledGraph::SlotKind::kFallback ||
                         slot.kind == CompiledGraph::SlotKind::kInput;
    if (is_lent && !slot.is_output && slot.last_step < out_.steps_.size() &&
        slot.first_step != UINT32_MAX)
      out_.released_after_[slot.last_step].push_back(id);
  }
}

// A step signals where the host reads next: the last of a run of downloads, and the last step of
// each place.
void PlanBuilder::mark_signals() {
  const auto place_of_step = [&](const CompiledGraph::Step& step) -> std::uint32_t {
    switch (step.kind) {
      case CompiledGraph::StepKind::kUpload:
        return out_.slots_[step.target].place;
      case CompiledGraph::StepKind::kDownload:
        return out_.slots_[step.index].place;
      case CompiledGraph::StepKind::kExecute:
        return out_.partitions_[step.index].place;
      case CompiledGraph::StepKind::kFallback:
        return 0;
    }
    return 0;
  };
  std::vector<bool> seen(out_.places_.size(), false);
  for (std::size_t i = out_.steps_.size(); i-- > 0;) {
    CompiledGraph::Step& step = out_.steps_[i];
    const std::uint32_t place = place_of_step(step);
    if (place == 0) continue;
    const bool last_download = step.kind == CompiledGraph::StepKind::kDownload &&
                               (i + 1 == out_.steps_.size() ||
                                out_.steps_[i + 1].kind != CompiledGraph::StepKind::kDownload ||
                                place_of_step(out_.steps_[i + 1]) != place);
    // What stays on the resident device is waited for by whoever reads it. A pack may be released
    // after the call.
    const bool waits = place != out_.resident_place_ || !out_.pack_wishes_.empty();
    step.signals = last_download || (!seen[place] && waits);
    seen[place] = true;
  }
}

Status PlanBuilder::build(BrokenClaim& broken) {
  out_.places_.assign(1, nullptr);
  out_.host_slot_of_value_.assign(graph_.values.size(), ir::kNone);
  if (options_.residence.device != nullptr)
    out_.resident_place_ = place_of(options_.residence.device);
  find_needed_roots();
  find_exports();
  find_inputs();
  for (std::uint32_t p = 0; p < cut_.partitions.size(); ++p) {
    if (cut_.partitions[p].target == partition::kHost)
      BP_RETURN_IF_ERROR(add_host_partition(p));
    else
      BP_RETURN_IF_ERROR(add_plugin_partition(p, broken));
  }
  finish_exports();
  mark_lifetimes();
  mark_signals();
  return {};
}

}  // namespace backplane::runtime
