#include "program.h"

#include <backplane/sdk/weights.hpp>

#include "kernel_registry.h"
#include "layouts.h"

namespace backplane::reference {
namespace {

// One node at one set of sizes. A step without nodes copies its operand.
class NodeKernel final : public sdk::Kernel {
 public:
  NodeKernel(const sdk::StepContext& step, const KernelRow* row) : plan_(step, row) {}
  sdk::Status run(const sdk::KernelCall& call) const override {
    const Frame frame(plan_, call);
    try {
      if (plan_.row == nullptr)
        copy(frame.out(), frame.in(0));
      else
        plan_.row->run(frame);
    } catch (const KernelError& error) {
      const std::string name = plan_.row ? std::string(plan_.row->name) + ": " : "";
      return {error.code(), name + error.what()};
    }
    return {};
  }
  // The operand's dims as the op reads them, where its weight is bound untransposed.
  void transpose_operand(std::size_t i) {
    Tensor& t = plan_.operands[i];
    std::swap(t.dims[0], t.dims[1]);
    std::swap(t.strides[0], t.strides[1]);
    t.layout = t.layout == kRowPanels ? kColumnPanels : kRowPanels;
  }

 private:
  NodePlan plan_;
};

// Where an op takes a weight: its operand, and the layout in which it reads it best. 0: nowhere.
std::uint64_t weight_layout(const sdk::NodeView& node, std::size_t operand) {
  const std::string_view op = node.op();
  if ((op == "aten.mm" && operand == 1) || (op == "aten.addmm" && operand == 2))
    return kColumnPanels;
  if ((op == "aten.linear" || op == "aten.convolution") && operand == 1) return kRowPanels;
  return 0;
}

std::optional<sdk::Refusal> refuse(const sdk::NodeView& node) {
  const auto because = [](bp_refusal reason, std::string text) {
    return sdk::Refusal{0, reason, std::move(text)};
  };
  const std::string op(node.op());
  if (node.raw().effects & BP_EFFECT_RANDOM)
    return because(BP_REFUSED_OP, op + " draws from the host's generator");
  if (node.raw().effects & ~BP_EFFECT_MUTATES)
    return because(BP_REFUSED_OTHER, op + " has an unknown effect");
  const bool view = node.is_view();
  const KernelRow* row = find_kernel(op);
  if (!view && row == nullptr) return because(BP_REFUSED_OP, "no kernel for " + op);
  for (std::uint32_t i = 0; i < node.raw().operand_count + node.raw().result_count; ++i) {
    const bool operand = i < node.raw().operand_count;
    const std::size_t k = operand ? i : i - node.raw().operand_count;
    if ((operand ? node.operand_index(k) : node.result_index(k)) == BP_NONE) continue;
    const sdk::ValueView value = operand ? node.operand(k) : node.result(k);
    const Type type = type_of(value.dtype());
    if (type == Type::kNone) return because(BP_REFUSED_DTYPE, "element type not supported");
    if (!view && is_complex(type) && !row->complex)
      return because(BP_REFUSED_DTYPE, op + " has no complex kernel");
    if (operand && value.raw().layout.kind == BP_LAYOUT_OPAQUE &&
        !is_panel_layout(value.raw().layout.layout_id))
      return because(BP_REFUSED_LAYOUT, "layout of another plugin");
  }
  return row != nullptr && row->refuse != nullptr ? row->refuse(node) : std::nullopt;
}

}  // namespace

sdk::Claims claim_graph(const sdk::GraphView& graph) { return sdk::claim_where(graph, refuse); }

std::vector<bp_layout> choose_layouts(const sdk::Subgraph& graph,
                                      const sdk::CompileOptions& options) {
  return sdk::choose_weight_layouts(
      graph, options,
      [](const sdk::NodeView& node, std::size_t operand, bool turned) -> std::uint64_t {
        const std::uint64_t layout = weight_layout(node, operand);
        if (!turned) return layout;
        return layout == kColumnPanels ? kRowPanels : 0;
      });
}

std::shared_ptr<sdk::ProgramExecutable> make_program(const sdk::Subgraph& graph,
                                                     std::vector<bp_layout> layouts) {
  // Value index of a packed weight's transposition, to the weight.
  std::vector<std::uint32_t> untransposed(graph.value_count(), BP_NONE);
  const auto packed = [&](std::uint32_t value) {
    for (std::size_t i = 0; i < layouts.size(); ++i)
      if (graph.inputs()[i] == value) return layouts[i].kind == BP_LAYOUT_OPAQUE;
    return false;
  };
  std::vector<sdk::Step> steps;
  for (sdk::Step& step : sdk::step_per_node(graph)) {
    const sdk::NodeView node = graph[step.nodes[0]];
    if (node.turns_matrix() && packed(node.operand_index(0))) {
      untransposed[node.result_index()] = node.operand_index(0);
      continue;
    }
    for (std::uint32_t& value : step.operands)
      if (value != BP_NONE && untransposed[value] != BP_NONE) value = untransposed[value];
    steps.push_back(std::move(step));
  }
  auto factory = [](const sdk::StepContext& step) -> sdk::Result<std::unique_ptr<sdk::Kernel>> {
    if (step.step().is_copy()) return std::make_unique<NodeKernel>(step, nullptr);
    const KernelRow* row = find_kernel(step.node().op());
    if (row == nullptr)
      return sdk::Status(BP_UNSUPPORTED, "no kernel for " + std::string(step.node().op()));
    auto kernel = std::make_unique<NodeKernel>(step, row);
    for (std::size_t i = 0; i < step.step().operands.size(); ++i)
      if (step.step().operands[i] != step.node().operand_index(i)) kernel->transpose_operand(i);
    return kernel;
  };
  return std::make_shared<sdk::ProgramExecutable>(graph, std::move(steps), factory,
                                                  std::move(layouts));
}

sdk::Status check_ranges(sdk::ProgramExecutable& program, const sdk::Execution& call) {
  const sdk::GraphView& graph = program.graph();
  auto instance = program.instance({call.dims(), graph.dim_class_count()});
  if (!instance.ok()) return instance.status();
  const auto fits = [&](std::uint32_t value, const bp_binding& binding) {
    const bp_range& range = binding.range;
    if (range.buffer == nullptr && range.host == nullptr) return true;  // by value, or nothing
    const sdk::TensorSpec& spec = (*instance)->specs()[value];
    const std::int64_t bytes =
        spec.layout.kind == BP_LAYOUT_OPAQUE
            ? packed_bytes(spec.layout.layout_id, type_of(spec.dtype), spec.dims)
            : spec.span_bytes();
    return range.size_bytes >= static_cast<std::uint64_t>(bytes);
  };
  for (std::size_t i = 0; i < graph.inputs().size(); ++i)
    if (!fits(graph.inputs()[i], call.input(i)))
      return {BP_INVALID_ARGUMENT, "the range of input " + std::to_string(i) + " is too small"};
  for (std::size_t i = 0; i < graph.outputs().size(); ++i)
    if (!fits(graph.outputs()[i], call.output(i)))
      return {BP_INVALID_ARGUMENT, "the range of output " + std::to_string(i) + " is too small"};
  if (call.workspace().bytes() < (*instance)->workspace_bytes())
    return {BP_INVALID_ARGUMENT, "the workspace is too small"};
  return {};
}

}  // namespace backplane::reference
