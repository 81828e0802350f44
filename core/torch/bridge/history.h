// What autograd knows of a tensor: its history, and what it is a view of.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <span>
#include <unordered_set>

namespace backplane::bridge {

using Nodes = std::unordered_set<const torch::autograd::Node*>;
// All that a gradient that comes to `from` comes to, itself as well.
Nodes nodes_behind(const torch::autograd::Node* from);
// Whether a gradient that comes to `from` comes to `wanted`.
bool leads_to(const torch::autograd::Node* from, const torch::autograd::Node* wanted);
// Whether a gradient of `part` comes to `whole`. It does not through a view that was made where
// gradients are off.
bool leads_to(const at::Tensor& part, const at::Tensor& whole);

// Whether a function of the program's own (torch.autograd.Function) makes the gradient that comes
// from `view` to `base`: nothing of the kind that views have.
bool has_own_function_between(const at::Tensor& view, const at::Tensor& base);
// Whether there is one in the history of any of these.
bool has_own_function_behind(std::span<const at::Tensor> tensors);

// Of a view: what it is one of; of another: itself.
at::Tensor root_of(const at::Tensor& tensor);
// Whether a write to one of two that share memory is in the history of the other.
bool share_history(const at::Tensor& a, const at::Tensor& b);
// Whether PyTorch counts the writes of two that share memory apart: `view` is what `data` gave, and
// not `detach`.
bool counts_own_writes(const at::Tensor& view, const at::Tensor& base);

bool has_hooks(const at::Tensor& tensor);
// Of one with a history: somebody asks for the gradient of what it is now. A write that joins its
// history would take that from them.
bool is_gradient_awaited(const at::Tensor& tensor);
// Whether somebody is called when the gradient of a leaf is there.
bool hears_of_gradient(const at::Tensor& leaf);
// It, or what it is a view of.
bool is_made_by(torch::autograd::CreationMeta creation, const at::Tensor& tensor);
// Made where gradients are off: it asks for gradients as its base does, and has no history.
bool is_bare_view(const at::Tensor& tensor);
// It, or a view of it, has a history by what it is a view of. Where a write joins no history,
// autograd makes that anew: a gradient that is asked for afterwards is one of what was read since.
bool is_renewed_by_writes(const at::Tensor& tensor);
// Of a view: its base was written since it was made.
bool is_written_since(const at::Tensor& view);

}  // namespace backplane::bridge
