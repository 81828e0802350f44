#include "core/torch/record/recorder.h"

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "core/torch/bridge/history.h"
#include "core/torch/bridge/shared_memory.h"
#include "core/torch/bridge/tangent.h"
#include "core/torch/bridge/writable.h"
#include "core/torch/record/dead_calls.h"
#include "core/torch/record/dispatch.h"
#include "core/torch/record/fallback.h"
#include "core/torch/record/handed.h"
#include "core/torch/record/lower.h"
#include "core/torch/record/outputs.h"
#include "core/torch/record/saving_nodes.h"
#include "core/torch/record/session.h"

namespace backplane::record {

namespace {

namespace functional = at::functionalization::impl;

// Stands where an argument's own history would: makes it a tensor that may be written in place.
class EdgeOfProgram final : public torch::autograd::Node {
 public:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return std::move(gradients);
  }
};

// Nodes are held by one pointer type up to torch 2.12 and by another from 2.13 on.
template <class Pointer>
Pointer make_edge() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>)
    return std::make_shared<EdgeOfProgram>();
  else
    return c10::make_intrusive<EdgeOfProgram>();
}

// Its check of each gradient would ask for values.
class WithoutAnomalyMode {
 public:
  WithoutAnomalyMode() { Mode::set_enabled(false, checks_nan_); }
  ~WithoutAnomalyMode() { Mode::set_enabled(was_enabled_, checks_nan_); }
  WithoutAnomalyMode(const WithoutAnomalyMode&) = delete;
  WithoutAnomalyMode& operator=(const WithoutAnomalyMode&) = delete;

 private:
  using Mode = torch::autograd::AnomalyMode;
  const bool was_enabled_ = Mode::is_enabled(), checks_nan_ = Mode::should_check_nan();
};

// The caller's hooks for saved tensors are for memory, not for what has none. Those that the
// program sets itself (checkpoint does) stay in force.
class WithoutSavedTensorHooks {
 public:
  WithoutSavedTensorHooks() { at::SavedTensorDefaultHooks::set_tls_state({}); }
  ~WithoutSavedTensorHooks() { at::SavedTensorDefaultHooks::set_tls_state(state_); }
  WithoutSavedTensorHooks(const WithoutSavedTensorHooks&) = delete;
  WithoutSavedTensorHooks& operator=(const WithoutSavedTensorHooks&) = delete;

 private:
  const at::impl::SavedTensorDefaultHooksTLS state_ = at::SavedTensorDefaultHooks::get_tls_state();
};

// Autograd's engine gives each device a thread, which knows nothing of the caller's dispatch keys.
class InThisThread {
 public:
  InThisThread() { state().set_multithreading_enabled(false); }
  ~InThisThread() { state().set_multithreading_enabled(was_enabled_); }
  InThisThread(const InThisThread&) = delete;
  InThisThread& operator=(const InThisThread&) = delete;

 private:
  static c10::AutogradState& state() { return c10::AutogradState::get_tls_state(); }
  const bool was_enabled_ = state().get_multithreading_enabled();
};

Status check_environment() {
  if (Session::current()) return unsupported("a recording inside of another");
  if (c10::impl::TorchDispatchModeTLS::any_modes_set())
    return unsupported("a TorchDispatchMode is active");
  const c10::DispatchKeySet included = c10::impl::tls_local_dispatch_key_set().included_;
  if (included.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode))
    return unsupported("a functorch transform is active");
  if (included.has(c10::DispatchKey::Functionalize))
    return unsupported("functionalization is switched on");
  // Its results have no history, and the program may ask for the mode.
  if (c10::InferenceMode::is_enabled() && at::GradMode::is_enabled())
    return Status(Code::kEagerOnly, "gradients are switched on in inference mode");
  return {};
}

Status check_argument(const at::Tensor& tensor, std::size_t index) {
  const auto refuse = [&](const std::string& what) {
    return unsupported(argument_text(index) + " is " + what);
  };
  if (!tensor.defined()) return refuse("no tensor");
  if (tensor.layout() != at::kStrided) return refuse("sparse or opaque");
  if (tensor.is_quantized()) return refuse("quantized");
  if (tensor.is_nested()) return refuse("nested");
  if (tensor.is_conj() || tensor.is_neg()) return refuse("pending conjugation or negation");
  if (functional::isFunctionalTensor(tensor)) return refuse("being functionalized already");
  if (tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides())
    return refuse("of symbolic shape");
  if (tensor.is_meta()) return refuse("on the meta device");
  if (tensor.key_set().has_any(
          c10::DispatchKeySet({c10::DispatchKey::Batched, c10::DispatchKey::FuncTorchBatched})))
    return refuse("batched by vmap");
  if (tensor._is_zerotensor()) return refuse("a tensor of zeros without memory");
  if (bridge::has_tangent(*tensor.unsafeGetTensorImpl()))
    return refuse("a dual tensor of forward-mode AD");
  return {};
}

// ATen's errors carry a stack trace of its own C++.
std::string reason_of(const std::exception& error) {
  if (const auto* known = dynamic_cast<const c10::Error*>(&error))
    return known->what_without_backtrace();
  // A Python error brings its stack along.
  const std::string text = error.what();
  return text.substr(0, text.find("\n\nAt:\n"));
}

std::int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

class Recording {
 public:
  Recording(const Program& program, std::span<const at::Tensor> arguments,
            const RecordOptions& options)
      : program_(program),
        arguments_(arguments.begin(), arguments.end()),
        options_(options),
        session_(std::make_shared<Session>()) {}

  Result<Recorded> run() {
    session_->locate = options_.locate;
    if (options_.with_backward && had_grad_) session_->program = std::make_shared<ProgramTape>();
    {
      const c10::InferenceMode normal(false);  // what is handed may be written there
      for (std::size_t i = 0; i < arguments_.size(); ++i) (void)hand_argument(i);
    }
    session_->add_argument = [this](const at::Tensor& tensor) {
      if (Status status = check_argument(tensor, arguments_.size()); !status.ok())
        session_->refuse(status.message());
      arguments_.push_back(tensor);
      return hand_argument(arguments_.size() - 1);
    };
    {
      const c10::InferenceMode normal(false);
      const at::AutoGradMode grad(!in_inference_ && had_grad_);
      const WithoutAnomalyMode without_anomaly_mode;
      const WithoutSavedTensorHooks without_saved_tensor_hooks;
      const InThisThread in_this_thread;
      const SessionScope session(session_);
      const RecordingScope recording;
      std::vector<at::Tensor> given;
      for (const std::size_t handed : handed_of_) given.push_back(handed_[handed].given);
      results_ = program_(given);
      recorded_.grad_mode_after = at::GradMode::is_enabled();
      at::GradMode::set_enabled(!in_inference_ && had_grad_);
      if (Status status = finish_forward(); !status.ok()) return status;
      if (options_.with_backward) BP_RETURN_IF_ERROR(run_backward());
    }
    // A refusal that the program caught and went on from.
    if (Status status = refused(); !status.ok()) return status;
    return finish();
  }

  // Ok where nothing was refused.
  Status refused() const {
    if (session_->refusal().empty()) return {};
    return Status(session_->has_moved() ? Code::kEagerOnly : session_->refusal_code(),
                  session_->refusal());
  }

 private:
  at::Tensor hand_argument(std::size_t index) {
    const at::Tensor argument = arguments_[index];
    const auto [found, is_new] = seen_.emplace(argument.unsafeGetTensorImpl(), handed_.size());
    const bool merged = !is_new && options_.merge_equal_arguments;
    handed_of_.push_back(merged ? found->second : handed_.size());
    if (merged) return handed_[found->second].given;
    const at::Tensor value = session_->make_input(argument);
    Handed handed;
    handed.first_argument = index;
    handed.value = find_value(value)->number();
    handed.leaf = functional::to_functional_tensor(value);
    handed.given = handed.leaf;
    if (argument.requires_grad()) handed.leaf.set_requires_grad(true);
    if (argument.requires_grad() && !argument.is_leaf()) {
      handed.given = functional::to_functional_tensor(value);
      const auto edge = make_edge<decltype(torch::autograd::Edge::function)>();
      edge->set_next_edges(torch::autograd::collect_next_edges(handed.leaf));
      torch::autograd::set_history(handed.given, edge);
      handed.edge = edge.get();
    }
    handed.version = version_of(handed.given);
    handed.storage = storage_of(handed.given);
    if (session_->program) session_->program->add_input(argument, handed.given);
    handed_.push_back(std::move(handed));
    return handed_.back().given;
  }

  // Differentiated where a caller would: as a leaf, not as the result of autograd.
  bool has_new_history(const Handed& handed) const {
    return handed.given.requires_grad() && handed.given.grad_fn().get() != handed.edge;
  }

  // In what leads to results and to what the program writes. Where one gives what it is given, or a
  // view of it, the operators alone give a history as well: another one.
  bool has_own_function() const {
    std::vector<at::Tensor> differentiated;
    for (std::size_t i = 0; i < outputs_.size(); ++i) differentiated.push_back(outputs_.tensor(i));
    for (const Handed& handed : handed_)
      if (has_new_history(handed)) differentiated.push_back(handed.given);
    return bridge::has_own_function_behind(differentiated);
  }

  Status finish_forward() {
    session_->add_argument = nullptr;
    const std::shared_ptr<ProgramTape> program = std::move(session_->program);
    forward_call_count_ = session_->tape.calls.size();
    new_values_.resize(handed_.size(), kNoValue);
    for (std::size_t h = 0; h < handed_.size(); ++h) {
      const Handed& handed = handed_[h];
      const at::Tensor& argument = arguments_[handed.first_argument];
      const std::string who = argument_text(handed.first_argument);
      auto* wrapper = functional::unsafeGetFunctionalWrapper(handed.given);
      if (handed.given.sizes() != argument.sizes() ||
          (handed.given.strides() != argument.strides() && !session_->has_moved()) ||
          wrapper->has_metadata_mutation() || storage_of(handed.given) != handed.storage ||
          wrapper->was_inductor_storage_resized())
        return unsupported("the program changes the shape or storage of " + who);
      // PyTorch takes the flag from a leaf alone, and gives it to one.
      if (handed.given.is_leaf() && handed.given.requires_grad() != argument.requires_grad())
        return Status(Code::kEagerOnly, "the program changes requires_grad of " + who);
      // grad() would warn where the program has written it.
      if (handed.leaf.mutable_grad().defined())
        return unsupported("the program calls backward() and so writes the gradient of " + who);
      const ValueNumber now = value_of(*session_, handed.given, who);
      if (now != handed.value) new_values_[h] = now;
      if (now != handed.value && has_new_history(handed) &&
          !bridge::is_writable_by_autograd(argument))
        return Status(Code::kEagerOnly, "the program writes " + who + ", which autograd refuses");
      // What is computed from it afterwards leads, as a result of the same node, past its history.
      if (now != handed.value && has_new_history(handed) && bridge::is_gradient_awaited(argument))
        return Status(Code::kEagerOnly,
                      "the program writes " + who + ", whose gradient somebody waits for");
    }
    BP_RETURN_IF_ERROR(check_shared_memory());
    for (const c10::IValue& result : results_) {
      BP_RETURN_IF_ERROR(outputs_.add(result));
      const std::size_t last = outputs_.size() - 1;
      if (program) program->add_output(outputs_.tensor(last), outputs_.info(last).requires_grad);
    }
    BP_RETURN_IF_ERROR(outputs_.relate(program.get()));
    if (program && has_own_function())
      program->refuse("it has a function with a backward of its own");
    if (program) program->finish();
    recorded_.program = program;
    forward_call_count_ = session_->tape.calls.size();
    return {};
  }

  // Two arguments over the same memory are two values here; a write to one must show in the other.
  Status check_shared_memory() const {
    for (std::size_t a = 0; a < handed_.size(); ++a) {
      if (new_values_[a] == kNoValue) continue;
      const bridge::MemoryRange written =
          bridge::memory_range(arguments_[handed_[a].first_argument]);
      for (std::size_t b = 0; b < handed_.size(); ++b)
        if (a != b && written.overlaps(bridge::memory_range(arguments_[handed_[b].first_argument])))
          return unsupported("the program writes " + argument_text(handed_[a].first_argument) +
                             ", which shares memory with " +
                             argument_text(handed_[b].first_argument));
    }
    return {};
  }

  at::Tensor make_tangent(const at::Tensor& output, std::uint32_t& out_position) {
    const at::Tensor like =
        output.is_non_overlapping_and_dense()
            ? at::detail::empty_strided_meta(output.sizes(), output.strides(), output.scalar_type())
            : at::detail::empty_meta(output.sizes(), output.scalar_type());
    const ValueNumber value = session_->add_value(like, output.device(), ValueOrigin::kInput);
    out_position = static_cast<std::uint32_t>(handed_.size() + tangents_.size());
    tangents_.push_back(value);
    return functional::to_functional_tensor(session_->wrap(value));
  }

  // An argument that is written back after its views would have to be there.
  bool shows_written(const OutputInfo& info) const {
    return info.kind == OutputKind::kViewOfArgument &&
           new_values_[handed_of_[info.base]] != kNoValue;
  }

  // A backward runs later than the program, perhaps never, perhaps several times.
  Status check_written_in_backward() const {
    const auto is_written = [&](const at::Tensor& tensor, ValueNumber before) {
      return storage_of(tensor) && value_of(*session_, tensor, "the backward") != before;
    };
    for (std::size_t h = 0; h < handed_.size(); ++h)
      if (is_written(handed_[h].given,
                     new_values_[h] == kNoValue ? handed_[h].value : new_values_[h]))
        return Status(Code::kEagerOnly,
                      "the backward writes " + argument_text(handed_[h].first_argument));
    for (std::size_t i = 0; i < outputs_.size(); ++i)
      if (is_written(outputs_.tensor(i), outputs_.value(i)))
        return Status(Code::kEagerOnly, "the backward writes a result");
    return {};
  }

  Status run_backward() {
    std::vector<at::Tensor> outputs, tangents, inputs;
    std::vector<std::size_t> handed_of_input;
    const auto differentiate = [&](const at::Tensor& tensor, std::uint32_t& out_position) {
      outputs.push_back(tensor);
      tangents.push_back(make_tangent(tensor, out_position));
    };
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      OutputInfo& info = outputs_.info(i);
      // The caller's own autograd differentiates arguments, and views of them and of outputs.
      if (info.requires_grad && info.kind != OutputKind::kArgument &&
          info.kind != OutputKind::kViewOfArgument && info.kind != OutputKind::kViewOfOutput)
        differentiate(outputs_.tensor(i), info.tangent);
    }
    new_value_tangents_.resize(handed_.size(), kAbsent);
    gradients_.resize(handed_.size(), kNoValue);
    for (std::size_t h = 0; h < handed_.size(); ++h) {
      if (new_values_[h] != kNoValue && has_new_history(handed_[h]))
        differentiate(handed_[h].given, new_value_tangents_[h]);
      if (!handed_[h].leaf.requires_grad() || !handed_[h].leaf.is_leaf()) continue;
      inputs.push_back(handed_[h].leaf);
      handed_of_input.push_back(h);
    }
    if (outputs.empty() || inputs.empty()) {
      recorded_.program = nullptr;
      return {};
    }
    reached_by_.resize(handed_.size());
    recorded_.sources_of_tangent.resize(outputs.size());
    for (std::uint32_t tangent = 0; tangent < outputs.size(); ++tangent) {
      const torch::autograd::Node* const own = outputs[tangent].grad_fn().get();
      const bridge::Nodes behind = bridge::nodes_behind(own);
      for (std::size_t i = 0; i < inputs.size(); ++i)
        if (behind.contains(torch::autograd::impl::gradient_edge(inputs[i]).function.get()))
          reached_by_[handed_of_input[i]].push_back(tangent);
      const auto add_source = [&](bool is_view, std::uint32_t position, const at::Tensor& source) {
        if (const auto* node = source.grad_fn().get(); node != own && behind.contains(node))
          recorded_.sources_of_tangent[tangent].push_back({is_view, position});
      };
      for (std::uint32_t other = 0; other < outputs.size(); ++other)
        add_source(false, other, outputs[other]);
      for (std::uint32_t i = 0; i < outputs_.size(); ++i)
        if (outputs_.is_differentiated_view(i) && !shows_written(outputs_.info(i)))
          add_source(true, i, outputs_.tensor(i));
    }
    session_->in_backward = true;
    const std::size_t value_count = session_->tape.values.size();
    // Autograd comes by a leaf once all that comes to it is there.
    const auto turns = std::make_shared<std::vector<std::size_t>>();
    for (const std::size_t h : handed_of_input)
      handed_[h].leaf.register_hook([turns, h](const at::TensorBase&) { turns->push_back(h); });
    const std::vector<at::Tensor> gradients =
        torch::autograd::grad(outputs, inputs, tangents, std::nullopt, /*create_graph=*/false,
                              /*allow_unused=*/true);
    for (std::size_t i = 0; i < gradients.size(); ++i)
      if (gradients[i].defined())
        gradients_[handed_of_input[i]] = value_of(*session_, gradients[i], "a gradient");
    HistoryEnds ends;
    for (const at::Tensor& output : outputs) ends.outputs.push_back(output.grad_fn().get());
    ends.leaves.resize(handed_.size());
    for (std::size_t i = 0; i < inputs.size(); ++i)
      ends.leaves[handed_of_input[i]] =
          torch::autograd::impl::gradient_edge(inputs[i]).function.get();
    recorded_.saving_nodes = find_saving_nodes(session_->tape, value_count, tangents_, ends);
    for (std::size_t h = 0; h < handed_.size(); ++h) {
      const at::Tensor& argument = arguments_[handed_[h].first_argument];
      if (gradients_[h] != kNoValue && version_of(handed_[h].given) != handed_[h].version &&
          !has_new_history(handed_[h]) && bridge::is_renewed_by_writes(argument))
        return Status(Code::kEagerOnly, "the program writes " +
                                            argument_text(handed_[h].first_argument) +
                                            ", a view, whose history autograd makes anew");
    }
    turns_.resize(handed_.size());
    for (std::uint32_t turn = 0; turn < turns->size(); ++turn) turns_[(*turns)[turn]] = turn;
    return check_written_in_backward();
  }

  Result<Recorded> finish() {
    LowerOptions lowering;
    lowering.name = options_.name;
    lowering.forward_call_count = forward_call_count_;
    for (const Handed& handed : handed_) {
      const std::size_t i = handed.first_argument;
      lowering.inputs.push_back(handed.value);
      lowering.input_names.push_back(i < options_.argument_names.size()
                                         ? options_.argument_names[i]
                                         : "primals_" + std::to_string(i + 1));
    }
    for (const ValueNumber tangent : tangents_) {
      lowering.inputs.push_back(tangent);
      lowering.input_names.push_back("tangents_" +
                                     std::to_string(lowering.inputs.size() - handed_.size()));
    }
    const auto add_output = [&](ValueNumber value) {
      lowering.outputs.push_back(value);
      return static_cast<std::uint32_t>(lowering.outputs.size() - 1);
    };
    for (std::size_t i = 0; i < outputs_.size(); ++i)
      if (outputs_.value(i) != kNoValue)
        outputs_.info(i).graph_output = add_output(outputs_.value(i));
    recorded_.outputs = outputs_.take();
    std::vector<ArgumentInfo> infos(handed_.size());
    for (std::size_t h = 0; h < handed_.size(); ++h)
      if (new_values_[h] != kNoValue) infos[h].new_value = add_output(new_values_[h]);
    for (const ValueNumber unread :
         find_unread_checks(session_->tape, lowering.outputs, forward_call_count_))
      add_output(unread);
    recorded_.border = {handed_.size(), lowering.outputs.size()};
    for (std::size_t h = 0; h < handed_.size(); ++h) {
      ArgumentInfo& info = infos[h];
      info.graph_input = static_cast<std::uint32_t>(h);
      info.requires_grad = arguments_[handed_[h].first_argument].requires_grad();
      info.is_inference = arguments_[handed_[h].first_argument].is_inference();
      info.is_mutated = new_values_[h] != kNoValue;
      info.new_value_requires_grad = info.is_mutated && has_new_history(handed_[h]);
      // Lists of tensors are written without a word to their versions.
      const std::int64_t writes = version_of(handed_[h].given) - handed_[h].version;
      info.counted_writes = static_cast<std::uint32_t>(writes);
      if (info.is_mutated && (handed_[h].given.is_inference() || info.new_value_requires_grad))
        info.counted_writes = std::max(info.counted_writes, 1U);
      info.storage_offset = arguments_[handed_[h].first_argument].storage_offset();
      if (h < new_value_tangents_.size()) info.tangent = new_value_tangents_[h];
      if (h < gradients_.size() && gradients_[h] != kNoValue)
        info.gradient = add_output(gradients_[h]);
      if (h < reached_by_.size()) info.reached_by = reached_by_[h];
      if (h < turns_.size()) info.turn = turns_[h];
    }
    for (const std::size_t handed : handed_of_) recorded_.arguments.push_back(infos[handed]);

    BP_RETURN_IF_ERROR(place(lowering));
    BP_ASSIGN_OR_RETURN(Lowered lowered, lower(session_->tape, lowering));
    for (const std::uint32_t i : options_.static_arguments)
      if (i < recorded_.arguments.size())
        lowered.graph.values[lowered.graph.inputs[recorded_.arguments[i].graph_input]].is_static =
            true;
    for (const std::uint32_t i : options_.buffers)
      if (i < recorded_.arguments.size()) recorded_.arguments[i].is_buffer = true;
    for (SavingNode& node : recorded_.saving_nodes) {
      for (ir::ValueId& saved : node.saved) saved = lowered.ids[saved];
      std::erase(node.saved, ir::kNone);
    }
    recorded_.graph = std::move(lowered.graph);
    recorded_.forward_node_count = lowered.forward_node_count;
    recorded_.constants = std::move(lowered.constants);
    for (ir::ValueId v = 0; v < recorded_.constants.size(); ++v)
      if (recorded_.constants[v].defined() &&
          recorded_.constants[v].unsafeGetTensorImpl()->is_wrapped_number())
        recorded_.numbers.emplace(recorded_.graph.values[v].constant, recorded_.constants[v]);
    recorded_.draws = std::ranges::any_of(
        recorded_.graph.nodes, [](const ir::Node& node) { return ir::has_effects(node); });
    recorded_.reads_offsets = session_->reads_offsets;
    recorded_.call_count = session_->tape.calls.size();
    recorded_.shapes = session_->shapes;
    for (const OperatorInfo* info : session_->python_shapes)
      recorded_.python_shapes.push_back(info->name);
    std::sort(recorded_.python_shapes.begin(), recorded_.python_shapes.end());
    return std::move(recorded_);
  }

  Status place(const LowerOptions& border) {
    const std::vector<TapeValue>& values = session_->tape.values;
    Placement& out = recorded_.placement;
    for (const TapeValue& value : values) {
      if (value.device.is_cpu()) continue;
      if (out.device && *out.device != value.device)
        return unsupported("tensors of two devices, '" + value.device.str() + "' and '" +
                           out.device->str() + "'");
      out.device = value.device;
    }
    if (!out.device) return {};
    // Which generator a node draws from follows from where the graph is.
    for (const Call& call : session_->tape.calls)
      if (call.info->is_random && values[call.results[0]].device.is_cpu())
        return unsupported(call.info->name +
                           " draws on the CPU in a program with tensors of another device");
    for (const ValueNumber v : border.inputs) out.inputs.push_back(!values[v].device.is_cpu());
    for (const ValueNumber v : border.outputs) out.outputs.push_back(!values[v].device.is_cpu());
    return {};
  }

  const Program& program_;
  std::vector<at::Tensor> arguments_;
  const RecordOptions& options_;
  const bool had_grad_ = at::GradMode::is_enabled();
  const bool in_inference_ = c10::InferenceMode::is_enabled();
  std::shared_ptr<Session> session_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> seen_;  // index into handed_
  std::vector<Handed> handed_;          // one for each tensor among the arguments
  std::vector<std::size_t> handed_of_;  // by argument
  std::vector<c10::IValue> results_;
  Outputs outputs_{*session_, handed_, had_grad_, in_inference_};
  std::vector<ValueNumber> new_values_;                 // by handed
  std::vector<ValueNumber> gradients_;                  // by handed
  std::vector<std::vector<std::uint32_t>> reached_by_;  // by handed
  std::vector<std::uint32_t> turns_;                    // by handed
  std::vector<std::uint32_t> new_value_tangents_;       // by handed
  std::vector<ValueNumber> tangents_;
  std::size_t forward_call_count_ = 0;
  Recorded recorded_;
};

}  // namespace

Result<Recorded> record(const Program& program, std::span<const at::Tensor> arguments,
                        const RecordOptions& options) {
  BP_RETURN_IF_ERROR(register_recorder());
  BP_RETURN_IF_ERROR(check_environment());
  for (std::size_t i = 0; i < arguments.size(); ++i)
    BP_RETURN_IF_ERROR(check_argument(arguments[i], i));
  Recording recording(program, arguments, options);
  std::optional<Result<Recorded>> result;
  const auto refuse = [&](Code code, const std::exception& error) {
    Status refused = recording.refused();
    result.emplace(refused.ok() ? Status(code, reason_of(error)) : std::move(refused));
  };
  try {
    result.emplace(recording.run());
  } catch (const c10::Error& error) {
    refuse(code_of(error), error);
  } catch (const std::exception& error) {
    refuse(Code::kUnsupported, error);
  }
  // It would keep casts of the recording's tensors alive, and no others are lost that matter.
  if (at::autocast::is_autocast_enabled(at::kCUDA) || at::autocast::is_autocast_enabled(at::kCPU))
    at::autocast::clear_cache();
  return std::move(*result);
}

}  // namespace backplane::record
