#include "core/torch/compiler/read_for_gradients.h"

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "core/ir/view.h"

namespace backplane::compiler {

namespace {

// A batch normalisation in training: forward and backward take the running statistics as operands 3
// and 4, and give them on without a look at them.
bool normalizes_by_batch(const ir::Node& node) {
  if (node.op->name.find("batch_norm") == std::string_view::npos) return false;
  for (const char* name : {"training", "train"})
    if (const ir::Attribute* attribute = node.find_attribute(name))
      if (const bool* on = std::get_if<bool>(&attribute->value)) return *on;
  return false;
}

void note_read(std::vector<bool>& is_read, const ir::Node& node) {
  const bool ignores_statistics = normalizes_by_batch(node);
  for (std::size_t i = 0; i < node.operands.size(); ++i)
    if (node.operands[i] != ir::kNone && !(ignores_statistics && (i == 3 || i == 4)))
      is_read[node.operands[i]] = true;
}

// By tangent: the roots of the values that nodes read for it which are there for gradients alone.
// Of a graph as it was recorded, these are what eager mode saves.
std::vector<std::set<ir::ValueId>> roots_read_for_gradients(const record::Recorded& recorded) {
  const ir::Graph& graph = recorded.graph;
  const auto is_any = [](const std::vector<bool>& flags, const std::vector<ir::ValueId>& values) {
    return std::ranges::any_of(values, [&](ir::ValueId v) { return v != ir::kNone && flags[v]; });
  };
  std::vector<bool> shown(graph.values.size());
  for (std::size_t i = 0; i < recorded.border.forward_output_count; ++i)
    shown[graph.outputs[i]] = true;
  std::vector<bool> is_forward(graph.nodes.size());
  for (std::size_t n = graph.nodes.size(); n-- > 0;) {
    is_forward[n] = is_any(shown, graph.nodes[n].results);
    if (is_forward[n]) note_read(shown, graph.nodes[n]);
  }
  std::vector<bool> wanted(graph.values.size()), is_live(graph.nodes.size());
  for (const ir::ValueId v : graph.outputs) wanted[v] = true;
  for (std::size_t n = graph.nodes.size(); n-- > 0;) {
    is_live[n] = is_any(wanted, graph.nodes[n].results);
    if (is_live[n]) note_read(wanted, graph.nodes[n]);
  }
  const auto depending_on = [&](std::span<const ir::ValueId> inputs) {
    std::vector<bool> depends(graph.values.size());
    for (const ir::ValueId input : inputs) depends[input] = true;
    for (const ir::Node& node : graph.nodes)
      if (is_any(depends, node.operands))
        for (const ir::ValueId result : node.results)
          if (result != ir::kNone) depends[result] = true;
    return depends;
  };
  const std::span tangents = std::span(graph.inputs).subspan(recorded.border.argument_count);
  const std::vector<bool> is_gradient = depending_on(tangents);
  std::vector<std::set<ir::ValueId>> roots;
  for (const ir::ValueId& tangent : tangents) {
    const std::vector<bool> depends = depending_on({&tangent, 1});
    std::vector<bool> is_read(graph.values.size());
    for (std::size_t n = graph.nodes.size(); n-- > 0;) {
      const ir::Node& node = graph.nodes[n];
      if (!is_live[n] || is_forward[n] ||
          !(is_any(depends, node.results) || is_any(is_read, node.results)))
        continue;
      note_read(is_read, node);
      // What comes of other tangents alone is added to it: nobody reads that where they are absent.
      for (const ir::ValueId operand : node.operands)
        if (operand != ir::kNone && is_gradient[operand] && !depends[operand])
          is_read[operand] = false;
    }
    roots.emplace_back();
    for (ir::ValueId v = 0; v < graph.values.size(); ++v)
      if (is_read[v]) roots.back().insert(ir::view_root(graph, v));
  }
  return roots;
}

// By input: whether nodes read nothing of it but what it is as another type.
std::vector<bool> inputs_only_cast(const ir::Graph& graph) {
  std::vector<bool> is_read_otherwise(graph.values.size());
  for (const ir::Node& node : graph.nodes) {
    if (node.op->op_class == ir::OpClass::kView || node.op->name == "aten._to_copy") continue;
    for (const ir::ValueId operand : node.operands)
      if (operand != ir::kNone) is_read_otherwise[ir::view_root(graph, operand)] = true;
  }
  std::vector<bool> out;
  for (const ir::ValueId input : graph.inputs) out.push_back(!is_read_otherwise[input]);
  return out;
}

}  // namespace

std::vector<bool> inputs_of_gradients(const record::Recorded& recorded) {
  const ir::Graph& graph = recorded.graph;
  std::vector<bool> is_read(graph.values.size());
  for (std::size_t i = recorded.border.forward_output_count; i < graph.outputs.size(); ++i)
    is_read[graph.outputs[i]] = true;
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    if (std::ranges::none_of(node->results, [&](ir::ValueId v) { return is_read[v]; })) continue;
    note_read(is_read, *node);
  }
  std::vector<bool> out;
  for (std::size_t i = 0; i < recorded.border.argument_count; ++i)
    out.push_back(is_read[graph.inputs[i]]);
  return out;
}

ReadForGradients read_for_gradients(const record::Recorded& recorded) {
  const std::vector<std::set<ir::ValueId>> read = roots_read_for_gradients(recorded);
  ReadForGradients out;
  out.by_output.resize(recorded.border.forward_output_count);
  for (std::uint32_t i = 0; i < out.by_output.size(); ++i) {
    const ir::ValueId root = ir::view_root(recorded.graph, recorded.graph.outputs[i]);
    for (std::uint32_t tangent = 0; tangent < read.size(); ++tangent)
      if (read[tangent].contains(root)) out.by_output[i].push_back(tangent);
  }
  out.by_argument.resize(recorded.border.argument_count);
  for (std::size_t i = 0; i < out.by_argument.size(); ++i)
    for (std::uint32_t tangent = 0; tangent < read.size(); ++tangent)
      if (read[tangent].contains(recorded.graph.inputs[i])) out.by_argument[i].push_back(tangent);
  return out;
}

SavedByNodes saved_by_nodes(const record::Recorded& recorded) {
  SavedByNodes by;
  by.outputs.resize(recorded.border.forward_output_count);
  by.arguments.resize(recorded.border.argument_count);
  for (std::uint32_t n = 0; n < recorded.saving_nodes.size(); ++n) {
    std::set<ir::ValueId> roots;
    for (const ir::ValueId saved : recorded.saving_nodes[n].saved)
      roots.insert(ir::view_root(recorded.graph, saved));
    for (std::size_t i = 0; i < by.outputs.size(); ++i)
      if (roots.contains(ir::view_root(recorded.graph, recorded.graph.outputs[i])))
        by.outputs[i].push_back(n);
    for (std::size_t i = 0; i < by.arguments.size(); ++i)
      if (roots.contains(recorded.graph.inputs[i])) by.arguments[i].push_back(n);
  }
  return by;
}

std::vector<bool> copied_arguments(const record::Recorded& recorded, const ReadForGradients& kept) {
  std::vector<bool> copied;
  for (const std::vector<std::uint32_t>& tangents : kept.by_argument)
    copied.push_back(tangents.empty());
  const std::vector<bool> only_cast = inputs_only_cast(recorded.graph);
  for (const record::ArgumentInfo& info : recorded.arguments) {
    const ir::ValueId input = recorded.graph.inputs[info.graph_input];
    if (recorded.graph.values[input].is_static && !info.is_buffer && only_cast[info.graph_input])
      copied[info.graph_input] = false;
  }
  return copied;
}

Status refuse_saved_inference_tensors(const record::Recorded& recorded) {
  if (recorded.graph.inputs.size() == recorded.border.argument_count ||
      std::ranges::none_of(recorded.arguments, &record::ArgumentInfo::is_inference))
    return {};
  const ReadForGradients saved = read_for_gradients(recorded);
  for (std::size_t i = 0; i < recorded.arguments.size(); ++i)
    if (recorded.arguments[i].is_inference &&
        !saved.by_argument[recorded.arguments[i].graph_input].empty())
      return Status(Code::kEagerOnly, "the gradients need argument " + std::to_string(i) +
                                          ", an inference tensor, which autograd does not save");
  return {};
}

}  // namespace backplane::compiler
