#include "core/torch/bridge/history.h"

#include <torch/csrc/autograd/functions/tensor.h>

#include <algorithm>
#include <string>
#include <vector>

namespace backplane::bridge {

namespace impl = torch::autograd::impl;
using torch::autograd::CreationMeta;
using torch::autograd::Node;

namespace {

Nodes nodes_behind_all(std::vector<const Node*> pending) {
  Nodes seen;
  while (!pending.empty()) {
    const Node* node = pending.back();
    pending.pop_back();
    if (!node || !seen.insert(node).second) continue;
    for (const torch::autograd::Edge& edge : node->next_edges())
      pending.push_back(edge.function.get());
  }
  return seen;
}

}  // namespace

Nodes nodes_behind(const Node* from) { return nodes_behind_all({from}); }

bool leads_to(const Node* from, const Node* wanted) { return nodes_behind(from).contains(wanted); }

bool leads_to(const at::Tensor& part, const at::Tensor& whole) {
  return part.is_same(whole) ||
         leads_to(part.grad_fn().get(), impl::gradient_edge(whole).function.get());
}

namespace {

// PyTorch's own are "ViewBackward0"; of a class of Python's it is "ReversedBackward".
bool is_own_function(const Node* node) {
  // A write through a view.
  if (const auto* slices = dynamic_cast<const torch::autograd::CopySlices*>(node))
    return slices->fn && is_own_function(slices->fn.get());
  const std::string name = node->name();
  return name.find("CppNode") != std::string::npos || name.ends_with("Backward");
}

}  // namespace

bool has_own_function_between(const at::Tensor& view, const at::Tensor& base) {
  const Nodes behind = nodes_behind(impl::gradient_edge(base).function.get());
  return std::ranges::any_of(nodes_behind(view.grad_fn().get()), [&](const Node* node) {
    return !behind.contains(node) && is_own_function(node);
  });
}

bool has_own_function_behind(std::span<const at::Tensor> tensors) {
  std::vector<const Node*> last;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined() && tensor.requires_grad()) last.push_back(tensor.grad_fn().get());
  // A registered operator (torch.library) has its gradient whoever calls it.
  return std::ranges::any_of(nodes_behind_all(std::move(last)), [](const Node* node) {
    return is_own_function(node) && !node->name().starts_with("GeneratedBackwardFor");
  });
}

at::Tensor root_of(const at::Tensor& tensor) {
  return tensor.is_view() ? at::Tensor(tensor._base()) : tensor;
}

bool share_history(const at::Tensor& a, const at::Tensor& b) {
  return root_of(a).is_same(root_of(b));
}

bool counts_own_writes(const at::Tensor& view, const at::Tensor& base) {
  if (view.is_inference() || base.is_inference()) return false;
  c10::VariableVersion counter = impl::version_counter(view);
  const c10::VariableVersion& of_base = impl::version_counter(base);
  const std::uint32_t version = counter.current_version(), before = of_base.current_version();
  counter.bump();
  const bool apart = of_base.current_version() == before;
  counter.set_version(version);
  return apart;
}

bool has_hooks(const at::Tensor& tensor) {
  const auto* meta = impl::get_autograd_meta(tensor);
  return meta && !meta->hooks_.empty();
}

bool is_gradient_awaited(const at::Tensor& tensor) {
  return tensor.retains_grad() || has_hooks(tensor);
}

bool hears_of_gradient(const at::Tensor& leaf) {
  const auto* meta = impl::get_autograd_meta(leaf);
  if (!meta) return false;
  if (!meta->hooks_.empty() || meta->post_acc_grad_hooks_) return true;
  const auto accumulates = impl::try_get_grad_accumulator(leaf);
  return accumulates && (!accumulates->pre_hooks().empty() || !accumulates->post_hooks().empty());
}

bool is_made_by(CreationMeta creation, const at::Tensor& tensor) {
  const auto* view = impl::get_view_autograd_meta(tensor);
  return view && view->get_creation_meta() == creation;
}

bool is_bare_view(const at::Tensor& tensor) {
  if (!tensor.is_view() || !tensor.requires_grad()) return false;
  // What a usual view has behind a write to its base it gets when it is asked for.
  return is_made_by(CreationMeta::DEFAULT, tensor) ? !tensor.grad_fn()
                                                   : !impl::get_autograd_meta(tensor)->grad_fn_;
}

bool is_renewed_by_writes(const at::Tensor& tensor) { return tensor.is_view(); }

bool is_written_since(const at::Tensor& view) {
  const auto* meta = impl::get_view_autograd_meta(view);
  return meta->has_bw_view() && meta->get_attr_version() != view._version();
}

}  // namespace backplane::bridge
