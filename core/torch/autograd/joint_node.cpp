#include "core/torch/autograd/joint_node.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "core/torch/autograd/free_strides.h"
#include "core/torch/bridge/errors.h"
#include "core/torch/bridge/generator_state.h"
#include "core/torch/bridge/spared_hooks.h"

namespace backplane::autograd {

namespace {

using torch::autograd::variable_list;

std::atomic<std::uint64_t> g_second_differentiations{0};

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0
                               : torch::autograd::impl::version_counter(tensor).current_version();
}

constexpr const char* kWho =
    "backplane: gradients of gradients, between results, of a batch of tangents (vmap), and of a "
    "program of the parent in a child of fork(), run the program again by PyTorch";

// Sparse, or of a transformation such as vmap, which has no memory: only PyTorch's own operators
// know it.
bool is_for_pytorch(const at::Tensor& tensor) {
  static constexpr c10::DispatchKeySet kKeys{
      c10::DispatchKey::Batched, c10::DispatchKey::FuncTorchBatched,
      c10::DispatchKey::BatchedNestedTensor, c10::DispatchKey::FuncTorchGradWrapper};
  return tensor.defined() && (tensor.layout() != at::kStrided || tensor.key_set().has_any(kKeys));
}

// While one lives, the CPU's generator gives what it gave from `state` on; undefined: nothing.
class DrawAgain {
 public:
  explicit DrawAgain(const at::Tensor& state) {
    if (!state.defined()) return;
    before_ = generator_state();
    set_generator_state(state);
  }
  ~DrawAgain() {
    if (before_.defined()) set_generator_state(before_);
  }
  DrawAgain(const DrawAgain&) = delete;
  DrawAgain& operator=(const DrawAgain&) = delete;

 private:
  at::Tensor before_;
};

// While it lives, a backward gives tensors that it comes by what it is told to, not what has
// arrived there.
class Cuts {
 public:
  Cuts() = default;
  ~Cuts() {
    for (const std::shared_ptr<Cut>& cut : cuts_) cut->is_over = true;
  }
  Cuts(const Cuts&) = delete;
  Cuts& operator=(const Cuts&) = delete;

  // Undefined: nothing goes on from there.
  void add(const at::Tensor& at, at::Tensor instead) {
    cuts_.push_back(std::make_shared<Cut>(
        Cut{static_cast<std::size_t>(at.output_nr()), std::move(instead), {}, false}));
    if (at.grad_fn()) at.grad_fn()->add_tensor_pre_hook(std::make_unique<Hook>(cuts_.back()));
  }

  // In the order of `add`; undefined where nothing has.
  variable_list arrived() const {
    variable_list out;
    for (const std::shared_ptr<Cut>& cut : cuts_) out.push_back(cut->arrived);
    return out;
  }

 private:
  struct Cut {
    std::size_t input;
    at::Tensor instead, arrived;
    bool is_over;  // the node may live on, for a backward of what it gave
  };
  struct Hook final : torch::autograd::FunctionPreHook {
    explicit Hook(std::shared_ptr<Cut> shared) : cut(std::move(shared)) {}
    variable_list operator()(const variable_list& gradients) override {
      variable_list out = gradients;
      if (cut->is_over) return out;
      cut->arrived = std::exchange(out[cut->input], cut->instead);
      return out;
    }
    std::shared_ptr<Cut> cut;
  };

  std::vector<std::shared_ptr<Cut>> cuts_;
};

// A gradient becomes its leaf's own: who changes one in place must not change another. Nobody does
// where several indices show one element, as in the tangent of a sum.
void separate(variable_list& gradients) {
  std::unordered_set<const c10::StorageImpl*> seen;
  seen.reserve(gradients.size());
  for (at::Tensor& gradient : gradients)
    if (gradient.defined() && gradient.has_storage() &&
        at::has_internal_overlap(gradient) != at::MemOverlap::Yes &&
        !seen.insert(gradient.storage().unsafeGetStorageImpl()).second)
      gradient = gradient.clone();
}

}  // namespace

at::Tensor generator_state() { return bridge::state_of(at::detail::getDefaultCPUGenerator()); }

void set_generator_state(const at::Tensor& state) {
  bridge::set_state(at::detail::getDefaultCPUGenerator(), state);
}

std::uint64_t second_differentiations() {
  return g_second_differentiations.load(std::memory_order_relaxed);
}

at::Tensor Joint::Argument::lock() const {
  if (!accumulator) return at::Tensor(tensor.lock());
  return dynamic_cast<const torch::autograd::AccumulateGrad&>(*accumulator).variable;
}

void Joint::lead_to(std::uint32_t argument, NodePointer accumulator) {
  if (!dynamic_cast<const torch::autograd::AccumulateGrad*>(accumulator.get())) return;
  arguments_[argument].tensor.reset();
  arguments_[argument].accumulator = std::move(accumulator);
}

Joint::Joint(std::shared_ptr<CutProgram> program, std::shared_ptr<const SizeRecord> sizes,
             std::span<const at::Tensor> arguments, at::Tensor generator)
    : program_(std::move(program)), sizes_(std::move(sizes)), generator_(std::move(generator)) {
  saved_.reserve(program_->signature.saved.size());
  arguments_.reserve(arguments.size());
  for (const at::Tensor& argument : arguments)
    arguments_.push_back(
        {decltype(Argument::tensor)(argument.getIntrusivePtr()), nullptr, version_of(argument)});
  const Signature& signature = program_->signature;
  for (std::uint32_t i = 0; i < signature.needs_content.size(); ++i) {
    const at::Tensor& argument = arguments[signature.argument_of_input[i]];
    if (!signature.needs_content[i]) continue;
    if (!is_written(i)) {
      held_.push_back(argument);
      continue;
    }
    const at::Tensor before = [&] {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      return argument.clone();
    }();
    if (argument.requires_grad())
      torch::autograd::impl::set_gradient_edge(before,
                                               torch::autograd::impl::gradient_edge(argument));
    before_.emplace(i, before);
  }
}

bool Joint::is_written(std::uint32_t input) const {
  return std::ranges::find(program_->signature.mutated, input) != program_->signature.mutated.end();
}

void Joint::watch(const at::Tensor& value) {
  watched_.emplace_back(
      value.defined() ? torch::autograd::impl::version_counter(value) : c10::VariableVersion(),
      value.defined() ? version_of(value) : 0);
}

namespace {

// Whether a backward comes by it.
bool is_on_way(const record::SavingNode& node, const passes::Asked& asked) {
  const auto any_but = [](const std::vector<bool>& flags, const std::vector<bool>& without) {
    for (std::size_t i = 0; i < flags.size(); ++i)
      if (flags[i] && !without[i]) return true;
    return false;
  };
  return any_but(node.tangents, asked.absent) && any_but(node.gradients, asked.unwanted);
}

}  // namespace

bool Joint::check_watched(const passes::Asked& asked) const {
  TORCH_CHECK(!is_abandoned_,
              "backplane: a hook of saved tensors has raised while this graph was saved.");
  const Signature& signature = program_->signature;
  bool is_written = false;
  for (std::size_t i = 0; i < watched_.size(); ++i) {
    const auto& [counter, version] = watched_[i];
    if (!counter.enabled() || counter.current_version() == version) continue;
    const Watched& watched = signature.watched[i];
    const auto is_given = [&](std::uint32_t tangent) { return !asked.absent[tangent]; };
    const bool is_saved =
        std::ranges::any_of(watched.saved_for, is_given) &&
        (watched.saved_by.empty() || std::ranges::any_of(watched.saved_by, [&](std::uint32_t n) {
           return is_on_way(signature.saving_nodes[n], asked);
         }));
    TORCH_CHECK(
        !is_saved,
        "one of the variables needed for gradient computation has been modified by an inplace "
        "operation: ",
        watched.is_argument ? "an argument" : "a result", " of a compiled graph is at version ",
        counter.current_version(), "; expected version ", version, " instead.");
    is_written = is_written || std::ranges::any_of(watched.found_for, is_given);
  }
  return is_written;
}

// A hook that keeps numbers as another type need not expect a mask, which eager mode does not save.
at::Tensor Joint::unpack(std::size_t saved) const {
  at::Tensor value = saved_[saved].unpack();
  const c10::ScalarType dtype = program_->signature.saved[saved].dtype;
  return value.defined() && value.scalar_type() != dtype ? value.to(dtype) : value;
}

std::vector<bool> Joint::saved_read(const passes::Asked& asked) const {
  if (asked.is_whole()) return std::vector<bool>(program_->signature.saved.size(), true);
  return program_->saved_read(asked);
}

std::vector<bool> Joint::saved_left() const {
  const Signature& signature = program_->signature;
  std::vector<bool> left(signature.saved.size(), false);
  for (std::size_t t = 0; t < signature.tangent_count; ++t) {
    passes::Asked asked{std::vector<bool>(signature.tangent_count, true),
                        std::vector<bool>(signature.gradients.size(), false)};
    asked.absent[t] = false;
    for (std::size_t n = 0; n < signature.saving_nodes.size(); ++n) {
      const record::SavingNode& node = signature.saving_nodes[n];
      if (!is_released(n) || !node.tangents[t]) continue;
      for (std::size_t g = 0; g < node.gradients.size(); ++g)
        if (node.gradients[g]) asked.unwanted[g] = true;
    }
    if (std::ranges::find(asked.unwanted, false) == asked.unwanted.end()) continue;
    const std::vector<bool> is_read = saved_read(asked);
    for (std::size_t i = 0; i < left.size(); ++i) left[i] = left[i] || is_read[i];
  }
  return left;
}

// As in eager mode: what no backward has come by keeps what it has saved, also where something else
// has saved the same.
void Joint::note_released(const passes::Asked& asked) {
  if (is_spent_) return;
  if (asked.is_whole()) {
    is_spent_ = true;
    return;
  }
  const std::vector<record::SavingNode>& nodes = program_->signature.saving_nodes;
  released_.resize(nodes.size());
  for (std::size_t n = 0; n < nodes.size(); ++n)
    released_[n] = released_[n] || is_on_way(nodes[n], asked);
  is_left_ = saved_left();
}

void Joint::refuse_twice(const passes::Asked& asked) const {
  if (!is_spent_ && released_.empty()) return;
  const std::vector<record::SavingNode>& nodes = program_->signature.saving_nodes;
  for (std::size_t n = 0; n < nodes.size(); ++n)
    TORCH_CHECK(!is_released(n) || !is_on_way(nodes[n], asked),
                torch::autograd::ERR_BACKWARD_TWICE);
}

void Joint::want_all_if_cheaper(passes::Asked& asked, std::vector<bool>& is_read) const {
  if (std::ranges::find(asked.unwanted, true) == asked.unwanted.end() ||
      !program_->has_many_parts(asked))
    return;
  const passes::Asked all{asked.absent, std::vector<bool>(asked.unwanted.size(), false)};
  std::vector<bool> read_for_all = saved_read(all);
  for (std::size_t i = 0; i < read_for_all.size(); ++i)
    if (read_for_all[i] && !is_left(i)) return;
  asked = all;
  is_read = std::move(read_for_all);
}

void Joint::release_read() {
  if (!is_spent_ && is_left_.empty()) return;
  for (std::size_t i = 0; i < saved_.size(); ++i)
    if (!is_left(i)) saved_[i].reset_data();
  if (!is_spent_ && std::ranges::find(is_left_, true) != is_left_.end()) return;
  held_.clear();
  before_.clear();
}

void Joint::release() {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  release_read();
}

std::vector<record::GradientSource> Joint::take_apart(std::uint32_t node) {
  std::vector<record::GradientSource> taken;
  if (apart_.empty()) return taken;
  const int backward = torch::autograd::get_current_graph_task_id();
  std::erase_if(apart_, [&](const Apart& one) {
    if (one.backward != backward || one.node != node) return false;
    if (std::ranges::find(taken, one.result) == taken.end()) taken.push_back(one.result);
    return true;
  });
  return taken;
}

variable_list Joint::run(variable_list&& tangents, std::vector<bool> unwanted, std::uint32_t node,
                         bool releases) {
  passes::Asked asked{{}, std::move(unwanted)};
  for (const at::Tensor& tangent : tangents) asked.absent.push_back(!tangent.defined());
  std::vector<record::GradientSource> apart;
  std::vector<at::Tensor> inputs;
  bool runs_again = false;
  {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    apart = take_apart(node);
    refuse_twice(asked);
    const bool was_written = check_watched(asked);
    runs_again = was_written || !apart.empty() || at::GradMode::is_enabled() ||
                 std::ranges::any_of(tangents, is_for_pytorch) || program_->is_of_parent();
    std::vector<bool> is_read = saved_read(asked);
    const passes::Asked released = asked;
    want_all_if_cheaper(asked, is_read);
    if (releases) note_released(released);
    inputs.reserve(saved_.size() + tangents.size());
    for (std::size_t i = 0; i < saved_.size() && !was_written; ++i) {
      inputs.push_back(is_read[i] ? unpack(i) : at::Tensor());
      if (releases && !is_left(i)) saved_[i].reset_data();
    }
    if (releases && !runs_again) release_read();
  }
  if (runs_again) {
    variable_list gradients = differentiate_again(tangents, apart);
    if (releases) release();
    spare_hooks(gradients, node);
    return gradients;
  }
  // By name alone: they go with their last reader.
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> given_on;
  for (at::Tensor& tangent : tangents) {
    if (tangent.defined()) given_on.emplace_back(tangent.getIntrusivePtr());
    inputs.push_back(std::move(tangent));
  }

  Result<std::vector<at::Tensor>> run =
      program_->backward(std::move(inputs), asked.unwanted, *sizes_);
  if (!run.ok())
    bridge::raise_error("BP-0108",
                        run.take_status().with_context("the backward of a compiled graph"));
  variable_list gradients(program_->signature.gradients.size());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const std::vector<std::uint32_t>& needed = program_->signature.tangents_of_gradient[i];
    // As in eager mode: of outputs that nobody differentiates comes no gradient, not zeros.
    const auto given = [&](std::uint32_t t) { return !asked.absent[t]; };
    if (needed.empty() || std::ranges::any_of(needed, given)) gradients[i] = std::move((*run)[i]);
    // What was recorded is the sum over all of them. A tangent that is a gradient lies as it does.
    const auto is_gradient = [&](const auto& tangent) {
      return tangent._unsafe_get_target() == gradients[i].unsafeGetTensorImpl();
    };
    if (gradients[i].defined() && std::ranges::all_of(needed, given) &&
        std::ranges::none_of(given_on, is_gradient))
      gradients[i] = laid_as_recorded(std::move(gradients[i]), sizes_->gradient_strides[i]);
  }
  separate(gradients);
  spare_hooks(gradients, node);
  return gradients;
}

void Joint::spare_hooks(const variable_list& gradients, std::uint32_t node) const {
  const Signature& signature = program_->signature;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].defined() || signature.node_of_gradient[i] != node) continue;
    const Argument& argument = arguments_[signature.argument_of_input[signature.gradients[i]]];
    if (argument.accumulator) bridge::spare_hooks(argument.lock());
  }
}

std::vector<at::Tensor> Joint::inputs_again() const {
  const Signature& signature = program_->signature;
  std::vector<at::Tensor> inputs;
  for (std::size_t i = 0; i < signature.argument_of_input.size(); ++i) {
    const std::uint32_t a = signature.argument_of_input[i];
    at::Tensor argument = arguments_[a].lock();
    const bool is_needed = i >= signature.needs_content.size() || signature.needs_content[i];
    const bool writes = is_written(static_cast<std::uint32_t>(i));
    if (writes) argument = before_writes(static_cast<std::uint32_t>(i));
    TORCH_CHECK(argument.defined() || !is_needed, kWho, ", but argument ", a,
                " is gone. Keep it alive until that backward has run.");
    TORCH_CHECK(writes || !is_needed || version_of(argument) == arguments_[a].version, kWho,
                ", but argument ", a,
                " was modified by an inplace operation since (it is at version ",
                argument.defined() ? version_of(argument) : 0, "; expected version ",
                arguments_[a].version, " instead).");
    if (!argument.defined()) argument = sizes_->program->stand_in(i);
    // One tensor may be two arguments, and each has its gradient. One that has asked for gradients
    // only since has none here.
    if (argument.requires_grad())
      argument = signature.arguments[a].requires_grad ? at::alias(argument) : argument.detach();
    inputs.push_back(std::move(argument));
  }
  return inputs;
}

at::Tensor Joint::before_writes(std::uint32_t input) const {
  if (const auto found = before_.find(input); found != before_.end()) return found->second;
  TORCH_CHECK(!program_->signature.needs_content[input], kWho,
              ", but the program writes what argument ",
              program_->signature.argument_of_input[input], " held.");
  return sizes_->program->stand_in(input);
}

void Joint::make_results_again(Rerun& again) const {
  const Signature& signature = program_->signature;
  const std::vector<record::OutputInfo>& infos = sizes_->outputs;
  std::vector<at::Tensor> given = again.inputs;
  for (const std::uint32_t input : signature.mutated) given[input] = given[input].clone();
  Result<std::vector<at::Tensor>> ran = sizes_->program->run(given);
  if (ran.ok()) {
    again.results = std::move(*ran);
  } else {
    // Python knows histories that operators alone do not tell.
    TORCH_CHECK(signature.is_repeatable, kWho,
                ", which is not possible here: ", ran.status().message());
    std::vector<at::Tensor> arguments(arguments_.size());
    for (std::size_t i = 0; i < arguments.size(); ++i)
      arguments[i] = given[signature.arguments[i].graph_input];
    for (const c10::IValue& result : program_->run_eagerly(arguments))
      again.results.push_back(result.isTensor() ? result.toTensor() : at::Tensor());
    again.results.resize(infos.size());
    for (std::size_t i = 0; i < infos.size(); ++i) {
      if (!infos[i].is_hidden) continue;
      const auto part = std::ranges::find_if(infos, [&](const record::OutputInfo& info) {
        return info.kind == record::OutputKind::kViewOfOutput && info.base == i &&
               !info.is_detached;
      });
      again.results[i] = again.results[static_cast<std::size_t>(part - infos.begin())]._base();
    }
  }
  for (std::size_t i = 0; i < infos.size(); ++i)
    if (infos[i].tangent != kAbsent) again.differentiated.push_back(again.results[i]);
  for (const std::uint32_t input : signature.mutated)
    if (signature.arguments[signature.argument_of_input[input]].tangent != kAbsent)
      again.differentiated.push_back(given[input]);
}

Joint::Rerun Joint::run_again() const {
  TORCH_CHECK(!program_->signature.draws_on_device && sizes_->program, kWho,
              ", but this one draws random numbers on a device, so a second run would differ. Take "
              "the gradient of gradients outside of the compiled region.");
  const at::AutoGradMode with_history(true);
  g_second_differentiations.fetch_add(1, std::memory_order_relaxed);
  // A transformation around this backward is one of the tangents alone, not of what the program was
  // given.
  static constexpr c10::DispatchKeySet kTransformations{
      c10::DispatchKey::VmapMode, c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
      c10::DispatchKey::FuncTorchDynamicLayerBackMode};
  const c10::impl::ExcludeDispatchKeyGuard outside(kTransformations);
  Rerun again;
  again.inputs = inputs_again();
  const DrawAgain draw_again(generator_);
  make_results_again(again);
  return again;
}

variable_list Joint::differentiate_again(const variable_list& tangents,
                                         std::span<const record::GradientSource> apart) const {
  if (program_->signature.gradients.empty()) return {};
  const bool create_graph = at::GradMode::is_enabled();
  const Rerun again = run_again();
  Cuts cuts;
  for (const record::GradientSource& result : apart)
    cuts.add(again.source(result), result.is_view ? at::Tensor() : tangents[result.position]);
  const at::AutoGradMode with_history(true);
  variable_list wanted, differentiated, given;
  for (const std::uint32_t input : program_->signature.gradients)
    wanted.push_back(again.inputs[input]);
  for (std::size_t i = 0; i < tangents.size(); ++i) {
    if (!tangents[i].defined()) continue;
    differentiated.push_back(again.differentiated[i]);
    given.push_back(tangents[i]);
  }
  return torch::autograd::grad(differentiated, wanted, given, /*retain_graph=*/true, create_graph,
                               /*allow_unused=*/true);
}

variable_list Joint::differentiate_results(std::uint32_t tangent, const at::Tensor& given,
                                           std::span<const record::GradientSource> results) {
  {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    passes::Asked asked{std::vector<bool>(program_->signature.tangent_count, true),
                        std::vector<bool>(program_->signature.gradients.size(), false)};
    asked.absent[tangent] = false;
    check_watched(asked);
    const std::uint32_t node = program_->signature.node_of_tangent[tangent];
    for (const record::GradientSource& result : results)
      apart_.push_back({torch::autograd::get_current_graph_task_id(), node, result});
  }
  const bool create_graph = at::GradMode::is_enabled();
  const Rerun again = run_again();
  Cuts cuts;
  variable_list wanted;
  for (const record::GradientSource& result : results) {
    wanted.push_back(again.source(result));
    cuts.add(again.source(result), {});
  }
  const at::AutoGradMode with_history(true);
  torch::autograd::grad({again.differentiated[tangent]}, wanted, {given}, /*retain_graph=*/true,
                        create_graph, /*allow_unused=*/true);
  return cuts.arrived();
}

namespace {

std::vector<std::uint32_t> those_of(std::uint32_t number, std::span<const std::uint32_t> nodes) {
  std::vector<std::uint32_t> positions;
  for (std::uint32_t i = 0; i < nodes.size(); ++i)
    if (nodes[i] == number) positions.push_back(i);
  return positions;
}

}  // namespace

JointNode::JointNode(std::shared_ptr<Joint> joint, std::uint32_t number)
    : joint_(std::move(joint)), number_(number) {
  const Signature& signature = joint_->signature();
  if (signature.node_count == 1) return;
  tangents_ = those_of(number, signature.node_of_tangent);
  gradients_ = those_of(number, signature.node_of_gradient);
}

std::vector<bool> JointNode::unwanted_gradients() const {
  std::vector<bool> unwanted(joint_->signature().gradients.size(), false);
  const auto* running = torch::autograd::get_current_graph_task_exec_info();
  if (running == nullptr || running->empty()) return unwanted;  // all are
  for (std::size_t i = 0; i < num_outputs(); ++i)
    unwanted[gradients_.empty() ? i : gradients_[i]] = !task_should_compute_output(i);
  return unwanted;
}

variable_list JointNode::apply(variable_list&& tangents) {
  const bool releases = releases_.exchange(false);
  std::vector<bool> unwanted = unwanted_gradients();
  if (joint_->signature().node_count == 1)
    return joint_->run(std::move(tangents), std::move(unwanted), number_, releases);
  variable_list all(joint_->signature().tangent_count);
  for (std::size_t i = 0; i < tangents_.size(); ++i) all[tangents_[i]] = std::move(tangents[i]);
  variable_list every = joint_->run(std::move(all), std::move(unwanted), number_, releases);
  variable_list own;
  own.reserve(gradients_.size());
  for (const std::uint32_t gradient : gradients_) own.push_back(std::move(every[gradient]));
  return own;
}

}  // namespace backplane::autograd
