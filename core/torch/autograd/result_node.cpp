#include "core/torch/autograd/result_node.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

namespace backplane::autograd {

namespace {

// In the backward that runs: by a hook, or as what it is for.
bool is_asked_for(const torch::autograd::Edge& edge) {
  if (!edge.is_valid()) return false;
  torch::autograd::Node& node = *edge.function;
  const auto input = static_cast<int>(edge.input_nr);
  if (!node.tensor_pre_hooks().empty() || node.retains_grad_hooks().contains(input) ||
      !node.pre_hooks().empty() || !node.post_hooks().empty())
    return true;
  const auto* running = torch::autograd::get_current_graph_task_exec_info();
  if (!running) return false;
  const auto found = running->find(&node);
  using Capture = torch::autograd::GraphTask::ExecInfo::Capture;
  return found != running->end() && found->second.captures_ &&
         std::ranges::any_of(*found->second.captures_,
                             [&](const Capture& one) { return one.input_idx_ == input; });
}

}  // namespace

torch::autograd::variable_list ResultNode::apply(torch::autograd::variable_list&& tangents) {
  torch::autograd::variable_list gradients(num_outputs());
  std::vector<record::GradientSource> asked;
  std::vector<std::uint32_t> edges;
  for (std::uint32_t i = 0; i < result_.sources.size() && tangents[0].defined(); ++i) {
    if (!is_asked_for(next_edge(1 + i))) continue;
    asked.push_back(result_.sources[i]);
    edges.push_back(1 + i);
  }
  if (!asked.empty()) {
    torch::autograd::variable_list found =
        joint_->differentiate_results(result_.tangent, tangents[0], asked);
    for (std::size_t i = 0; i < edges.size(); ++i) gradients[edges[i]] = std::move(found[i]);
  }
  gradients[0] = std::move(tangents[0]);
  return gradients;
}

}  // namespace backplane::autograd
