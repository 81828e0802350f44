#include "core/torch/autograd/joint_node.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <unordered_set>

#include "core/torch/bridge/errors.h"

namespace backplane::autograd {

namespace {

using torch::autograd::variable_list;

std::atomic<std::uint64_t> g_second_differentiations{0};

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0
                               : torch::autograd::impl::version_counter(tensor).current_version();
}

// A gradient becomes its leaf's own: who changes one in place must not change another.
void separate(variable_list& gradients) {
  std::unordered_set<const c10::StorageImpl*> seen;
  seen.reserve(gradients.size());
  for (at::Tensor& gradient : gradients)
    if (gradient.defined() && gradient.has_storage() &&
        !seen.insert(gradient.storage().unsafeGetStorageImpl()).second)
      gradient = gradient.clone();
}

}  // namespace

std::uint64_t second_differentiations() {
  return g_second_differentiations.load(std::memory_order_relaxed);
}

JointNode::JointNode(std::shared_ptr<CutProgram> program, std::shared_ptr<const SizeRecord> sizes,
                     std::span<const at::Tensor> arguments)
    : program_(std::move(program)), sizes_(std::move(sizes)) {
  saved_.reserve(program_->signature.saved.size());
  arguments_.reserve(arguments.size());
  for (const at::Tensor& argument : arguments) {
    arguments_.emplace_back(argument.getIntrusivePtr());
    versions_.push_back(version_of(argument));
  }
}

void JointNode::release_variables() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (torch::autograd::SavedVariable& saved : saved_) saved.reset_data();
}

void JointNode::will_release_variables() {
  const std::lock_guard<std::mutex> lock(mutex_);
  releases_ = true;
}

variable_list JointNode::apply(variable_list&& tangents) {
  std::vector<at::Tensor> inputs;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    inputs.reserve(saved_.size() + tangents.size());
    for (torch::autograd::SavedVariable& saved : saved_) {
      inputs.push_back(saved.unpack(getptr()));
      if (releases_) saved.reset_data();
    }
  }
  for (std::size_t i = 0; i < tangents.size(); ++i)
    if (!tangents[i].defined()) tangents[i] = input_metadata(i).zeros_like();
  if (at::GradMode::is_enabled()) return differentiate_again(tangents);
  for (at::Tensor& tangent : tangents) inputs.push_back(std::move(tangent));

  Result<std::vector<at::Tensor>> run = program_->backward(std::move(inputs), *sizes_);
  if (!run.ok())
    bridge::raise_error("BP-0108",
                        run.take_status().with_context("the backward of a compiled graph"));
  variable_list gradients(num_outputs());
  for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] = std::move((*run)[i]);
  separate(gradients);
  return gradients;
}

variable_list JointNode::differentiate_again(const variable_list& tangents) const {
  constexpr const char* kWho = "backplane: gradients of gradients run the program again by PyTorch";
  const Signature& signature = program_->signature;
  TORCH_CHECK(signature.is_repeatable, kWho,
              ", but this one draws random numbers or writes its arguments, so a second run would "
              "differ. Take the gradient of gradients outside of the compiled region.");
  std::vector<at::Tensor> arguments;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    at::Tensor argument(arguments_[i].lock());
    TORCH_CHECK(argument.defined(), kWho, ", but argument ", i,
                " is gone. Keep it alive until backward with create_graph=True has run.");
    TORCH_CHECK(version_of(argument) == versions_[i], kWho, ", but argument ", i,
                " was modified by an inplace operation since (it is at version ",
                version_of(argument), "; expected version ", versions_[i], " instead).");
    arguments.push_back(std::move(argument));
  }
  g_second_differentiations.fetch_add(1, std::memory_order_relaxed);
  const std::vector<c10::IValue> results = program_->run_eagerly(arguments);
  variable_list outputs, inputs;
  for (std::size_t i = 0; i < results.size(); ++i)
    if (sizes_->outputs[i].tangent != kAbsent) outputs.push_back(results[i].toTensor());
  for (const std::uint32_t input : signature.gradients)
    inputs.push_back(arguments[signature.argument_of_input[input]]);
  return torch::autograd::grad(outputs, inputs, tangents, /*retain_graph=*/true,
                               /*create_graph=*/true, /*allow_unused=*/true);
}

}  // namespace backplane::autograd
