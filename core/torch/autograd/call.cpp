#include <ATen/SavedTensorHooks.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "core/runtime/plugin/pack_cache.h"
#include "core/torch/autograd/cut_program.h"
#include "core/torch/autograd/free_strides.h"
#include "core/torch/autograd/joint_node.h"
#include "core/torch/autograd/result_node.h"
#include "core/torch/bridge/borrowed_tensors.h"
#include "core/torch/bridge/history.h"
#include "core/torch/bridge/shared_memory.h"
#include "core/torch/bridge/writable.h"
#include "core/torch/device/copy.h"
#include "core/torch/device/memory.h"

namespace backplane::autograd {

namespace {

namespace impl = torch::autograd::impl;
using record::OutputInfo;
using record::OutputKind;

thread_local bool t_forward_failed = false;

// As autograd does with views that come several at a time.
void let_nobody_write(const at::Tensor& view) {
  impl::get_view_autograd_meta(view)->set_creation_meta(
      torch::autograd::CreationMeta::MULTI_OUTPUT_NODE);
}

// The part of real numbers that an output shows as complex ones. The whole need not be pairs.
at::Tensor complex_part(const at::Tensor& numbers, const OutputInfo& info) {
  c10::DimVector sizes(info.sizes), strides(info.strides);
  for (std::int64_t& stride : strides) stride *= 2;
  sizes.push_back(2);
  strides.push_back(1);
  return at::view_as_complex(
      at::as_strided(numbers, sizes, strides, numbers.storage_offset() + 2 * info.storage_offset));
}

// The memory of `base` as an output shows it: a view that autograd knows where both are
// differentiated, else one that it does not.
at::Tensor view_of(const at::Tensor& base, const OutputInfo& info) {
  const at::AutoGradMode grad(at::GradMode::is_enabled() && !info.is_bare);
  const bool differentiated =
      info.requires_grad && base.requires_grad() && at::GradMode::is_enabled();
  // A write through the base that has a history gives none to what is detached from it. Where
  // gradients are off, a view asks for them as its base does.
  const bool is_detached = !differentiated && (info.is_detached || info.counts_own_writes ||
                                               (base.requires_grad() && !info.requires_grad));
  at::Tensor from = base;
  if (is_detached) from = info.counts_own_writes ? base.variable_data() : base.detach();
  std::int64_t start = from.storage_offset();
  if (from.scalar_type() != info.dtype) {
    if (from.is_complex() && info.dtype == c10::toRealValueType(from.scalar_type())) {
      from = at::view_as_real(from);
      start *= 2;
    } else if (c10::isComplexType(info.dtype) &&
               from.scalar_type() == c10::toRealValueType(info.dtype)) {
      from = complex_part(from, info);
      start = from.storage_offset() - info.storage_offset;
    } else {
      // Bits read as another type have no gradient.
      const std::int64_t bytes = start * static_cast<std::int64_t>(from.element_size());
      at::Tensor out = at::empty({0}, from.options().dtype(info.dtype));
      out.set_(from.storage(),
               bytes / static_cast<std::int64_t>(out.element_size()) + info.storage_offset,
               info.sizes, info.strides);
      if (!out.is_inference() && !from.is_inference())
        impl::set_version_counter(out, impl::version_counter(from));
      return out;
    }
  }
  const bool is_whole = from.storage_offset() == start + info.storage_offset &&
                        from.sizes() == info.sizes && from.strides() == info.strides;
  at::Tensor view =
      is_whole ? at::alias(from)
               : at::as_strided(from, info.sizes, info.strides, start + info.storage_offset);
  if (info.is_one_of_many && info.is_view && view.is_view()) let_nobody_write(view);
  if (info.counts_own_writes && !info.is_view) return view.variable_data();
  return differentiated || info.is_view ? view : view.detach();
}

// The same content with that pending.
at::Tensor with_pending(at::Tensor content, record::Pending pending) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (pending.conjugation && content.is_complex()) content = at::_conj(at::conj_physical(content));
  if (pending.negation) content = at::_neg_view(at::neg(content));
  return content;
}

// Shares the memory of another output, with a gradient of its own. A write through it would have
// to change the other's history as well, so PyTorch refuses that one.
at::Tensor view_with_own_gradient(const at::Tensor& content) {
  at::Tensor view = at::alias(content);
  let_nobody_write(view);
  return view;
}

// Gives a gradient on.
class TurnNode final : public torch::autograd::Node {
 public:
  std::string name() const override { return "BackplaneTurn"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradient) override {
    return std::move(gradient);
  }
};

class Call {
 public:
  Call(const std::shared_ptr<CutProgram>& program, const std::shared_ptr<const SizeRecord>& sizes,
       std::span<const at::Tensor> arguments, Errors errors, std::exception_ptr* out_raised_by_hook)
      : program_(program),
        signature_(program->signature),
        sizes_(sizes),
        arguments_(arguments),
        errors_(errors),
        out_raised_by_hook_(out_raised_by_hook),
        outputs_(sizes->outputs.size()) {}

  Result<std::vector<c10::IValue>> run() {
    const bool has_node = signature_.tangent_count > 0 && at::GradMode::is_enabled();
    at::Tensor generator;
    if (signature_.draws) generator = generator_state();
    Result<std::vector<at::Tensor>> made = [&] {
      try {
        Result<std::vector<at::Tensor>> values = forward();
        t_forward_failed = false;  // of calls within it
        return values;
      } catch (...) {
        t_forward_failed = true;
        if (generator.defined() && errors_ == Errors::kRunAgain) set_generator_state(generator);
        throw;
      }
    }();
    if (!made.ok()) {  // PyTorch runs it then
      if (generator.defined()) set_generator_state(generator);
      return made.take_status();
    }
    values_ = std::move(*made);
    if (has_node) make_nodes(std::move(generator));
    copy_saved();
    make_own_outputs();
    make_views(OutputKind::kViewOfOutput);
    if (!signature_.mutated.empty()) write_back();
    for (const std::uint32_t position : signature_.counted_unwritten)
      count_writes(input(position), argument_info(position).counted_writes);
    take_arguments();
    make_views(OutputKind::kViewOfArgument);
    const std::exception_ptr raised_by_hook = joint_ ? save_by_hooks() : nullptr;
    if (raised_by_hook && out_raised_by_hook_ == nullptr) std::rethrow_exception(raised_by_hook);
    if (raised_by_hook)
      *out_raised_by_hook_ = raised_by_hook;
    else if (signature_.grad_mode_after != at::GradMode::is_enabled())
      at::GradMode::set_enabled(signature_.grad_mode_after);

    std::vector<c10::IValue> results;
    results.reserve(outputs_.size());
    for (std::size_t i = 0; i < outputs_.size() && !sizes_->outputs[i].is_hidden; ++i) {
      const OutputInfo& info = sizes_->outputs[i];
      if (info.kind == OutputKind::kPlain)
        results.push_back(info.plain);
      else if (info.same_as != kAbsent)
        results.push_back(results[info.same_as]);
      else
        results.emplace_back(std::move(outputs_[i]));
    }
    return results;
  }

 private:
  Result<std::vector<at::Tensor>> forward() const {
    // As where PyTorch calls an operator that has a gradient of its own: what runs below autograd
    // may ask (`numpy()` of a tensor that requires gradients).
    const at::AutoGradMode no_grad(false);
    const std::vector<std::uint32_t>& order = signature_.argument_of_input;
    if (order.size() == arguments_.size() && std::ranges::is_sorted(order))
      return program_->forward(arguments_, *sizes_);  // each argument is an input
    bridge::BorrowedTensors inputs(order.size());
    for (const std::uint32_t argument : order) inputs.add(arguments_[argument]);
    return program_->forward(inputs.get(), *sizes_);
  }

  const at::Tensor& input(std::uint32_t position) const {
    return arguments_[signature_.argument_of_input[position]];
  }

  // By gradient. The engine has no order of its own for what one node gives to several leaves.
  // Where somebody is called for one, each has a node in front of it: of nodes that are ready, the
  // engine takes the one that was made last.
  torch::autograd::edge_list edges_of_gradients() const {
    const std::size_t count = signature_.gradients.size();
    torch::autograd::edge_list edges(count);
    bool is_heard = false;
    for (std::size_t i = 0; i < count; ++i) {
      const at::Tensor& argument = input(signature_.gradients[i]);
      edges[i] = impl::gradient_edge(argument);
      if (argument.is_leaf())
        joint_->lead_to(signature_.argument_of_input[signature_.gradients[i]], edges[i].function);
      is_heard = is_heard || (argument.is_leaf() && bridge::hears_of_gradient(argument));
    }
    if (!is_heard) [[likely]]
      return edges;
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), 0U);
    std::ranges::stable_sort(order, std::greater<>(),
                             [&](std::size_t i) { return signature_.turn_of_gradient[i]; });
    for (const std::size_t i : order) {
      const at::Tensor& argument = input(signature_.gradients[i]);
      if (!argument.is_leaf()) continue;
      const NodePointer node = autograd::make_node<TurnNode>();
      node->add_input_metadata(argument);
      node->set_next_edges({std::move(edges[i])});
      edges[i] = torch::autograd::Edge(node, 0);
    }
    return edges;
  }

  void make_nodes(at::Tensor generator) {
    joint_ = std::make_shared<Joint>(program_, sizes_, arguments_, std::move(generator));
    const torch::autograd::edge_list of_gradients = edges_of_gradients();
    for (std::uint32_t number = 0; number < signature_.node_count; ++number) {
      torch::autograd::edge_list edges;
      edges.reserve(signature_.gradients.size());
      for (std::size_t i = 0; i < signature_.gradients.size(); ++i)
        if (signature_.node_of_gradient[i] == number) edges.push_back(of_gradients[i]);
      nodes_.push_back(autograd::make_node<JointNode>(joint_, number));
      nodes_.back()->set_next_edges(std::move(edges));
    }
    edges_.reserve(signature_.tangent_count);
  }

  // In the order of their tangents.
  const torch::autograd::Edge& make_edge(const at::Tensor& like) {
    const NodePointer& node = nodes_[signature_.node_of_tangent[edges_.size()]];
    return edges_.emplace_back(node, node->add_input_metadata(like));
  }

  // Each before anything is made of its output: a node that has been led to gets no more edges.
  void make_result_nodes() {
    for (const DerivedResult& derived : signature_.derived) {
      torch::autograd::Edge& edge = edges_[derived.tangent];
      torch::autograd::edge_list edges{edge};
      for (const record::GradientSource& source : derived.sources) {
        if (source.is_view && !outputs_[source.position].defined()) make_view(source.position);
        edges.push_back(source.is_view ? impl::gradient_edge(outputs_[source.position])
                                       : edges_[source.position]);
      }
      const NodePointer node = autograd::make_node<ResultNode>(joint_, derived);
      node->set_next_edges(std::move(edges));
      edge = torch::autograd::Edge(node, node->add_input_metadata(values_[derived.value]));
      if (derived.output != kAbsent) impl::set_gradient_edge(outputs_[derived.output], edge);
    }
  }

  // Before anything is written.
  void copy_saved() {
    if (!joint_) return;
    for (const SavedSource& saved : signature_.saved) {
      if (!saved.needs_copy) continue;
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      copies_.push_back(
          (saved.is_argument ? input(saved.position) : values_[saved.position]).clone());
    }
  }

  // In the order of their tangents.
  void make_own_outputs() {
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      const OutputInfo& info = sizes_->outputs[i];
      if (info.kind == OutputKind::kFresh) {
        outputs_[i] = values_[info.graph_output];
        if (signature_.copied_outputs[i]) {
          const at::AutoDispatchBelowADInplaceOrView below_autograd;
          outputs_[i] = outputs_[i].clone();
        }
        if (info.pending) outputs_[i] = with_pending(outputs_[i], info.pending);
        outputs_[i] = laid_as_recorded(std::move(outputs_[i]), info.strides);
        if (info.version > 0) count_writes(outputs_[i], info.version);
        if (joint_ && info.is_one_of_many && info.tangent != kAbsent)
          outputs_[i] = view_with_own_gradient(outputs_[i]);
      } else if (info.kind == OutputKind::kSharedWithOutput) {
        outputs_[i] = laid_as_recorded(values_[info.graph_output], info.strides);
        if (joint_ && info.tangent == kAbsent)
          outputs_[i] = outputs_[i].detach();  // may be the very value that another output is
        share_counter(outputs_[i], info);
        if (joint_ && shares_with_differentiated(i))
          outputs_[i] = view_with_own_gradient(outputs_[i]);
      } else {
        continue;
      }
      if (joint_ && info.tangent != kAbsent)
        impl::set_gradient_edge(outputs_[i], make_edge(outputs_[i]));
    }
    if (!joint_) return;
    first_written_ = edges_.size();
    for (const std::uint32_t position : signature_.mutated)
      if (const record::ArgumentInfo& info = argument_info(position); info.tangent != kAbsent)
        make_edge(values_[info.new_value]);
    make_result_nodes();
  }

  void make_view(std::size_t output) {
    const OutputInfo& info = sizes_->outputs[output];
    const bool is_of_argument = info.kind == OutputKind::kViewOfArgument;
    if (!is_of_argument && !outputs_[info.base].defined()) make_view(info.base);
    outputs_[output] = view_of(is_of_argument ? arguments_[info.base] : outputs_[info.base], info);
    if (info.counts_own_writes) count_writes(outputs_[output], info.version);
  }

  void make_views(OutputKind kind) {
    for (std::size_t i = 0; i < outputs_.size(); ++i)
      if (sizes_->outputs[i].kind == kind && !outputs_[i].defined()) make_view(i);
  }

  const record::ArgumentInfo& argument_info(std::uint32_t input) const {
    return signature_.arguments[signature_.argument_of_input[input]];
  }

  // Autograd's check of what it has saved sees a write through any of several results.
  void share_counter(const at::Tensor& output, const OutputInfo& info) const {
    if (output.is_inference()) return;
    impl::set_version_counter(output, info.counts_with == kAbsent
                                          ? c10::VariableVersion(info.version)
                                          : impl::version_counter(outputs_[info.counts_with]));
  }

  // Whether this output and another one over its memory are both differentiated.
  bool shares_with_differentiated(std::size_t output) const {
    const OutputInfo& info = sizes_->outputs[output];
    std::size_t differentiated = 0;
    for (const OutputInfo& other : sizes_->outputs)
      differentiated += other.kind == OutputKind::kSharedWithOutput && other.base == info.base &&
                        other.tangent != kAbsent;
    return info.tangent != kAbsent && differentiated > 1;
  }

  void write_back() {
    auto edge = edges_.begin() + static_cast<std::ptrdiff_t>(first_written_);
    for (const std::uint32_t position : signature_.mutated) {
      const record::ArgumentInfo& info = argument_info(position);
      // A name of its own: what is saved must not lead back to its node.
      const at::Tensor value = values_[info.new_value].variable_data();
      at::Tensor target = input(position);
      const bool has_history = joint_ && info.tangent != kAbsent;
      const at::AutoGradMode grad(has_history);
      if (has_history && target.is_view()) {
        impl::set_gradient_edge(value, *edge++);
        target.copy_(value);
      } else if (has_history) {
        {
          const at::AutoDispatchBelowADInplaceOrView below_autograd;
          target.copy_(value);
        }
        impl::bump_version(target);
        impl::rebase_history(target, *edge++);
      } else if (info.counted_writes > 0) {
        target.copy_(value);
      } else {
        target.variable_data().copy_(value);
        const void* const storage = target.storage().unsafeGetStorageImpl();
        runtime::PackCache::instance().forget({&storage, 1});
      }
      if (info.counted_writes > 1) count_writes(target, info.counted_writes - 1);
    }
  }

  static void count_writes(const at::Tensor& tensor, std::uint32_t count) {
    if (tensor.is_inference()) return;
    for (std::uint32_t i = 0; i < count; ++i) impl::bump_version(tensor);
  }

  void take_arguments() {
    for (std::size_t i = 0; i < outputs_.size(); ++i)
      if (const OutputInfo& info = sizes_->outputs[i]; info.kind == OutputKind::kArgument)
        outputs_[i] = arguments_[info.base];
  }

  // What a hook has raised.
  std::exception_ptr save_by_hooks() {
    try {
      save();
      return nullptr;
    } catch (...) {
      joint_->abandon();
      return std::current_exception();
    }
  }

  void save() {
    // Hooks keep what they make of it.
    const bool has_hooks = at::SavedTensorDefaultHooks::get_hooks().has_value();
    for (const Watched& watched : signature_.watched)
      joint_->watch(has_hooks             ? at::Tensor()
                    : watched.is_argument ? input(watched.position)
                                          : outputs_[watched.position]);
    auto copy = copies_.begin();
    for (const SavedSource& saved : signature_.saved) {
      if (saved.needs_copy) {
        joint_->save(*copy++, /*is_output=*/false);
      } else if (saved.is_argument) {
        const at::Tensor& argument = input(saved.position);
        // Autograd keeps no inference tensor. The copy that the program has to make of it for eager
        // mode is gone from the graph.
        joint_->save(argument.is_inference() ? argument.clone() : argument, /*is_output=*/false);
      } else if (saved.shared_with != kAbsent) {
        // A name of its own for the memory, which counts the output's writes.
        const at::Tensor value = values_[saved.position].variable_data();
        impl::set_version_counter(value, impl::version_counter(outputs_[saved.shared_with]));
        joint_->save(value, /*is_output=*/false);
      } else {
        joint_->save(as_hooks_see(values_[saved.position]), /*is_output=*/false);
      }
    }
  }

  // Hooks for saved tensors get tensors of the kind that the program has: what a device keeps for
  // programs on the host is brought to it.
  static at::Tensor as_hooks_see(const at::Tensor& saved) {
    if (!device::is_on_device(saved) || !device::owner_of(saved).is_hidden() ||
        !at::SavedTensorDefaultHooks::get_hooks())
      return saved;
    const device::CauseScope cause(runtime::CopyCause::kSaved);
    return device::download(saved);
  }

  const std::shared_ptr<CutProgram>& program_;
  const Signature& signature_;
  const std::shared_ptr<const SizeRecord>& sizes_;
  std::span<const at::Tensor> arguments_;
  const Errors errors_;
  std::exception_ptr* const out_raised_by_hook_;
  std::vector<at::Tensor> values_;           // of the forward graph
  c10::SmallVector<at::Tensor, 8> outputs_;  // of the program
  std::vector<at::Tensor> copies_;
  std::shared_ptr<Joint> joint_;
  c10::SmallVector<NodePointer, 1> nodes_;
  torch::autograd::edge_list edges_;  // by tangent: what its output's history is
  std::size_t first_written_ = 0;     // among them: of the first written argument
};

}  // namespace

std::vector<std::uint32_t> counted_arguments(const Signature& signature, const SizeRecord& sizes) {
  const bool has_gradients = signature.tangent_count > 0;
  std::vector<bool> is_counted(signature.arguments.size(), has_gradients);
  for (std::size_t i = 0; i < signature.argument_of_input.size(); ++i)
    if (signature.counted_inputs[i]) is_counted[signature.argument_of_input[i]] = true;
  for (const auto* inputs : {&signature.mutated, &signature.counted_unwritten})
    for (const std::uint32_t input : *inputs) is_counted[signature.argument_of_input[input]] = true;
  for (const OutputInfo& info : sizes.outputs)
    if (info.kind == OutputKind::kArgument || info.kind == OutputKind::kViewOfArgument)
      is_counted[info.base] = true;
  std::vector<std::uint32_t> counted;
  for (std::uint32_t i = 0; i < is_counted.size(); ++i)
    if (is_counted[i]) counted.push_back(i);
  return counted;
}

namespace {

bool writes_shared_memory(const Signature& signature, std::span<const at::Tensor> arguments) {
  struct Input {
    bridge::MemoryRange memory;
    bool is_written = false;
  };
  std::vector<Input> inputs(signature.argument_of_input.size());
  for (std::size_t i = 0; i < inputs.size(); ++i)
    inputs[i].memory = bridge::memory_range(arguments[signature.argument_of_input[i]]);
  for (const std::uint32_t input : signature.mutated) inputs[input].is_written = true;
  // In the order of their memory, each has only to look at what reaches furthest before it.
  std::ranges::sort(inputs, {}, [](const Input& input) {
    return std::tuple(input.memory.device.type(), input.memory.device.index(), input.memory.begin);
  });
  bridge::MemoryRange furthest, furthest_written;
  for (const Input& input : inputs) {
    if (input.memory.overlaps(furthest_written)) return true;
    if (input.is_written && input.memory.overlaps(furthest)) return true;
    const auto take = [&](bridge::MemoryRange& into) {
      if (into.device != input.memory.device || into.end < input.memory.end) into = input.memory;
    };
    take(furthest);
    if (input.is_written) take(furthest_written);
  }
  return false;
}

}  // namespace

bool may_write(const Signature& signature, std::span<const at::Tensor> arguments) {
  const auto is_renewed = [&](std::uint32_t argument) {
    const record::ArgumentInfo& info = signature.arguments[argument];
    return info.gradient != kAbsent && info.tangent == kAbsent && info.counted_writes > 0 &&
           bridge::is_renewed_by_writes(arguments[argument]);
  };
  for (const auto* inputs : {&signature.mutated, &signature.counted_unwritten})
    for (const std::uint32_t input : *inputs)
      if (is_renewed(signature.argument_of_input[input])) return false;
  if (signature.mutated.empty()) return true;
  for (const std::uint32_t input : signature.mutated) {
    const std::uint32_t argument = signature.argument_of_input[input];
    if (signature.arguments[argument].tangent != kAbsent &&
        (!bridge::is_writable_by_autograd(arguments[argument]) ||
         bridge::is_gradient_awaited(arguments[argument])))
      return false;
    // PyTorch raises, but has written by then.
    if (arguments[argument].is_inference() && !c10::InferenceMode::is_enabled()) return false;
  }
  return !writes_shared_memory(signature, arguments);
}

Result<std::vector<c10::IValue>> call(const std::shared_ptr<CutProgram>& program,
                                      const std::shared_ptr<const SizeRecord>& sizes,
                                      std::span<const at::Tensor> arguments, Errors errors,
                                      std::exception_ptr* out_raised_by_hook) {
  t_forward_failed = false;
  return Call(program, sizes, arguments, errors, out_raised_by_hook).run();
}

bool take_forward_failure() { return std::exchange(t_forward_failed, false); }

}  // namespace backplane::autograd
