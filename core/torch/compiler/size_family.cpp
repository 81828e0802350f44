#include "core/torch/compiler/size_family.h"

#include <algorithm>
#include <utility>

namespace backplane::compiler {

namespace {

void add_border(const record::Recorded& recorded, std::vector<std::uint64_t>& structure) {
  structure.push_back(recorded.forward_node_count);
  structure.push_back(recorded.border.argument_count);
  structure.push_back(recorded.border.forward_output_count);
  structure.push_back(recorded.grad_mode_after);
  structure.push_back(recorded.recomputes);
  const c10::Device device = recorded.placement.device.value_or(c10::kCPU);
  structure.push_back(static_cast<std::uint64_t>(device.type()));
  structure.push_back(static_cast<std::uint64_t>(device.index()));
  for (const bool on_device : recorded.placement.inputs) structure.push_back(on_device);
  for (const bool on_device : recorded.placement.outputs) structure.push_back(on_device);
  for (const record::ArgumentInfo& info : recorded.arguments)
    structure.insert(structure.end(),
                     {info.graph_input, info.requires_grad, info.is_mutated, info.counted_writes,
                      info.new_value, info.new_value_requires_grad, info.tangent, info.gradient});
  for (const record::OutputInfo& info : recorded.outputs)
    structure.insert(structure.end(),
                     {static_cast<std::uint64_t>(info.kind), info.base, info.graph_output,
                      static_cast<std::uint64_t>(info.dtype), info.requires_grad, info.tangent});
}

}  // namespace

std::shared_ptr<const ir::FlatGraph> flatten_with_border(const record::Recorded& recorded) {
  auto flat = std::make_shared<ir::FlatGraph>(ir::flatten(recorded.graph));
  add_border(recorded, flat->structure);
  return flat;
}

// A program for all samples of a structure, compiled; the values of its classes at `flat`.
Result<std::vector<std::int64_t>> SizeFamily::generalize(Structure& structure,
                                                         const ir::FlatGraph& flat,
                                                         const Compile& compile) {
  std::vector<const ir::FlatGraph*> samples;
  for (const auto& sample : structure.samples) samples.push_back(sample.get());
  BP_ASSIGN_OR_RETURN(ir::GeneralGraph general,
                      ir::GeneralGraph::build(structure.first.graph, samples));
  BP_ASSIGN_OR_RETURN(std::vector<std::int64_t> values, general.match(flat));
  record::Recorded recorded = structure.first;
  recorded.graph = general.graph();
  BP_ASSIGN_OR_RETURN(structure.entry, compile(std::move(recorded)));
  structure.general = std::move(general);
  return values;
}

Result<SizeFamily::Member> SizeFamily::add(record::Recorded recorded,
                                           std::shared_ptr<const ir::FlatGraph> flat,
                                           const Compile& compile, const Invent& invent) {
  Member member;
  auto sizes = std::make_shared<autograd::SizeRecord>(size_record(recorded));
  const auto known = std::ranges::find_if(
      structures_, [&](const Structure& s) { return s.samples[0]->structure == flat->structure; });
  member.is_new = true;
  std::optional<std::vector<std::int64_t>> values;
  if (known == structures_.end()) {
    Samples invented;
    if (invent) {
      BP_ASSIGN_OR_RETURN(invented, invent(*flat));
    }
    member.new_structure = true;
    Structure& structure = structures_.emplace_front();
    structure.samples.push_back(flat);
    structure.first = recorded;
    for (auto& sample : invented)
      if (sample->structure == flat->structure) structure.samples.push_back(std::move(sample));
    if (structure.samples.size() > 1)
      if (auto general = generalize(structure, *flat, compile); general.ok())
        values = std::move(*general);
    if (values) member.entry = structure.entry;
  } else {
    // The same sizes again, with other guards.
    if (!known->general && known->entry && known->samples[0]->numbers == flat->numbers) {
      values.emplace();
      member.is_new = false;
    }
    if (known->general)
      if (auto matched = known->general->match(*flat); matched.ok()) {
        values = std::move(*matched);
        member.is_new = false;
      }
    if (!values) {
      member.split = known->general.has_value();
      known->samples.push_back(flat);
      if (auto general = generalize(*known, *flat, compile); general.ok())
        values = std::move(*general);
    }
    if (values) member.entry = known->entry;
  }
  if (values) {
    sizes->class_values = std::move(*values);
  } else {
    auto compiled = compile(std::move(recorded));
    if (!compiled.ok()) {
      if (member.new_structure) structures_.pop_front();
      return compiled.take_status();
    }
    member.entry = std::move(*compiled);
    if (member.new_structure) structures_.front().entry = member.entry;
  }
  member.sizes = std::move(sizes);
  return member;
}

}  // namespace backplane::compiler
