#include <backplane/kernels/panels.hpp>
#include <backplane/kernels/program.hpp>

#include <algorithm>

#include "grouping.hpp"
#include "point_group.hpp"
#include "register_tiles.hpp"
#include "registry.hpp"
#include "sharing.hpp"

namespace backplane::kernels {
namespace {

// The kernel of a step, whatever the sizes are.
class Factory {
 public:
  Factory(std::shared_ptr<Target> target, std::vector<Group> groups, std::size_t node_count,
          std::shared_ptr<KernelFamilies> families, std::shared_ptr<SharedKernels> shared)
      : target_(std::move(target)),
        kinds_(node_count, Group::kSingle),
        families_(std::move(families)),
        shared_(std::move(shared)) {
    for (const Group& group : groups)
      for (const std::uint32_t n : group.nodes) kinds_[n] = group.kind;
  }
  Result<std::unique_ptr<sdk::Kernel>> make(const sdk::StepContext& step) const {
    Builder builder(*target_, step, families_.get(), shared_.get());
    if (step.step().is_copy()) return make_copy(builder);
    if (kinds_[step.step().nodes[0]] == Group::kPoints) return make_point_group(builder);
    BP_SDK_RETURN_IF_ERROR(find_kernel(step.node().op())->build(builder));
    return std::unique_ptr<sdk::Kernel>(builder.take());
  }

 private:
  std::shared_ptr<Target> target_;
  std::vector<Group::Kind> kinds_;  // by node
  std::shared_ptr<KernelFamilies> families_;
  std::shared_ptr<SharedKernels> shared_;
};

}  // namespace

std::optional<sdk::Refusal> refuse(const Facts& facts, const sdk::NodeView& node) {
  const std::string op(node.op());
  // Attention draws only where it drops, which its own check refuses.
  const bool attention = op.starts_with("aten._scaled_dot_product");
  if ((node.raw().effects & ~(attention ? BP_EFFECT_RANDOM : 0)) != 0)
    return refusal(BP_REFUSED_OP, op + " has effects");
  const auto check = [&](const sdk::ValueView& v) -> std::optional<sdk::Refusal> {
    if (is_absent(v)) return std::nullopt;
    const auto storage = storage_of(v.dtype());
    if (!storage) return refusal(BP_REFUSED_DTYPE, "element type not supported");
    if (*storage == Storage::kF64 && !facts.has_fp64)
      return refusal(BP_REFUSED_DTYPE, "the device has no float64");
    if (v.rank() > 12) return refusal(BP_REFUSED_SHAPE, "more than 12 dims");
    if (*storage == Storage::kF16 && v.has(BP_VALUE_HOST_SCALAR))
      return refusal(BP_REFUSED_DTYPE, "a float16 number bound by value");
    return std::nullopt;
  };
  for (std::size_t i = 0; i < node.operand_count(); ++i)
    if (node.has_operand(i))
      if (auto no = check(node.operand(i))) return no;
  for (std::size_t i = 0; i < node.result_count(); ++i)
    if (node.result_index(i) != BP_NONE)
      if (auto no = check(node.result(i))) return no;
  if (node.is_view()) {
    if (op == "aten.view_as_complex" || op == "aten.view_as_real")
      return refusal(BP_REFUSED_DTYPE, "no complex numbers");
    return std::nullopt;
  }
  if (const KernelRow* row = find_kernel(op)) {
    auto no = row->refuse ? row->refuse(node) : std::nullopt;
    if (!no && row->refuse_on) no = row->refuse_on(facts, node);
    return no;
  }
  if (is_point_op(node)) return refuse_point_op(node);
  return refusal(BP_REFUSED_OP, "no kernel for " + op);
}

sdk::Claims claims(const Facts& facts, const sdk::GraphView& graph) {
  return sdk::claim_where(graph, [&](const sdk::NodeView& node) { return refuse(facts, node); });
}

Status GeneratedProgram::check(const Facts& facts, const sdk::Subgraph& graph,
                               const sdk::CompileOptions& options) {
  for (std::size_t i = 0; i < graph.size(); ++i)
    if (auto no = refuse(facts, graph[i])) return {BP_UNSUPPORTED, no->text};
  if (options.cancelled()) return {BP_CANCELLED, "compile was cancelled"};
  return {};
}

GeneratedProgram::Plan GeneratedProgram::plan(const std::shared_ptr<Target>& target,
                                              const sdk::Subgraph& graph,
                                              const sdk::CompileOptions& options) {
  const Facts& facts = target->facts();
  const bool panels = facts.has_vectors();  // what its products read
  const std::int64_t panel_columns = panels ? 16 * usual_vectors(facts.product_sums) : 0;
  Grouping made = group_nodes(
      graph, [&](std::size_t i) { return panels && options.wants_any_input(i); }, panel_columns);
  const auto is_packed = [](const bp_layout& layout) { return layout.kind == BP_LAYOUT_OPAQUE; };
  if (std::ranges::any_of(made.layouts, is_packed)) want_packing(*target);
  Plan plan{std::move(made.steps), {}, std::move(made.layouts), nullptr};
  std::shared_ptr<KernelFamilies> families;
  if (graph.dim_class_count() != 0) families = std::make_shared<KernelFamilies>();
  if (families == nullptr && panels) plan.shared = std::make_shared<SharedKernels>();
  auto factory = std::make_shared<const Factory>(target, std::move(made.groups), graph.size(),
                                                 std::move(families), plan.shared);
  plan.factory = [factory](const sdk::StepContext& step) { return factory->make(step); };
  return plan;
}

GeneratedProgram::GeneratedProgram(std::shared_ptr<Target> target, const sdk::Subgraph& graph,
                                   const sdk::CompileOptions& options)
    : GeneratedProgram(target, graph, plan(target, graph, options)) {}

GeneratedProgram::GeneratedProgram(std::shared_ptr<Target> target, const sdk::Subgraph& graph,
                                   Plan plan)
    : ProgramExecutable(graph, std::move(plan.steps), std::move(plan.factory),
                        std::move(plan.layouts)),
      target_(std::move(target)),
      shared_(std::move(plan.shared)) {}

Result<std::uint64_t> GeneratedProgram::workspace_bytes(std::span<const std::int64_t> dims) {
  auto bytes = ProgramExecutable::workspace_bytes(dims);
  if (bytes.ok()) BP_SDK_RETURN_IF_ERROR(build());
  return bytes;
}

Status GeneratedProgram::prepare(const sdk::Execution& call) {
  auto ready = instance({call.dims(), graph().dim_class_count()});
  return ready.ok() ? build() : ready.status();
}

Status GeneratedProgram::build() {
  if (shared_ != nullptr) shared_->resolve(*target_);
  return target_->build_pending();
}

}  // namespace backplane::kernels
