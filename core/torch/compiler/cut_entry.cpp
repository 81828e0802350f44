#include "core/torch/compiler/cut_entry.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/base/log.h"
#include "core/ir/text.h"
#include "core/ir/view.h"
#include "core/passes/pass.h"
#include "core/passes/prune_backward.h"
#include "core/runtime/plan/plan_builder.h"
#include "core/runtime/plugin/claims.h"
#include "core/runtime/plugin/plugin.h"
#include "core/torch/bridge/dtype.h"
#include "core/torch/device/devices.h"

namespace backplane::compiler {

namespace {

using record::kAbsent;
using record::OutputInfo;
using record::OutputKind;

// Before the cut: what is computed once is saved once, and for plugins, which need not round as
// eager does, padded images are not saved. The rest suits forward and backward apart.
constexpr const char* kBeforeCut = "remove-noop,cse,dead-code";
constexpr const char* kBeforeCutForPlugins = "remove-noop,fold-padding,cse,dead-code";

// `shown_count`: of a forward's outputs, those that are the program's.
Result<std::shared_ptr<CompiledFunction>> compile_stage(ir::Graph graph, runtime::Role role,
                                                        const record::Placement& placement,
                                                        const Numbers& numbers,
                                                        const CutOptions& options,
                                                        std::size_t shown_count = 0) {
  graph.name = options.name + "_" + role_name(role);
  FunctionOptions function;
  function.compile.role = role;
  function.compile.pack_weights =
      role == runtime::Role::kInference ? options.pack_inference : options.pack_training;
  function.numbers = numbers;
  function.verify = options.verify;
  if (role == runtime::Role::kForward) {
    auto& kept = function.compile.residence.kept_where_made;
    kept.assign(graph.outputs.size(), true);
    std::fill_n(kept.begin(), shown_count, false);
  }
  BP_ASSIGN_OR_RETURN(
      std::unique_ptr<CompiledFunction> made,
      CompiledFunction::compile(std::move(graph), placement, options.devices, function));
  return std::shared_ptr<CompiledFunction>(std::move(made));
}

ir::ValueId root_of_output(const ir::Graph& graph, std::uint32_t position) {
  return ir::view_root(graph, graph.outputs[position]);
}

// Where the forward's values are. What it computes for the backward alone stays on the device, also
// where the program's own tensors are on the host.
Result<record::Placement> place_forward(const record::Recorded& recorded, const ir::Graph& forward,
                                        const CutOptions& options) {
  const record::Placement& joint = recorded.placement;
  record::Placement out;
  out.device = joint.device;
  const bool is_kept =
      !out.device && options.devices.size() == 1 && runtime::is_place(*options.devices.front());
  if (is_kept) {
    BP_ASSIGN_OR_RETURN(const device::TorchDevice* hidden,
                        device::hidden_device(*options.devices.front()));
    out.device = hidden->torch_device();
  }
  if (!out.device) return out;
  out.inputs.assign(forward.inputs.size(), false);
  out.outputs.assign(forward.outputs.size(), false);
  if (!is_kept) {
    std::copy_n(joint.inputs.begin(), out.inputs.size(), out.inputs.begin());
    std::copy_n(joint.outputs.begin(), recorded.border.forward_output_count, out.outputs.begin());
  }
  std::set<ir::ValueId> shown;  // roots of the program's outputs
  for (std::uint32_t i = 0; i < recorded.border.forward_output_count; ++i)
    shown.insert(root_of_output(forward, i));
  for (auto i = static_cast<std::uint32_t>(recorded.border.forward_output_count);
       i < forward.outputs.size(); ++i) {
    const ir::ValueId root = root_of_output(forward, i);
    out.outputs[i] = !is_kept || (root == forward.outputs[i] && !shown.contains(root) &&
                                  forward.values[root].kind == ir::ValueKind::kResult);
  }
  if (is_kept && std::ranges::find(out.outputs, true) == out.outputs.end())
    return record::Placement();
  return out;
}

// Saved values are where the forward left them.
record::Placement place_backward(const record::Recorded& recorded, const partition::JointCut& cut,
                                 const CompiledFunction& forward) {
  const record::Placement& joint = recorded.placement;
  record::Placement out;
  out.device = forward.device();
  if (!out.device) return out;
  for (const partition::SavedValue& saved : cut.saved)
    out.inputs.push_back(saved.is_argument ? forward.is_input_on_device(saved.forward_position)
                                           : forward.is_output_on_device(saved.forward_position));
  const std::size_t arguments = recorded.border.argument_count;
  const std::size_t tangents = recorded.graph.inputs.size() - arguments;
  for (std::size_t i = 0; i < tangents; ++i)
    out.inputs.push_back(joint.device && joint.inputs[arguments + i]);
  for (std::size_t i = recorded.border.forward_output_count; i < recorded.graph.outputs.size(); ++i)
    out.outputs.push_back(joint.device && joint.outputs[i]);
  return out;
}

// The device of the plugin that is PyTorch's `where`, adopted; of those asked for, one that is
// another of PyTorch's gives way to it.
Status adopt(c10::Device where, runtime::Device*& chosen) {
  runtime::Plugin& plugin = chosen->plugin();
  runtime::Device* same = chosen->torch_device() == where.str() ? chosen : nullptr;
  const bool has_others = same == nullptr && !chosen->torch_device().empty();
  for (std::uint32_t i = 0; has_others && same == nullptr && i < plugin.device_count(); ++i) {
    BP_ASSIGN_OR_RETURN(const bp_device_info info, runtime::describe_device(plugin, i));
    if (std::string_view(info.torch_device.data, info.torch_device.size) != where.str()) continue;
    BP_ASSIGN_OR_RETURN(same, plugin.device(i));  // the others are not opened
  }
  if (same == nullptr) return {Code::kUnsupported, plugin.name() + " has no such device"};
  BP_RETURN_IF_ERROR(device::adopted_device(*same).status());
  chosen = same;
  return {};
}

// Where the program's tensors are must be a device of a plugin.
Status find_place(c10::Device where, std::vector<runtime::Device*>& devices) {
  std::string why = "which is no plugin's device";
  if (where.type() == device::kDeviceType) {
    if (device::find_device(where.index()) != nullptr) return {};
  } else {
    for (runtime::Device*& chosen : devices) {
      const Status adopted = adopt(where, chosen);
      if (adopted.ok()) return {};
      why = "and " + adopted.message();
    }
  }
  return {Code::kUnsupported, "the program's tensors are on " + where.str() + ", " + why};
}

// The first output of the program that shows the memory of a root.
std::unordered_map<ir::ValueId, std::uint32_t> outputs_by_root(const record::Recorded& recorded,
                                                               const ir::Graph& forward) {
  std::unordered_map<ir::ValueId, std::uint32_t> shown_by;
  for (std::uint32_t i = 0; i < recorded.outputs.size(); ++i) {
    const OutputInfo& info = recorded.outputs[i];
    if (info.kind == OutputKind::kFresh || info.kind == OutputKind::kSharedWithOutput)
      shown_by.emplace(root_of_output(forward, info.graph_output), i);
  }
  return shown_by;
}

// By output of a backward: the tangent that it is, and no view of it, among the inputs. Empty: none
// is one.
std::vector<std::uint32_t> tangents_given_on(const ir::Graph& backward, std::size_t saved_count) {
  std::vector<std::uint32_t> given(backward.outputs.size(), kAbsent);
  for (std::size_t i = 0; i < given.size(); ++i)
    for (std::size_t input = saved_count; input < backward.inputs.size(); ++input)
      if (backward.inputs[input] == backward.outputs[i])
        given[i] = static_cast<std::uint32_t>(input);
  if (std::ranges::count(given, kAbsent) == std::ssize(given)) given.clear();
  return given;
}

}  // namespace

std::string role_name(runtime::Role role) {
  switch (role) {
    case runtime::Role::kInference:
      return "inference";
    case runtime::Role::kForward:
      return "forward";
    case runtime::Role::kBackward:
      return "backward";
  }
  return "invalid";
}

autograd::SizeRecord size_record(const record::Recorded& recorded) {
  autograd::SizeRecord sizes;
  sizes.outputs = recorded.outputs;
  sizes.program = recorded.program;
  const ir::Graph& graph = recorded.graph;
  for (std::size_t i = recorded.border.forward_output_count; i < graph.outputs.size(); ++i) {
    std::vector<std::int64_t>& strides = sizes.gradient_strides.emplace_back();
    for (const ir::Dim stride : graph.values[graph.outputs[i]].type.strides)
      strides.push_back(stride.number());
  }
  for (OutputInfo& info : sizes.outputs) {
    if (info.kind == OutputKind::kViewOfArgument) {
      // A view of another type counts in its own elements.
      const record::ArgumentInfo& base = recorded.arguments[info.base];
      const ir::DType type =
          recorded.graph.values[recorded.graph.inputs[base.graph_input]].type.dtype;
      info.storage_offset -= base.storage_offset * ir::dtype_bytes(type) /
                             static_cast<std::int64_t>(c10::elementSize(info.dtype));
    }
    if (info.kind == OutputKind::kViewOfOutput)
      info.storage_offset -= recorded.outputs[info.base].storage_offset;
  }
  return sizes;
}

Result<std::shared_ptr<CutEntry>> CutEntry::compile(record::Recorded recorded,
                                                    const CutOptions& given, Eager eager) {
  CutOptions options = given;
  if (recorded.placement.device)
    BP_RETURN_IF_ERROR(find_place(*recorded.placement.device, options.devices));
  std::shared_ptr<CutEntry> entry(new CutEntry(options));
  entry->eager_ = std::move(eager);
  ReadForGradients eagerly_saved = read_for_gradients(recorded);
  const SavedByNodes saved_by = saved_by_nodes(recorded);
  if (recorded.recomputes)
    for (std::vector<std::uint32_t>& tangents : eagerly_saved.by_output) tangents.clear();
  BP_RETURN_IF_ERROR(passes::run_pipeline(
      recorded.graph, options.devices.empty() ? kBeforeCut : kBeforeCutForPlugins));
  const bool with_backward = recorded.graph.inputs.size() > recorded.border.argument_count;
  std::optional<partition::JointCut> cut;
  if (with_backward) {
    partition::JointCutOptions cutting;
    cutting.memory_budget = options.memory_budget;
    cutting.copied_arguments = copied_arguments(recorded, eagerly_saved);
    if (!options.devices.empty()) {
      const partition::DeviceModel device = runtime::model_of(*options.devices.front());
      if (device.flops_per_s > 0) cutting.flops_per_second = device.flops_per_s;
      if (device.memory_bytes_per_s > 0) cutting.bytes_per_second = device.memory_bytes_per_s;
    }
    BP_ASSIGN_OR_RETURN(cut, partition::cut_joint(recorded.graph, recorded.border, cutting));
    entry->explanation_ = partition::explain(recorded.graph, *cut);
    entry->saved_bytes_ = cut->saved_bytes;
    entry->recompute_seconds_ = cut->recompute_seconds;
    if (log_enabled("joint")) log_topic("joint", ir::print(recorded.graph));
    if (log_enabled("autograd"))
      log_topic("autograd", ir::print(cut->forward) + "\n" + ir::print(cut->backward) + "\n" +
                                entry->explanation_);
    BP_ASSIGN_OR_RETURN(record::Placement placement,
                        place_forward(recorded, cut->forward, options));
    BP_ASSIGN_OR_RETURN(
        entry->forward_,
        compile_stage(std::move(cut->forward), runtime::Role::kForward, placement, recorded.numbers,
                      options, recorded.border.forward_output_count));
    if (!cut->backward.outputs.empty()) {
      entry->numbers_ = recorded.numbers;
      entry->backward_graph_ = std::move(cut->backward);
      entry->given_on_ = tangents_given_on(entry->backward_graph_, cut->saved.size());
      entry->backward_placement_ = place_backward(recorded, *cut, *entry->forward_);
      BP_ASSIGN_OR_RETURN(entry->backward_,
                          compile_stage(entry->backward_graph_, runtime::Role::kBackward,
                                        entry->backward_placement_, recorded.numbers, options));
    }
  } else {
    BP_ASSIGN_OR_RETURN(entry->forward_,
                        compile_stage(std::move(recorded.graph), runtime::Role::kInference,
                                      recorded.placement, recorded.numbers, options));
  }
  entry->describe(recorded, cut ? &*cut : nullptr, eagerly_saved, saved_by);
  return entry;
}

// What a tangent reaches and what reaches a gradient belongs to one node. More than some are one:
// each compiles a backward of its own where it is asked for.
void split_into_nodes(autograd::Signature& signature) {
  constexpr std::uint32_t kMostNodes = 16;
  std::vector<std::uint32_t>& nodes = signature.node_of_tangent;
  nodes.resize(signature.tangent_count);
  std::iota(nodes.begin(), nodes.end(), 0U);
  for (const std::vector<std::uint32_t>& reached : signature.tangents_of_gradient)
    for (const std::uint32_t tangent : reached)
      std::ranges::replace(nodes, std::uint32_t{nodes[tangent]},
                           std::uint32_t{nodes[reached.front()]});
  std::vector<std::uint32_t> names(nodes);
  std::ranges::sort(names);
  names.erase(std::ranges::unique(names).begin(), names.end());
  if (names.size() > kMostNodes || names.empty()) names = {0};
  for (std::uint32_t& node : nodes)
    node = names.size() == 1
               ? 0
               : static_cast<std::uint32_t>(std::ranges::lower_bound(names, node) - names.begin());
  signature.node_count = static_cast<std::uint32_t>(names.size());
  for (const std::vector<std::uint32_t>& reached : signature.tangents_of_gradient)
    signature.node_of_gradient.push_back(reached.empty() ? 0 : nodes[reached.front()]);
}

std::vector<autograd::DerivedResult> derived_results(const record::Recorded& recorded) {
  std::vector<autograd::DerivedResult> derived;
  const auto first_tangent = static_cast<std::uint32_t>(recorded.border.argument_count);
  const auto add = [&](std::uint32_t position, std::uint32_t output, std::uint32_t value) {
    if (position == kAbsent || recorded.sources_of_tangent.empty()) return;
    const std::uint32_t tangent = position - first_tangent;
    if (const auto& sources = recorded.sources_of_tangent[tangent]; !sources.empty())
      derived.push_back({tangent, output, value, sources});
  };
  for (std::uint32_t i = 0; i < recorded.outputs.size(); ++i)
    add(recorded.outputs[i].tangent, i, recorded.outputs[i].graph_output);
  std::vector<bool> is_known(recorded.border.argument_count);
  for (const record::ArgumentInfo& info : recorded.arguments) {
    if (is_known[info.graph_input]) continue;
    is_known[info.graph_input] = true;
    add(info.tangent, kAbsent, info.new_value);
  }
  // Each has more than any of them.
  std::ranges::stable_sort(derived, {},
                           [](const autograd::DerivedResult& one) { return one.sources.size(); });
  return derived;
}

autograd::Signature signature_of(const record::Recorded& recorded, const ir::Graph& forward) {
  autograd::Signature signature;
  signature.arguments = recorded.arguments;
  signature.argument_of_input.assign(recorded.border.argument_count, kAbsent);
  signature.counted_inputs.assign(recorded.border.argument_count, true);
  signature.grad_mode_after = recorded.grad_mode_after;
  signature.is_repeatable = !recorded.draws;
  signature.draws = recorded.draws;
  signature.draws_on_device = recorded.draws && recorded.placement.device.has_value();
  std::vector<const record::ArgumentInfo*> with_gradient;
  for (std::uint32_t i = 0; i < recorded.arguments.size(); ++i) {
    const record::ArgumentInfo& info = recorded.arguments[i];
    if (signature.argument_of_input[info.graph_input] != kAbsent) continue;
    signature.argument_of_input[info.graph_input] = i;
    if (info.gradient != kAbsent) with_gradient.push_back(&info);
    if (info.is_mutated)
      signature.mutated.push_back(info.graph_input);
    else if (info.counted_writes > 0)
      signature.counted_unwritten.push_back(info.graph_input);
    if (info.tangent != kAbsent) ++signature.tangent_count;
  }
  signature.is_repeatable = signature.is_repeatable && signature.mutated.empty();
  std::ranges::sort(with_gradient, {}, &record::ArgumentInfo::gradient);
  for (const record::ArgumentInfo* info : with_gradient) {
    signature.gradients.push_back(info->graph_input);
    signature.turn_of_gradient.push_back(info->turn);
    signature.tangents_of_gradient.push_back(info->reached_by);
  }
  for (const record::SavingNode& node : recorded.saving_nodes) {
    signature.saving_nodes.push_back({node.tangents, {}, {}});
    for (const std::uint32_t input : signature.gradients)
      signature.saving_nodes.back().gradients.push_back(node.gradients[input]);
  }

  const auto shown_by = outputs_by_root(recorded, forward);
  signature.copied_outputs.assign(recorded.outputs.size(), false);
  for (std::uint32_t i = 0; i < recorded.outputs.size(); ++i) {
    const OutputInfo& info = recorded.outputs[i];
    if (info.tangent != kAbsent) ++signature.tangent_count;
    if (info.kind != OutputKind::kFresh) continue;
    const ir::ValueId root = root_of_output(forward, info.graph_output);
    const bool is_input = forward.values[root].kind == ir::ValueKind::kInput;
    signature.copied_outputs[i] = is_input || shown_by.at(root) != i;
  }
  split_into_nodes(signature);
  signature.derived = derived_results(recorded);
  return signature;
}

namespace {

bool is_saved_in_output(const autograd::Signature& signature, std::uint32_t output) {
  return std::ranges::any_of(signature.saved, [&](const autograd::SavedSource& saved) {
    return saved.shared_with == output;
  });
}

// Before the backward: the program has written none of what its gradients depend on.
bool can_run_again(const autograd::Signature& signature) {
  return !signature.draws_on_device &&
         std::ranges::none_of(signature.mutated, [&](std::uint32_t input) {
           return bool{signature.needs_content[input]};
         });
}

// Saved values lie where nobody writes: copies in place of outputs that eager mode does not save.
void keep_apart_what_is_found(autograd::Signature& signature) {
  for (autograd::Watched& watched : signature.watched) {
    if (watched.found_for.empty()) continue;
    watched.found_for.clear();
    for (autograd::SavedSource& saved : signature.saved) {
      if (saved.shared_with != watched.position) continue;
      saved.shared_with = kAbsent;
      saved.needs_copy = true;
    }
  }
  std::erase_if(signature.watched,
                [](const autograd::Watched& watched) { return watched.saved_for.empty(); });
}

}  // namespace

void CutEntry::watch(const record::Recorded& recorded, const ReadForGradients& eagerly_saved,
                     const SavedByNodes& saved_by, const ReadForGradients& read) {
  const ir::Graph& graph = recorded.graph;
  // A written argument has memory of its own: what is saved of it outlives the next write.
  const auto add = [&](std::uint32_t graph_output, bool is_argument, std::uint32_t position) {
    autograd::Watched watched{is_argument,
                              position,
                              eagerly_saved.by_output[graph_output],
                              {},
                              saved_by.outputs[graph_output]};
    if (!is_argument && is_saved_in_output(signature, position))
      std::ranges::set_difference(read.by_output[graph_output], watched.saved_for,
                                  std::back_inserter(watched.found_for));
    const bool is_read = !watched.saved_for.empty() || !watched.found_for.empty();
    // An argument is saved itself.
    const ir::ValueId root = root_of_output(graph, graph_output);
    if (is_read && graph.values[root].kind == ir::ValueKind::kResult)
      signature.watched.push_back(std::move(watched));
  };
  for (const auto& [root, output] : outputs_by_root(recorded, graph))
    add(recorded.outputs[output].graph_output, false, output);
  for (const std::uint32_t input : signature.mutated)
    add(signature.arguments[signature.argument_of_input[input]].new_value, true, input);
  // Of others the cut may save what it computed of them (a mask), which counts no writes. A
  // checkpoint saves what it is given.
  std::vector<bool> counts_writes(eagerly_saved.by_argument.size());
  for (const std::uint32_t input : signature.mutated) counts_writes[input] = true;
  for (const autograd::SavedSource& saved : signature.saved)
    if (saved.is_argument && !saved.needs_copy) counts_writes[saved.position] = true;
  for (std::uint32_t input = 0; input < counts_writes.size(); ++input)
    if (!counts_writes[input] && !eagerly_saved.by_argument[input].empty())
      signature.watched.push_back(
          {true, input, eagerly_saved.by_argument[input], {}, saved_by.arguments[input]});
}

// The input whose new value it is, where eager mode saves that, and that alone of what is computed
// of it: whoever writes it through .data, as the program does, changes what was saved.
std::optional<std::uint32_t> CutEntry::written_uncounted(
    const record::Recorded& recorded, const partition::JointCut& cut,
    const partition::SavedValue& saved, const std::vector<std::vector<std::uint32_t>>& by_eager,
    const std::vector<std::vector<std::uint32_t>>& read) const {
  const ir::Graph &joint = recorded.graph, &forward = forward_->graph().graph();
  const ir::ValueId root = ir::view_root(joint, saved.value);
  const auto reads_it = [&](ir::ValueId v) {
    return v != ir::kNone && ir::view_root(joint, v) == root;
  };
  if (saved.is_argument || std::ranges::any_of(cut.recomputed, [&](ir::NodeId n) {
        return std::ranges::any_of(joint.nodes[n].operands, reads_it);
      }))
    return std::nullopt;
  for (const std::uint32_t input : signature.mutated) {
    const record::ArgumentInfo& info = signature.arguments[signature.argument_of_input[input]];
    if (info.counted_writes == 0 && info.tangent == kAbsent && !by_eager[info.new_value].empty() &&
        forward.outputs[info.new_value] == forward.outputs[saved.forward_position] &&
        std::ranges::includes(by_eager[info.new_value], read[info.new_value]))
      return input;
  }
  return std::nullopt;
}

void CutEntry::describe(const record::Recorded& recorded, const partition::JointCut* cut,
                        const ReadForGradients& eagerly_saved, const SavedByNodes& saved_by) {
  const ir::Graph& forward = forward_->graph().graph();
  signature = signature_of(recorded, forward);
  signature.is_repeatable = signature.is_repeatable && eager_ != nullptr;
  signature.counted_inputs = forward_->counted_inputs();
  if (cut == nullptr) return;
  signature.needs_content = inputs_of_gradients(recorded);
  const ReadForGradients read = read_for_gradients(recorded);
  const auto shown_by = outputs_by_root(recorded, forward);
  for (const partition::SavedValue& saved : cut->saved) {
    autograd::SavedSource source;
    source.is_argument = saved.is_argument;
    source.position = saved.forward_position;
    const ir::ValueId root = saved.is_argument ? forward.inputs[saved.forward_position]
                                               : root_of_output(forward, saved.forward_position);
    if (forward.values[root].kind == ir::ValueKind::kInput) {
      const auto input = static_cast<std::uint32_t>(
          std::find(forward.inputs.begin(), forward.inputs.end(), root) - forward.inputs.begin());
      // A pass may have found an argument in what eager mode copies.
      const bool is_found =
          !read.by_argument[input].empty() && eagerly_saved.by_argument[input].empty();
      source.needs_copy = !saved.is_argument || is_found || saved.is_copied ||
                          std::ranges::find(signature.mutated, input) != signature.mutated.end();
    } else if (const auto shown = shown_by.find(root); shown != shown_by.end()) {
      source.shared_with = shown->second;
    } else if (const auto written = written_uncounted(recorded, *cut, saved,
                                                      eagerly_saved.by_output, read.by_output)) {
      source = {.is_argument = true, .position = *written};
    }
    source.dtype = bridge::to_scalar_type(recorded.graph.values[saved.value].type.dtype);
    signature.saved.push_back(source);
  }
  watch(recorded, eagerly_saved, saved_by, read);
  if (!can_run_again(signature)) keep_apart_what_is_found(signature);
}

std::vector<Stage> CutEntry::stages() const {
  if (!backward_ && signature.tangent_count == 0)
    return {{runtime::Role::kInference, forward_, ""}};
  std::vector<Stage> stages{
      {runtime::Role::kForward, forward_, explanation_, saved_bytes_, recompute_seconds_}};
  if (backward_) stages.push_back({runtime::Role::kBackward, backward_, ""});
  return stages;
}

Result<std::vector<at::Tensor>> CutEntry::forward(std::span<const at::Tensor> inputs,
                                                  const autograd::SizeRecord& sizes) {
  c10::SmallVector<Argument, 16> arguments;
  for (const at::Tensor& input : inputs) arguments.push_back(Argument::borrowed(input));
  return forward_->call(arguments, sizes.class_values);
}

Result<std::vector<at::Tensor>> CutEntry::backward(std::vector<at::Tensor> inputs,
                                                   const std::vector<bool>& unwanted,
                                                   const autograd::SizeRecord& sizes) {
  if (!backward_) return std::vector<at::Tensor>();
  passes::Asked asked{{}, unwanted};
  for (std::size_t i = signature.saved.size(); i < inputs.size(); ++i)
    asked.absent.push_back(!inputs[i].defined());
  const bool is_whole = asked.is_whole();
  const std::vector<bool> is_read =
      is_whole ? std::vector<bool>(inputs.size(), true) : inputs_read(asked);
  std::vector<Argument> arguments;
  arguments.reserve(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (is_read[i]) arguments.push_back(Argument::owned(std::move(inputs[i])));
  inputs.clear();  // a saved value goes with its last reader
  if (is_whole) return run_backward(*backward_, given_on_, arguments, sizes);
  BP_ASSIGN_OR_RETURN(const PartialBackward partial, partial_backward(asked));
  std::vector<at::Tensor> given;
  if (partial.function) {
    BP_ASSIGN_OR_RETURN(given, run_backward(*partial.function, partial.given_on, arguments, sizes));
  }
  std::vector<at::Tensor> outputs(partial.is_given.size());
  auto next = given.begin();
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (partial.is_given[i]) outputs[i] = std::move(*next++);
  return outputs;
}

// The graph reads a copy of a tangent that lies otherwise than it was recorded, as that of a sum.
Result<std::vector<at::Tensor>> CutEntry::run_backward(CompiledFunction& function,
                                                       const std::vector<std::uint32_t>& given_on,
                                                       std::span<Argument> arguments,
                                                       const autograd::SizeRecord& sizes) {
  std::vector<at::Tensor> given(given_on.size());
  for (std::size_t i = 0; i < given.size(); ++i)
    if (given_on[i] != kAbsent) given[i] = *arguments[given_on[i]];
  BP_ASSIGN_OR_RETURN(std::vector<at::Tensor> gradients,
                      function.call(arguments, sizes.class_values));
  for (std::size_t i = 0; i < given.size(); ++i)
    if (given[i].defined() && given[i].device() == gradients[i].device())
      gradients[i] = std::move(given[i]);
  return gradients;
}

std::vector<bool> CutEntry::inputs_read(const passes::Asked& asked) {
  const std::lock_guard lock(mutex_);
  const auto [found, is_new] = inputs_read_.try_emplace(asked);
  if (is_new) found->second = passes::inputs_read(backward_graph_, asked);
  return found->second;
}

std::vector<bool> CutEntry::saved_read(const passes::Asked& asked) {
  if (!backward_) return StagedProgram::saved_read(asked);
  std::vector<bool> is_read = inputs_read(asked);
  is_read.resize(signature.saved.size());
  return is_read;
}

bool CutEntry::has_many_parts(const passes::Asked& asked) {
  constexpr std::size_t kMostParts = 16;
  const std::lock_guard lock(mutex_);
  return partial_.size() >= kMostParts && !partial_.contains(asked);
}

Result<CutEntry::PartialBackward> CutEntry::partial_backward(const passes::Asked& asked) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = partial_.find(asked); found != partial_.end()) return found->second;
  }
  // Without the lock, as plugins are called: two threads may both compile the first.
  BP_ASSIGN_OR_RETURN(PartialBackward made, compile_partial(asked));
  const std::lock_guard lock(mutex_);
  const auto [found, is_new] = partial_.emplace(asked, std::move(made));
  if (is_new && found->second.function) backward_->add_part(found->second.function);
  return found->second;
}

Result<CutEntry::PartialBackward> CutEntry::compile_partial(const passes::Asked& asked) const {
  BP_ASSIGN_OR_RETURN(passes::PrunedBackward pruned,
                      passes::prune_backward(backward_graph_, asked));
  PartialBackward made;
  made.is_given = std::move(pruned.is_given);
  if (pruned.graph.outputs.empty()) return made;
  const std::vector<bool> is_read = passes::inputs_read(backward_graph_, asked);
  const auto saved_end =
      is_read.begin() + static_cast<std::ptrdiff_t>(is_read.size() - asked.absent.size());
  made.given_on = tangents_given_on(
      pruned.graph, static_cast<std::size_t>(std::count(is_read.begin(), saved_end, true)));
  record::Placement placement = backward_placement_;
  if (placement.device) {
    const auto keep = [](std::vector<bool>& flags, const auto& is_kept) {
      std::vector<bool> kept;
      for (std::size_t i = 0; i < flags.size(); ++i)
        if (is_kept(i)) kept.push_back(flags[i]);
      flags = std::move(kept);
    };
    keep(placement.inputs, [&](std::size_t i) { return is_read[i]; });
    keep(placement.outputs, [&](std::size_t i) { return made.is_given[i]; });
  }
  BP_ASSIGN_OR_RETURN(made.function,
                      compile_stage(std::move(pruned.graph), runtime::Role::kBackward, placement,
                                    numbers_, options_));
  return made;
}

}  // namespace backplane::compiler
