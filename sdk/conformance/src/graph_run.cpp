#include "sdk/conformance/src/graph_run.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "core/ir/expression.h"
#include "core/ir/extract.h"
#include "core/ir/text.h"
#include "core/ir/view.h"
#include "sdk/conformance/src/elements.h"

namespace backplane::conformance {

using runtime::CompiledGraph;
using runtime::Device;

namespace {

std::optional<std::int64_t> evaluate(const std::vector<ir::ExpressionStep>& steps,
                                     const std::vector<std::optional<std::int64_t>>& classes) {
  std::vector<std::int64_t> stack;
  for (const ir::ExpressionStep& step : steps) {
    if (step.op == ir::ExpressionOp::kConstant) {
      stack.push_back(step.argument);
    } else if (step.op == ir::ExpressionOp::kClass) {
      const auto& value = classes[static_cast<std::size_t>(step.argument)];
      if (!value) return std::nullopt;
      stack.push_back(*value);
    } else {
      const std::int64_t b = stack.back();
      stack.pop_back();
      if (!ir::apply_expression_op(step.op, stack.back(), b, stack.back())) return std::nullopt;
    }
  }
  return stack.back();
}

// Classes that no input's shape gives: a framework passes them as integers.
std::vector<std::string> integer_arguments(const ir::Graph& graph) {
  std::vector<bool> bound(graph.dim_classes.size(), false);
  for (const ir::ValueId input : graph.inputs)
    for (const ir::Dim dim : graph.values[input].type.dims)
      if (dim.is_class()) bound[dim.class_index()] = true;
  std::vector<std::string> out;
  for (std::size_t i = 0; i < bound.size(); ++i)
    if (!bound[i] && graph.dim_classes[i].expression.empty())
      out.push_back(graph.dim_classes[i].name);
  return out;
}

// Nodes that the device left to the host, with its reasons.
Status check_claimed(const CompiledGraph& compiled, const std::string& device) {
  if (compiled.fallback_node_count() == 0) return {};
  const ir::Graph& graph = compiled.graph();
  std::vector<bool> taken(graph.nodes.size(), false);
  for (const auto& partition : compiled.partitions())
    for (const ir::NodeId node : partition->nodes) taken[node] = true;
  std::string text = device + " does not take the whole graph:";
  for (ir::NodeId node = 0; node < graph.nodes.size(); ++node) {
    if (taken[node] || graph.nodes[node].op->op_class == ir::OpClass::kView) continue;
    const auto refusal =
        std::ranges::find(compiled.refusals(), node, &runtime::RefusalReport::node);
    text += "\n  " + ir::print_node(graph, node) + "\n    ";
    text += refusal != compiled.refusals().end() ? refusal->text : "without a reason";
  }
  return {Code::kUnsupported, text};
}

}  // namespace

Result<Sizes> class_values(const ir::Graph& graph, std::map<std::string, std::int64_t> given) {
  std::vector<std::optional<std::int64_t>> values(graph.dim_classes.size());
  const auto find = [&](std::string_view name) -> std::optional<std::uint32_t> {
    for (std::uint32_t i = 0; i < graph.dim_classes.size(); ++i)
      if (graph.dim_classes[i].name == name) return i;
    return std::nullopt;
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    const ir::DimClass& c = graph.dim_classes[i];
    if (const auto found = given.find(c.name); found != given.end()) {
      if (!c.expression.empty())
        return Status(Code::kInvalidArgument,
                      c.name + " follows from others (\"" + c.expression + "\"); leave it out.");
      if (found->second < c.min || found->second > c.max || found->second % c.divisor != 0)
        return Status(Code::kInvalidArgument, c.name + " = " + std::to_string(found->second) +
                                                  " is outside [" + std::to_string(c.min) + ", " +
                                                  std::to_string(c.max) + "] or no multiple of " +
                                                  std::to_string(c.divisor) + ".");
      values[i] = found->second;
      given.erase(found);
    } else if (c.expression.empty()) {
      values[i] = c.hint;
    }
  }
  if (!given.empty())
    return Status(Code::kInvalidArgument,
                  "The graph has no dim class " + given.begin()->first + ".");
  for (std::size_t round = 0; round <= values.size(); ++round) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i]) continue;
      BP_ASSIGN_OR_RETURN(const auto steps,
                          ir::parse_expression(graph.dim_classes[i].expression, find));
      values[i] = evaluate(steps, values);
    }
  }
  Sizes out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i])
      return Status(Code::kInvalidArgument, graph.dim_classes[i].name + " = \"" +
                                                graph.dim_classes[i].expression +
                                                "\" cannot be computed.");
    out.push_back(*values[i]);
  }
  return out;
}

std::size_t memory_bytes(const ir::Graph& graph, ir::ValueId value, const Sizes& classes) {
  const ir::TensorType& type = graph.values[value].type;
  return static_cast<std::size_t>(ir::span_bytes(type.dtype, ir::resolve(type.dims, classes),
                                                 ir::resolve(type.strides, classes)));
}

// Each node that the device left, as a graph of its own on the fallback's device.
class GraphRun::NodeRunner final : public runtime::FallbackRunner {
 public:
  NodeRunner(GraphRun& run, Results& results) : run_(run), results_(results) {}

  Status run(ir::NodeId id, Memory& memory) override {
    const ir::Graph& graph = run_.compiled_->graph();
    const ir::Node& node = graph.nodes[id];
    std::vector<ir::ValueId> operands, made;
    for (const ir::ValueId operand : node.operands)
      if (operand != ir::kNone && graph.values[operand].kind != ir::ValueKind::kConstant &&
          std::ranges::find(operands, operand) == operands.end())
        operands.push_back(operand);
    for (const ir::ValueId result : node.results)
      if (result != ir::kNone) made.push_back(result);
    BP_ASSIGN_OR_RETURN(GraphRun* const run, run_.run_of(id, operands, made));
    std::vector<void*> addresses;
    for (const ir::ValueId operand : operands) {
      const ir::ValueId root = ir::view_root(graph, operand);
      const auto& constant = graph.values[root].constant;
      auto* base = constant ? const_cast<std::uint8_t*>(constant->bytes.data())
                            : static_cast<std::uint8_t*>(memory.address(root));
      addresses.push_back(base + ir::view_offset_bytes(graph, operand, run_.classes_));
    }
    Results& own = *results_.kept_.emplace_back(std::make_unique<Results>());
    BP_RETURN_IF_ERROR(run->call(addresses, own));
    for (std::size_t i = 0; i < made.size(); ++i) {
      auto* address = const_cast<std::uint8_t*>(own.address(i));
      results_.fallback_at_[made[i]] = address;
      memory.set_address(made[i], address);
    }
    return {};
  }

 private:
  GraphRun& run_;
  Results& results_;
};

Result<GraphRun*> GraphRun::run_of(ir::NodeId node, std::span<const ir::ValueId> operands,
                                   std::span<const ir::ValueId> results) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<GraphRun>& run = node_runs_[node];
  if (run == nullptr) {
    const ir::NodeId nodes[] = {node};
    BP_ASSIGN_OR_RETURN(ir::Graph part,
                        ir::extract(compiled_->graph(), nodes, operands, results, classes_));
    for (const ir::ValueId input : part.inputs) part.values[input].is_static = false;
    BP_ASSIGN_OR_RETURN(Sizes classes, class_values(part, {}));
    BP_ASSIGN_OR_RETURN(run, make(part, *fallback_, nullptr, std::move(classes), {}));
  }
  return run.get();
}

Result<std::unique_ptr<GraphRun>> GraphRun::make(const ir::Graph& graph, Device& device,
                                                 Device* fallback, Sizes classes,
                                                 std::span<void* const> inputs) {
  const std::vector<std::string> integers = integer_arguments(graph);
  BP_ASSIGN_OR_RETURN(auto compiled, CompiledGraph::compile(graph, {&device}, {}, integers));
  if (fallback == nullptr) BP_RETURN_IF_ERROR(check_claimed(*compiled, device.label()));
  std::unique_ptr<GraphRun> run(new GraphRun(std::move(compiled), fallback, std::move(classes)));
  BP_RETURN_IF_ERROR(run->prepare(inputs));
  return run;
}

Status GraphRun::prepare(std::span<void* const> inputs) {
  const ir::Graph& graph = compiled_->graph();
  BP_ASSIGN_OR_RETURN(plan_, compiled_->plan(classes_));
  std::vector<runtime::StaticTensor> tensors;
  for (const std::uint32_t i : compiled_->packed_inputs()) {
    runtime::StaticTensor& tensor = tensors.emplace_back();
    tensor.data = tensor.storage = inputs[i];
    tensor.dtype = graph.values[graph.inputs[i]].type.dtype;
  }
  BP_ASSIGN_OR_RETURN(packs_, compiled_->packs(tensors));
  return {};
}

Status GraphRun::call(std::span<void* const> inputs, Results& results) {
  const ir::Graph& graph = compiled_->graph();
  results.run_ = this;
  results.inputs_.assign(inputs.begin(), inputs.end());
  results.memory_.resize(compiled_->exports().size());
  results.fallback_at_.clear();
  results.kept_.clear();
  std::vector<void*> outputs;
  for (std::size_t i = 0; i < results.memory_.size(); ++i) {
    const CompiledGraph::Export& one = compiled_->exports()[i];
    if (one.source == CompiledGraph::Source::kPlugin)
      results.memory_[i].assign(memory_bytes(graph, one.root, classes_), 0xfe);
    outputs.push_back(results.memory_[i].data());
  }
  NodeRunner runner(*this, results);
  CompiledGraph::Call arguments;
  arguments.inputs = results.inputs_;
  arguments.outputs = outputs;
  arguments.packs = packs_.get();
  arguments.fallback = fallback_ != nullptr ? &runner : nullptr;
  return compiled_->run(*plan_, arguments);
}

const std::uint8_t* GraphRun::Results::address(std::size_t i) const {
  const CompiledGraph& compiled = run_->compiled();
  const ir::Graph& graph = compiled.graph();
  const ir::ValueId value = graph.outputs[i], root = ir::view_root(graph, value);
  const std::uint8_t* data = nullptr;
  if (const auto found = fallback_at_.find(root); found != fallback_at_.end())
    data = static_cast<const std::uint8_t*>(found->second);
  for (std::size_t e = 0; e < memory_.size(); ++e)
    if (compiled.exports()[e].root == root &&
        compiled.exports()[e].source == CompiledGraph::Source::kPlugin)
      data = memory_[e].data();
  for (std::size_t k = 0; k < graph.inputs.size(); ++k)
    if (graph.inputs[k] == root) data = static_cast<const std::uint8_t*>(inputs_[k]);
  if (graph.values[root].constant) data = graph.values[root].constant->bytes.data();
  return data + ir::view_offset_bytes(graph, value, run_->classes_);
}

Bytes GraphRun::Results::output(std::size_t i) const {
  const ir::Graph& graph = run_->compiled().graph();
  const ir::TensorType& type = graph.values[graph.outputs[i]].type;
  return make_dense(type.dtype, address(i), ir::resolve(type.dims, run_->classes_),
                    ir::resolve(type.strides, run_->classes_));
}

}  // namespace backplane::conformance
