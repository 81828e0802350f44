#include "core/torch/autograd/joint_node.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <mutex>
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

constexpr const char* kWho =
    "backplane: gradients of gradients, and of a batch of tangents (vmap), run the program again "
    "by "
    "PyTorch";

// Of a transformation such as vmap: it has no memory, and only PyTorch's own operators know it.
bool is_transformed(const at::Tensor& tensor) {
  static constexpr c10::DispatchKeySet kKeys{
      c10::DispatchKey::Batched, c10::DispatchKey::FuncTorchBatched,
      c10::DispatchKey::BatchedNestedTensor, c10::DispatchKey::FuncTorchGradWrapper};
  return tensor.defined() && tensor.key_set().has_any(kKeys);
}

// While one lives, the CPU's generator gives what it gave from `state` on; undefined: nothing.
class DrawAgain {
 public:
  explicit DrawAgain(const at::Tensor& state) {
    if (!state.defined()) return;
    before_ = generator_state();
    set(state);
  }
  ~DrawAgain() {
    if (before_.defined()) set(before_);
  }
  DrawAgain(const DrawAgain&) = delete;
  DrawAgain& operator=(const DrawAgain&) = delete;

 private:
  static void set(const at::Tensor& state) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
  }

  at::Tensor before_;
};

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

at::Tensor generator_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

std::uint64_t second_differentiations() {
  return g_second_differentiations.load(std::memory_order_relaxed);
}

JointNode::JointNode(std::shared_ptr<CutProgram> program, std::shared_ptr<const SizeRecord> sizes,
                     std::span<const at::Tensor> arguments, at::Tensor generator)
    : program_(std::move(program)), sizes_(std::move(sizes)), generator_(std::move(generator)) {
  saved_.reserve(program_->signature.saved.size());
  arguments_.reserve(arguments.size());
  for (const at::Tensor& argument : arguments) {
    arguments_.emplace_back(argument.getIntrusivePtr());
    versions_.push_back(version_of(argument));
  }
  const Signature& signature = program_->signature;
  for (std::uint32_t i = 0; i < signature.needs_content.size(); ++i)
    if (signature.needs_content[i] && !std::ranges::binary_search(signature.mutated, i))
      held_.push_back(arguments[signature.argument_of_input[i]]);
}

void JointNode::watch(const at::Tensor& value) {
  watched_.emplace_back(torch::autograd::impl::version_counter(value), version_of(value));
}

bool JointNode::check_watched(const variable_list& tangents) const {
  bool is_written = false;
  for (std::size_t i = 0; i < watched_.size(); ++i) {
    const auto& [counter, version] = watched_[i];
    if (!counter.enabled() || counter.current_version() == version) continue;
    const Watched& watched = program_->signature.watched[i];
    const auto is_defined = [&](std::uint32_t tangent) { return tangents[tangent].defined(); };
    TORCH_CHECK(
        std::ranges::none_of(watched.saved_for, is_defined),
        "one of the variables needed for gradient computation has been modified by an inplace "
        "operation: ",
        watched.is_argument ? "an argument that" : "a result of", " a compiled graph",
        watched.is_argument ? " writes" : "", " is at version ", counter.current_version(),
        "; expected version ", version, " instead.");
    is_written = is_written || std::ranges::any_of(watched.found_for, is_defined);
  }
  return is_written;
}

void JointNode::release_variables() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (std::size_t i = 0; i < saved_.size(); ++i)
    if (!is_left(i)) saved_[i].reset_data();
  if (left_.empty()) held_.clear();
}

// As in eager mode: a part of the graph that no backward has come to keeps what it has saved.
void JointNode::note_given(const variable_list& tangents, const std::vector<bool>& is_read) {
  was_given_.resize(tangents.size());
  for (std::size_t t = 0; t < tangents.size(); ++t)
    was_given_[t] = was_given_[t] || tangents[t].defined();
  if (std::ranges::find(was_given_, false) == was_given_.end()) {
    left_.clear();
    return;
  }
  if (left_.empty()) left_.assign(saved_.size(), true);
  for (std::size_t i = 0; i < saved_.size(); ++i) left_[i] = left_[i] && !is_read[i];
}

void JointNode::will_release_variables() {
  const std::lock_guard<std::mutex> lock(mutex_);
  releases_ = true;
}

variable_list JointNode::apply(variable_list&& tangents) {
  if (check_watched(tangents)) {
    variable_list gradients = differentiate_again(tangents);
    if (releases_) release_variables();
    return gradients;
  }
  std::vector<bool> is_given, absent;
  for (const at::Tensor& tangent : tangents) {
    is_given.push_back(tangent.defined());
    absent.push_back(!tangent.defined());
  }
  const bool is_whole = std::ranges::find(absent, true) == absent.end();
  const std::vector<bool> is_read =
      is_whole ? std::vector<bool>(saved_.size(), true) : program_->saved_read(absent);
  std::vector<at::Tensor> inputs;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (releases_) note_given(tangents, is_read);
    inputs.reserve(saved_.size() + tangents.size());
    for (std::size_t i = 0; i < saved_.size(); ++i) {
      inputs.push_back(is_read[i] ? saved_[i].unpack(getptr()) : at::Tensor());
      if (releases_ && !is_left(i)) saved_[i].reset_data();
    }
    if (releases_ && left_.empty()) held_.clear();
  }
  if (at::GradMode::is_enabled() || std::ranges::any_of(tangents, is_transformed))
    return differentiate_again(tangents);
  for (at::Tensor& tangent : tangents) inputs.push_back(std::move(tangent));

  Result<std::vector<at::Tensor>> run = program_->backward(std::move(inputs), *sizes_);
  if (!run.ok())
    bridge::raise_error("BP-0108",
                        run.take_status().with_context("the backward of a compiled graph"));
  variable_list gradients(num_outputs());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const std::vector<std::uint32_t>& needed = program_->signature.tangents_of_gradient[i];
    // As in eager mode: of outputs that nobody differentiates comes no gradient, not zeros.
    if (needed.empty() || std::ranges::any_of(needed, [&](std::uint32_t t) { return is_given[t]; }))
      gradients[i] = std::move((*run)[i]);
  }
  separate(gradients);
  return gradients;
}

std::vector<at::Tensor> JointNode::inputs_again() const {
  const Signature& signature = program_->signature;
  std::vector<at::Tensor> inputs;
  for (std::size_t i = 0; i < signature.argument_of_input.size(); ++i) {
    const std::uint32_t a = signature.argument_of_input[i];
    at::Tensor argument(arguments_[a].lock());
    const bool is_needed = i >= signature.needs_content.size() || signature.needs_content[i];
    TORCH_CHECK(argument.defined() || !is_needed, kWho, ", but argument ", a,
                " is gone. Keep it alive until that backward has run.");
    TORCH_CHECK(!is_needed || version_of(argument) == versions_[a], kWho, ", but argument ", a,
                " was modified by an inplace operation since (it is at version ",
                argument.defined() ? version_of(argument) : 0, "; expected version ", versions_[a],
                " instead).");
    if (!argument.defined()) argument = sizes_->program->stand_in(i);
    // One tensor may be two arguments, and each has its gradient.
    if (argument.requires_grad()) argument = argument.view_as(argument);
    inputs.push_back(std::move(argument));
  }
  return inputs;
}

variable_list JointNode::outputs_again(const std::vector<at::Tensor>& inputs) const {
  const Signature& signature = program_->signature;
  std::vector<at::Tensor> given = inputs;
  for (const std::uint32_t input : signature.mutated) given[input] = given[input].clone();
  Result<std::vector<at::Tensor>> ran = sizes_->program->run(given);
  variable_list outputs;
  if (ran.ok()) {
    for (std::size_t i = 0; i < ran->size(); ++i)
      if (sizes_->outputs[i].tangent != kAbsent) outputs.push_back((*ran)[i]);
    for (const std::uint32_t input : signature.mutated)
      if (signature.arguments[signature.argument_of_input[input]].tangent != kAbsent)
        outputs.push_back(given[input]);
    return outputs;
  }
  // Python knows histories that operators alone do not tell.
  TORCH_CHECK(signature.is_repeatable, kWho,
              ", which is not possible here: ", ran.status().message());
  std::vector<at::Tensor> arguments(arguments_.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::uint32_t input = signature.arguments[i].graph_input;
    arguments[i] = inputs[input];
  }
  const std::vector<c10::IValue> results = program_->run_eagerly(arguments);
  const std::vector<record::OutputInfo>& infos = sizes_->outputs;
  for (std::size_t i = 0; i < infos.size(); ++i) {
    if (infos[i].tangent == kAbsent) continue;
    if (!infos[i].is_hidden) {
      outputs.push_back(results[i].toTensor());
      continue;
    }
    const auto part = std::ranges::find_if(infos, [&](const record::OutputInfo& info) {
      return info.kind == record::OutputKind::kViewOfOutput && info.base == i && !info.is_detached;
    });
    outputs.emplace_back(
        results[static_cast<std::size_t>(part - infos.begin())].toTensor()._base());
  }
  return outputs;
}

variable_list JointNode::differentiate_again(const variable_list& tangents) const {
  TORCH_CHECK(!program_->signature.draws_on_device && sizes_->program, kWho,
              ", but this one draws random numbers on a device, so a second run would differ. Take "
              "the gradient of gradients outside of the compiled region.");
  const bool create_graph = at::GradMode::is_enabled();
  const at::AutoGradMode with_history(true);
  const std::vector<at::Tensor> inputs = inputs_again();
  g_second_differentiations.fetch_add(1, std::memory_order_relaxed);
  const variable_list outputs = [&] {
    const DrawAgain draw_again(generator_);
    // The vmap of is_grads_batched, which refuses draws, is one of the tangents alone.
    const c10::impl::ExcludeDispatchKeyGuard outside(c10::DispatchKey::VmapMode);
    return outputs_again(inputs);
  }();
  variable_list wanted, differentiated, given;
  for (const std::uint32_t input : program_->signature.gradients) wanted.push_back(inputs[input]);
  for (std::size_t i = 0; i < tangents.size(); ++i) {
    if (!tangents[i].defined()) continue;
    differentiated.push_back(outputs[i]);
    given.push_back(tangents[i]);
  }
  return torch::autograd::grad(differentiated, wanted, given, /*retain_graph=*/true, create_graph,
                               /*allow_unused=*/true);
}

}  // namespace backplane::autograd
