#include "core/torch/call/gradient.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <stdexcept>
#include <type_traits>
#include <utility>

#include "core/ir/view.h"
#include "core/torch/bridge/dtype.h"

namespace backplane::call {

namespace autograd = torch::autograd;

namespace {

std::vector<at::Tensor> moved_constants(const std::vector<at::Tensor>& constants,
                                        const std::vector<ir::ValueId>& ids,
                                        const ir::Graph& graph) {
  std::vector<at::Tensor> moved(graph.values.size());
  for (ir::ValueId v = 0; v < constants.size(); ++v)
    if (constants[v].defined() && ids[v] != ir::kNone) moved[ids[v]] = constants[v];
  return moved;
}

std::vector<at::Tensor> unwrap(Result<std::vector<at::Tensor>> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(*result);
}

}  // namespace

// One forward that waits for its backward.
class GradientNode final : public autograd::Node {
 public:
  std::shared_ptr<const DifferentiableGraph> graph;
  std::vector<autograd::SavedVariable> saved_arguments;  // in order of the cut's saved arguments
  std::vector<at::Tensor> saved_values;                  // the others
  std::vector<std::uint32_t> tangent_of;                 // by differentiable output

  std::string name() const override { return "BackplaneBackward"; }

  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    if (at::GradMode::is_enabled())
      throw std::runtime_error(
          "The gradient of a captured graph cannot be differentiated again (create_graph=True). "
          "Call the function without torch_backplane.compile for that.");
    if (released_) throw std::runtime_error(autograd::ERR_BACKWARD_TWICE);
    std::vector<at::Tensor> inputs;
    std::size_t argument = 0, value = 0;
    for (const partition::SavedValue& saved : graph->saved_)
      inputs.push_back(saved.is_argument ? saved_arguments[argument++].unpack()
                                         : saved_values[value++]);
    const std::size_t first = inputs.size();
    for (const at::Tensor& like : graph->tangents_like_)
      inputs.push_back(at::zeros(like.sizes(), like.options().device(at::kCPU)));
    for (std::size_t i = 0; i < gradients.size(); ++i)
      if (gradients[i].defined()) inputs[first + tangent_of[i]] = gradients[i];
    const std::vector<at::Tensor> results = unwrap(graph->backward_(inputs));
    autograd::variable_list out;
    for (std::size_t a = 0; a < graph->argument_count_; ++a) {
      const std::uint32_t position = graph->gradient_of_[a];
      if (!has_edge[a]) continue;
      out.push_back(position == record::kAbsent ? at::Tensor() : results[position]);
    }
    return out;
  }

  void release_variables() override {
    saved_arguments.clear();
    saved_values.clear();
    released_ = true;
  }

  std::vector<bool> has_edge;  // by argument

 private:
  bool released_ = false;
};

namespace {

// Nodes are held by one pointer type up to torch 2.12 and by another from 2.13 on.
template <class Pointer>
Pointer make_node(GradientNode*& out_node) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<autograd::Node>>) {
    auto made = std::make_shared<GradientNode>();
    out_node = made.get();
    return made;
  } else {
    auto made = c10::make_intrusive<GradientNode>();
    out_node = made.get();
    return made;
  }
}

}  // namespace

Result<std::shared_ptr<const DifferentiableGraph>> DifferentiableGraph::make(
    const record::Recorded& recorded, const MakeRunner& make_runner) {
  auto made = std::make_shared<DifferentiableGraph>();
  BP_ASSIGN_OR_RETURN(partition::JointCut cut,
                      partition::cut_joint(recorded.graph, recorded.border, {}));
  BP_ASSIGN_OR_RETURN(
      made->forward_,
      make_runner(cut.forward, moved_constants(recorded.constants, cut.forward_ids, cut.forward),
                  GraphRole::kForward));
  BP_ASSIGN_OR_RETURN(
      made->backward_,
      make_runner(cut.backward, moved_constants(recorded.constants, cut.backward_ids, cut.backward),
                  GraphRole::kBackward));
  made->saved_ = std::move(cut.saved);
  made->forward_output_count_ = recorded.border.forward_output_count;
  made->argument_count_ = recorded.arguments.size();
  const std::size_t first_tangent = recorded.border.argument_count;
  for (std::size_t i = first_tangent; i < recorded.graph.inputs.size(); ++i) {
    const ir::TensorType& type = recorded.graph.values[recorded.graph.inputs[i]].type;
    std::vector<std::int64_t> sizes;
    for (const auto& dim : type.dims) sizes.push_back(ir::resolve(dim, {}));
    made->tangents_like_.push_back(at::empty(
        sizes, at::TensorOptions().dtype(bridge::to_scalar_type(type.dtype)).device(at::kMeta)));
  }
  for (const record::OutputInfo& output : recorded.outputs) {
    OutputPlan plan;
    plan.graph_output = output.graph_output;
    plan.differentiable =
        output.tangent != record::kAbsent && output.kind == record::OutputKind::kFresh;
    if (plan.differentiable)
      plan.tangent = output.tangent - static_cast<std::uint32_t>(first_tangent);
    made->outputs_.push_back(plan);
  }
  for (const record::ArgumentInfo& argument : recorded.arguments) {
    made->gradient_of_.push_back(argument.gradient == record::kAbsent
                                     ? record::kAbsent
                                     : argument.gradient -
                                           static_cast<std::uint32_t>(made->forward_output_count_));
    made->mutated_.push_back(argument.is_mutated);
  }
  return std::shared_ptr<const DifferentiableGraph>(std::move(made));
}

Result<std::vector<at::Tensor>> DifferentiableGraph::run(
    std::span<const at::Tensor> inputs, std::shared_ptr<const DifferentiableGraph> self) const {
  std::vector<at::Tensor> results;
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    BP_ASSIGN_OR_RETURN(results, forward_(inputs));
  }
  GradientNode* raw = nullptr;
  const auto node = make_node<decltype(autograd::Edge::function)>(raw);
  raw->graph = std::move(self);
  autograd::edge_list edges;
  for (std::size_t a = 0; a < inputs.size(); ++a) {
    raw->has_edge.push_back(inputs[a].requires_grad());
    if (inputs[a].requires_grad()) edges.push_back(autograd::impl::gradient_edge(inputs[a]));
  }
  node->set_next_edges(std::move(edges));
  for (const partition::SavedValue& saved : saved_) {
    if (!saved.is_argument) {
      raw->saved_values.push_back(results[saved.forward_position]);
      continue;
    }
    const at::Tensor& argument = inputs[saved.forward_position];
    // What will be written is kept as it is now.
    raw->saved_arguments.emplace_back(
        mutated_[saved.forward_position] ? argument.detach().clone() : argument, false);
  }
  results.resize(forward_output_count_);
  for (const OutputPlan& plan : outputs_) {
    if (!plan.differentiable) continue;
    raw->tangent_of.push_back(plan.tangent);
    // A saved value may be the output itself, which must not hold its own history.
    at::Tensor result = results[plan.graph_output].detach();
    autograd::create_gradient_edge(result, node);
    results[plan.graph_output] = std::move(result);
  }
  return results;
}

}  // namespace backplane::call
