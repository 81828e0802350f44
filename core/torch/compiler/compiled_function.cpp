#include "core/torch/compiler/compiled_function.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "core/base/fork.h"
#include "core/base/log.h"
#include "core/ir/view.h"
#include "core/passes/pass.h"
#include "core/torch/bridge/dtype.h"
#include "core/torch/bridge/errors.h"
#include "core/torch/compiler/draws.h"
#include "core/torch/compiler/verification.h"
#include "core/torch/device/copy.h"
#include "core/torch/device/generator.h"
#include "core/torch/device/memory.h"

namespace backplane::compiler {

namespace {

constexpr std::size_t kMostPlans = 1024;

using Root = Argument;
using Roots = std::vector<Root>;

// Keeps the address of a storage object from being reused while a pack remembers it.
std::shared_ptr<void> storage_guard(const void* context) {
  const auto* tensor = static_cast<const at::Tensor*>(context);
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  return std::make_shared<Weak>(tensor->storage().getWeakStorageImpl());
}

runtime::StaticTensor static_tensor(const at::Tensor& tensor) {
  runtime::StaticTensor out;
  out.data = tensor.const_data_ptr();
  out.storage = tensor.storage().unsafeGetStorageImpl();
  out.counts_writes = !tensor.is_inference();
  out.version = out.counts_writes ? tensor._version() : 0;
  out.guard = storage_guard;
  out.guard_context = &tensor;
  return out;
}

bool shares_storage(const at::Tensor& tensor, const std::vector<at::Tensor>& others) {
  return std::ranges::any_of(others, [&](const at::Tensor& other) {
    return other.defined() && tensor.storage().is_alias_of(other.storage());
  });
}

// `from`, of the same size and dtype, in the memory of `laid`, a new tensor of that layout, where
// several indices may show one element: ATen writes no such tensor.
void copy_elements(at::Tensor from, at::Tensor laid, const Layout& layout) {
  if (laid.numel() == 0) return;
  if (layout.has_strides(from) && !from.is_conj() && !from.is_neg()) {
    std::memcpy(laid.data_ptr(), from.const_data_ptr(), laid.storage().nbytes());
    return;
  }
  for (std::int64_t d = 0; d < laid.dim(); ++d) {
    if (laid.size(d) < 2 || laid.stride(d) != 0) continue;
    laid = laid.narrow(d, 0, 1);
    from = from.narrow(d, 0, 1);
  }
  laid.copy_(from);
}

}  // namespace

// Runs fallback nodes and holds what they made until the call ends.
class CompiledFunction::Runner final : public runtime::FallbackRunner {
 public:
  Runner(const CompiledFunction& function, Roots& roots) : function_(function), roots_(roots) {}

  // What PyTorch throws is kept: plugins may still be at work in the call's memory.
  Status run(ir::NodeId id, Memory& memory) override {
    try {
      return run_node(id, memory);
    } catch (...) {
      thrown_ = std::current_exception();
      return Status(Code::kProgramError, "PyTorch raised an error");
    }
  }
  void rethrow() const {
    if (thrown_) std::rethrow_exception(thrown_);
  }

  void release(ir::ValueId root) override { roots_[root] = Root(); }

 private:
  static bool is_read(const ir::Graph& graph, ir::ValueId value) {
    return std::ranges::count(graph.outputs, value) != 0 ||
           std::ranges::any_of(graph.nodes, [&](const ir::Node& node) {
             return std::ranges::count(node.operands, value) != 0;
           });
  }

  Status run_node(ir::NodeId id, Memory& memory) {
    const ir::Graph& graph = function_.graph_->graph();
    const ir::Node& node = graph.nodes[id];
    std::vector<at::Tensor> operands;
    operands.reserve(node.operands.size());
    for (const ir::ValueId value : node.operands)
      operands.push_back(value == ir::kNone                    ? at::Tensor()
                         : function_.numbers_[value].defined() ? function_.numbers_[value]
                                                               : tensor(value, memory));
    std::vector<at::Tensor> results = function_.fallback_[id]->run(operands, memory.dim_values());
    for (std::size_t i = 0; i < results.size(); ++i) {
      const ir::ValueId value = node.results[i];
      if (value == ir::kNone || !results[i].defined()) continue;
      const Layout layout = layout_of(graph.values[value].type, memory.dim_values());
      if (!std::ranges::equal(results[i].sizes(), layout.dims)) {
        // A gradient that was not asked for: some of ATen's kernels give it all the same.
        if (!is_read(graph, value)) continue;
        return Status(Code::kInternal, std::string(node.op->name) + " gave another shape than " +
                                           "recorded: the graph does not fit these inputs");
      }
      at::Tensor kept = std::move(results[i]);
      // Eager may promote by the number-ness of an operand, which a recorded graph has lost, and
      // keeps statistics of reduced-precision norms in float32: the record decides.
      kept = kept.to(layout.dtype);
      // A result has memory of its own, also where ATen answers with a view of what it was given
      // (unsafe_split): that may be the call's arena, which others use after the last reader.
      if (!layout.has_strides(kept) || shares_storage(kept, operands)) {
        at::Tensor laid = make_tensor(layout);
        copy_elements(kept, laid, layout);
        kept = std::move(laid);
      }
      memory.set_address(value, kept.data_ptr());
      roots_[value] = Root::owned(std::move(kept));
    }
    return {};
  }

  at::Tensor tensor(ir::ValueId value, const Memory& memory) const {
    const ir::Graph& graph = function_.graph_->graph();
    const ir::ValueId root = ir::view_root(graph, value);
    at::Tensor base = *roots_[root];
    // On a device of its own, but brought to the host for this node.
    if (device::is_resident(base)) {
      if (device::owner_of(base).shares_host_memory())
        base = device::host_alias(base);
      else
        base.reset();
    }
    if (!base.defined()) base = function_.constants_[root];
    if (!base.defined()) {
      // Made by a plugin in the call's arena, which outlives this node.
      const Layout layout = layout_of(graph.values[root].type, memory.dim_values());
      base = at::from_blob(memory.address(root), layout.dims, layout.strides,
                           at::TensorOptions().dtype(layout.dtype));
    }
    return view_of(graph, value, memory.dim_values()).of(base);
  }

  const CompiledFunction& function_;
  Roots& roots_;  // by value: inputs, outputs and results of fallback nodes
  std::exception_ptr thrown_;
};

// Outputs on the host as they are first written; inputs only as long as they are read.
class CompiledFunction::Lender final : public runtime::MemoryLender {
 public:
  // `keeps`: inputs stay to the end of the call.
  Lender(const CompiledFunction& function, Roots& roots, const FunctionPlan& plan, bool keeps)
      : graph_(*function.graph_), roots_(roots), plan_(plan), keeps_(keeps) {}

  Result<void*> lend_output(std::size_t position) override {
    // On the way from a plugin, which no exception may cross.
    try {
      return output(position).mutable_data_ptr();
    } catch (const std::exception& error) {
      return Status(Code::kOutOfMemory, error.what());
    }
  }
  void release_input(std::size_t position) override {
    if (!keeps_) roots_[graph_.graph().inputs[position]] = Root();
  }
  // Also where no step writes it: an output without elements.
  const at::Tensor& output(std::size_t position) {
    const ir::ValueId root = graph_.exports()[position].root;
    if (!roots_[root]->defined()) roots_[root] = Root::owned(make_tensor(plan_.exports[position]));
    return *roots_[root];
  }

 private:
  const runtime::CompiledGraph& graph_;
  Roots& roots_;
  const FunctionPlan& plan_;
  const bool keeps_;
};

void CompiledFunction::find_kept_outputs(const runtime::Residence& residence) {
  const ir::Graph& graph = graph_->graph();
  for (std::size_t i = 0; i < residence.kept_where_made.size(); ++i)
    for (const auto& one : graph_->exports())
      if (residence.kept_where_made[i] && ir::view_root(graph, graph.outputs[i]) == one.root)
        outputs_on_device_[i] = outputs_on_device_[i] && one.on_device;
}

// For a saved value of which hooks were given a copy on the host, and for constants.
at::Tensor CompiledFunction::bring_back(const at::Tensor& host) const {
  const device::CauseScope cause(runtime::CopyCause::kSaved);
  at::Tensor kept = device::make_empty_like(*torch_device_, host);
  device::copy_from(host, kept, /*non_blocking=*/false);
  return kept;
}

bool CompiledFunction::is_on_device(ir::ValueId root) const {
  const ir::Graph& graph = graph_->graph();
  for (std::size_t i = 0; i < graph.outputs.size(); ++i)
    if (outputs_on_device_[i] && ir::view_root(graph, graph.outputs[i]) == root) return true;
  return false;
}

Result<std::unique_ptr<CompiledFunction>> CompiledFunction::compile(
    ir::Graph given, const record::Placement& placement,
    const std::vector<runtime::Device*>& devices, const FunctionOptions& options) {
  std::unique_ptr<Verification> verification;
  if (options.verify.rate > 0 && !devices.empty()) {
    FunctionOptions plain;
    plain.compile.role = options.compile.role;
    plain.numbers = options.numbers;
    BP_ASSIGN_OR_RETURN(std::unique_ptr<CompiledFunction> oracle, compile(given, {}, {}, plain));
    verification = std::make_unique<Verification>(options.verify, std::move(oracle), devices);
  }
  // Without a plugin the results are eager's, bit by bit.
  BP_RETURN_IF_ERROR(passes::run_pipeline(given, devices.empty() ? "canonicalize" : "optimize"));
  BP_ASSIGN_OR_RETURN(std::unique_ptr<CompiledFunction> made,
                      build(std::move(given), placement, devices, options));
  made->verification_ = std::move(verification);
  return made;
}

Result<std::unique_ptr<CompiledFunction>> CompiledFunction::build(
    ir::Graph given, const record::Placement& placement,
    const std::vector<runtime::Device*>& devices, const FunctionOptions& options) {
  std::unique_ptr<CompiledFunction> made(new CompiledFunction);
  made->devices_ = devices;
  made->options_ = options;
  FunctionOptions chosen = options;
  if (placement.device) {
    made->torch_device_ = &device::owner_at(*placement.device);
    if (std::ranges::find(devices, &made->torch_device_->device()) == devices.end())
      return Status(devices.empty() ? Code::kInvalidArgument : Code::kWrongDevice,
                    "the tensors are on " + made->torch_device_->torch_device().str() +
                        ", which is " + made->torch_device_->device().label() +
                        ", and the graph is not compiled " + "for it");
    made->inputs_on_device_ = placement.inputs;
    made->outputs_on_device_ = placement.outputs;
    runtime::Residence& residence = chosen.compile.residence;
    residence.device = &made->torch_device_->device();
    residence.inputs = placement.inputs;
    residence.outputs = placement.outputs;
  }
  std::vector<std::string> sizes;
  for (const ir::DimClass& dim_class : given.dim_classes)
    if (dim_class.expression.empty()) sizes.push_back(dim_class.name);
  made->size_count_ = sizes.size();
  BP_ASSIGN_OR_RETURN(made->graph_, runtime::CompiledGraph::compile(std::move(given), devices,
                                                                    chosen.compile, sizes));
  if (made->torch_device_ != nullptr) {
    made->find_kept_outputs(chosen.compile.residence);
    for (const auto& one : made->graph_->exports())
      made->exports_on_device_.push_back(made->is_on_device(one.root));
  }
  const ir::Graph& graph = made->graph_->graph();
  made->fallback_.resize(graph.nodes.size());
  at::Generator generator;  // undefined: the CPU's
  if (made->torch_device_ != nullptr && made->torch_device_->has_generator())
    generator = device::host_generator(device::default_generator(made->torch_device_->index()));
  std::vector<bool> on_plugin(graph.nodes.size(), false);
  for (const auto& report : made->graph_->partitions())
    for (const ir::NodeId n : report->nodes) on_plugin[n] = true;
  for (ir::NodeId n = 0; n < graph.nodes.size(); ++n) {
    if (on_plugin[n] || graph.nodes[n].op->op_class == ir::OpClass::kView) continue;
    if (graph.nodes[n].op->op_class == ir::OpClass::kRandom)
      made->drawn_from_ =
          generator.defined() ? generator : at::globalContext().defaultGenerator(at::kCPU);
    BP_ASSIGN_OR_RETURN(bridge::AtenNode node,
                        bridge::AtenNode::prepare(graph.nodes[n], generator));
    made->fallback_[n] = std::make_unique<bridge::AtenNode>(std::move(node));
  }
  made->constants_.resize(graph.values.size());
  made->numbers_.resize(graph.values.size());
  // make_tensor allocates below the dispatcher: PyTorch's fake mode may be on here.
  for (ir::ValueId v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].kind != ir::ValueKind::kConstant) continue;
    at::Tensor constant = make_tensor(layout_of(graph.values[v].type, {}));
    if (constant.nbytes())
      std::memcpy(constant.mutable_data_ptr(), graph.values[v].constant->bytes.data(),
                  std::min(constant.nbytes(), graph.values[v].constant->bytes.size()));
    made->constants_[v] = std::move(constant);
    if (const auto number = options.numbers.find(graph.values[v].constant);
        number != options.numbers.end())
      made->numbers_[v] = number->second;
  }
  return made;
}

std::vector<bool> CompiledFunction::counted_inputs() const {
  const ir::Graph& graph = graph_->graph();
  std::vector<bool> by_value(graph.values.size(), false), out;
  for (ir::NodeId n = 0; n < graph.nodes.size(); ++n)
    if (fallback_[n])
      for (const ir::ValueId operand : graph.nodes[n].operands)
        if (operand != ir::kNone) by_value[ir::view_root(graph, operand)] = true;
  for (const ir::ValueId output : graph.outputs) by_value[ir::view_root(graph, output)] = true;
  for (const ir::ValueId input : graph.inputs) out.push_back(by_value[input]);
  return out;
}

void CompiledFunction::add_part(std::shared_ptr<const CompiledFunction> part) {
  const std::lock_guard lock(mutex_);
  parts_.push_back(std::move(part));
}

std::vector<std::shared_ptr<const CompiledFunction>> CompiledFunction::parts() const {
  const std::lock_guard lock(mutex_);
  return parts_;
}

std::uint64_t CompiledFunction::calls() const {
  std::uint64_t sum = calls_.load(std::memory_order_relaxed);
  for (const auto& part : parts()) sum += part->calls();
  return sum;
}

std::uint64_t CompiledFunction::restrided_inputs() const {
  std::uint64_t sum = restrided_.load(std::memory_order_relaxed);
  for (const auto& part : parts()) sum += part->restrided_inputs();
  return sum;
}

// What one call in flight works with, kept for the next one: a warm call allocates what it gives.
struct CompiledFunction::Scratch {
  Roots roots;  // by value
  std::vector<void*> inputs, outputs;
  std::vector<bp_range> device_inputs, device_outputs;
  std::vector<runtime::StaticTensor> static_tensors;
  std::vector<std::pair<ir::ValueId, at::Tensor>> brought;  // by root
};

class CompiledFunction::ScratchLease {
 public:
  explicit ScratchLease(CompiledFunction& function) : function_(function) {
    {
      const std::lock_guard lock(function.mutex_);
      if (!function.idle_.empty()) {
        scratch_ = std::move(function.idle_.back());
        function.idle_.pop_back();
      }
    }
    if (!scratch_) scratch_ = function.make_scratch();
  }
  // No tensor is let go under the lock: its end may be the program's own code.
  ~ScratchLease() {
    for (Root& root : scratch_->roots) root = Root();
    scratch_->brought.clear();
    const std::lock_guard lock(function_.mutex_);
    function_.idle_.push_back(std::move(scratch_));
  }
  ScratchLease(const ScratchLease&) = delete;
  ScratchLease& operator=(const ScratchLease&) = delete;

  Scratch& operator*() const { return *scratch_; }

 private:
  CompiledFunction& function_;
  std::unique_ptr<Scratch> scratch_;
};

std::unique_ptr<CompiledFunction::Scratch> CompiledFunction::make_scratch() const {
  auto made = std::make_unique<Scratch>();
  const std::size_t input_count = graph_->graph().inputs.size();
  const std::size_t export_count = graph_->exports().size();
  const bool has_place = graph_->resident_device() != nullptr;
  made->roots.resize(graph_->graph().values.size());
  made->inputs.resize(input_count);
  made->outputs.resize(export_count);
  made->device_inputs.resize(has_place ? input_count : 0);
  made->device_outputs.resize(has_place ? export_count : 0);
  made->static_tensors.resize(graph_->packed_inputs().size());
  return made;
}

CompiledFunction::CompiledFunction() = default;
CompiledFunction::~CompiledFunction() = default;

namespace {

bool fits(const FunctionPlan& plan, std::span<const Argument> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (!std::ranges::equal(arguments[i]->sizes(), plan.inputs[i].dims)) return false;
  return true;
}

}  // namespace

Result<std::shared_ptr<const FunctionPlan>> CompiledFunction::plan(
    std::span<const Argument> arguments, std::span<const std::int64_t> sizes) {
  {
    const std::lock_guard lock(mutex_);
    for (auto it = plans_.begin(); it != plans_.end(); ++it) {
      if (!std::ranges::equal((*it)->sizes, sizes)) continue;
      if (!fits(**it, arguments)) break;  // made anew, for its words
      if (it != plans_.begin()) plans_.splice(plans_.begin(), plans_, it);
      return plans_.front();
    }
  }
  std::vector<std::span<const std::int64_t>> input_sizes;
  for (const Argument& argument : arguments) input_sizes.push_back(argument->sizes());
  BP_ASSIGN_OR_RETURN(auto made, FunctionPlan::make(*graph_, input_sizes, sizes));
  const std::lock_guard lock(mutex_);
  plans_.push_front(made);
  if (plans_.size() > kMostPlans) plans_.pop_back();
  return made;
}

Status CompiledFunction::check(std::span<const Argument> arguments,
                               std::span<const std::int64_t> sizes) const {
  const ir::Graph& graph = graph_->graph();
  if (arguments.size() != graph.inputs.size() || sizes.size() != size_count_)
    return {Code::kInvalidArgument,
            "the compiled graph takes " + std::to_string(graph.inputs.size()) + " tensors and " +
                std::to_string(size_count_) + " sizes, but the call has " +
                std::to_string(arguments.size()) + " and " + std::to_string(sizes.size())};
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const at::Tensor& tensor = *arguments[i];
    if (!tensor.defined())
      return {Code::kInvalidArgument, "argument " + std::to_string(i) + " must be a tensor"};
    const ir::Value& value = graph.values[graph.inputs[i]];
    const bool on_device = torch_device_ != nullptr && inputs_on_device_[i];
    if (tensor.dim() != static_cast<std::int64_t>(value.type.rank()) ||
        tensor.scalar_type() != bridge::to_scalar_type(value.type.dtype) ||
        (on_device && tensor.device() != torch_device_->torch_device() &&
         !(torch_device_->is_hidden() && tensor.device().is_cpu())) ||
        (!on_device && !tensor.device().is_cpu()))
      return {Code::kInvalidArgument,
              "argument " + std::to_string(i) + " (%" + value.name +
                  ") has another rank, dtype or device than the graph was compiled for"};
  }
  return {};
}

Status check_process(std::span<runtime::Device* const> devices) {
  for (const runtime::Device* const device : devices) {
    const Status status = device->check_process("a compiled program");
    if (status.ok()) [[likely]]
      continue;
    static std::atomic<std::uint32_t> told{0};
    if (told.exchange(fork_count()) != fork_count())
      log(LogLevel::kWarning, status.message() + " PyTorch runs such programs here.");
    return Status(Code::kDeviceLost, status.message());
  }
  return {};
}

bool CompiledFunction::is_of_parent() const { return !check_process(devices_).ok(); }

// A device that has no memory left is the plugin's failure, wherever in the call it was asked.
Result<std::vector<at::Tensor>> CompiledFunction::call(std::span<Argument> arguments,
                                                       std::span<const std::int64_t> sizes) {
  BP_RETURN_IF_ERROR(check_process(devices_));
  try {
    if (verification_) [[unlikely]]
      return verification_->call(*this, arguments, sizes);
    return run(arguments, sizes);
  } catch (const c10::OutOfMemoryError& error) {
    return Status(Code::kOutOfMemory, error.what_without_backtrace());
  }
}

Result<std::vector<at::Tensor>> CompiledFunction::run(std::span<Argument> arguments,
                                                      std::span<const std::int64_t> sizes) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!substitutes_.is_empty()) [[unlikely]]
    if (const auto instead = substitutes_.find(sizes))
      return run_substitute(*instead, arguments, sizes);
  calls_.fetch_add(1, std::memory_order_relaxed);
  BP_RETURN_IF_ERROR(check(arguments, sizes));
  BP_ASSIGN_OR_RETURN(const std::shared_ptr<const FunctionPlan> plan, this->plan(arguments, sizes));
  const ScratchLease lease(*this);
  Scratch& scratch = *lease;
  bind_inputs(*plan, arguments, scratch);

  const ir::Graph& graph = graph_->graph();
  std::shared_ptr<const runtime::CompiledGraph::PackSet> packs;
  if (const auto packed = graph_->packed_inputs(); !packed.empty()) {
    for (std::size_t i = 0; i < packed.size(); ++i)
      scratch.static_tensors[i] = static_tensor(*scratch.roots[graph.inputs[packed[i]]]);
    BP_ASSIGN_OR_RETURN(packs, graph_->packs(scratch.static_tensors));
  }
  bind_outputs_on_device(*plan, scratch);

  // The first time at these sizes a plugin may find that it cannot do it; then all starts again.
  const bool is_new = !plan->has_run.load(std::memory_order_relaxed);
  const bool has_parts = is_new && graph_->partition_count() + graph_->fallback_node_count() > 1;
  std::optional<Draws> draws;
  if (is_new && drawn_from_.defined()) draws.emplace(drawn_from_);
  std::optional<std::uint32_t> refused;
  Runner runner(*this, scratch.roots);
  Lender lender(*this, scratch.roots, *plan, has_parts);
  runtime::CompiledGraph::Call call;
  call.lender = &lender;
  call.inputs = scratch.inputs;
  call.outputs = scratch.outputs;
  call.device_inputs = scratch.device_inputs;
  call.device_outputs = scratch.device_outputs;
  if (torch_device_ != nullptr && torch_device_->is_adopted()) call.queue = &torch_device_->queue();
  call.packs = packs.get();
  call.fallback = &runner;
  call.out_refused = &refused;
  if (Status status = graph_->run(*plan->graph, call); !status.ok()) {
    if (graph_->was_given_up())
      for (const Root& root : scratch.roots)
        if (root->defined())
          static_cast<void>(new at::Tensor(*root));  // for good: a device may write to it
    runner.rethrow();
    if (refused && !options_.verify.strict) {
      std::vector<Argument> again;
      for (const ir::ValueId input : graph.inputs) again.push_back(std::move(scratch.roots[input]));
      if (std::ranges::all_of(again, [](const Argument& one) { return one->defined(); })) {
        BP_ASSIGN_OR_RETURN(const auto instead, substitute(*refused, status, sizes));
        if (draws) draws->go_back();
        calls_.fetch_sub(1, std::memory_order_relaxed);
        return run_substitute(*instead, again, sizes);
      }
    }
    // Whoever has the program run again loses the device: PyTorch's kernels there end its context
    // over such data.
    if (torch_device_ != nullptr && torch_device_->is_adopted() && bridge::refuses_data(status))
      bridge::raise_error("BP-0108", status);
    return status;
  }
  if (is_new) plan->has_run.store(true, std::memory_order_relaxed);
  for (auto& [root, tensor] : scratch.brought) scratch.roots[root] = Root::owned(std::move(tensor));
  const auto& exports = graph_->exports();
  for (std::size_t i = 0; i < exports.size(); ++i)
    if (exports[i].source == runtime::CompiledGraph::Source::kPlugin) lender.output(i);
  return results(*plan, scratch);
}

// Where each input is: on the device, or at an address of the host, in the strides that the graph
// was compiled for.
void CompiledFunction::bind_inputs(const FunctionPlan& plan, std::span<Argument> arguments,
                                   Scratch& scratch) {
  const ir::Graph& graph = graph_->graph();
  const bool has_place = graph_->resident_device() != nullptr;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Layout& layout = plan.inputs[i];
    Root& root = scratch.roots[graph.inputs[i]];
    const at::Tensor& tensor = *arguments[i];
    const bool is_resident = torch_device_ != nullptr && inputs_on_device_[i];
    if (is_resident && tensor.device().is_cpu())
      root = Root::owned(bring_back(tensor));
    else if (tensor.is_conj() || tensor.is_neg())
      root = Root::owned(tensor.resolve_conj().resolve_neg());
    else
      root = std::move(arguments[i]);
    const bool on_device = device::is_resident(*root);
    if (root->numel() > 0 &&
        (!layout.has_strides(*root) || (on_device && !device::is_aligned(*root)))) {
      at::Tensor laid = make_tensor(layout, on_device ? torch_device_ : nullptr);
      // A hidden device has no operators in the dispatcher.
      if (on_device)
        device::copy_from(*root, laid, /*non_blocking=*/false);
      else
        copy_elements(*root, laid, layout);
      root = Root::owned(std::move(laid));
      restrided_.fetch_add(1, std::memory_order_relaxed);
    }
    if (on_device) device::check(device::check_readable(*root));
    if (has_place) scratch.device_inputs[i] = on_device ? device::range_of(*root) : bp_range{};
    scratch.inputs[i] = on_device && has_place
                            ? nullptr
                            : const_cast<void*>(root->const_data_ptr());  // no plugin writes it
  }
}

// Those on the host are lent as they are written.
void CompiledFunction::bind_outputs_on_device(const FunctionPlan& plan, Scratch& scratch) {
  using Source = runtime::CompiledGraph::Source;
  const auto& exports = graph_->exports();
  std::ranges::fill(scratch.outputs, nullptr);
  std::ranges::fill(scratch.device_outputs, bp_range{});
  if (torch_device_ == nullptr) return;
  for (std::size_t i = 0; i < exports.size(); ++i) {
    const bool by_plugin = exports[i].source == Source::kPlugin;
    if (!by_plugin && !(exports[i].on_device && exports[i].source == Source::kFallback)) continue;
    if (!exports_on_device_[i]) continue;
    at::Tensor tensor = make_tensor(plan.exports[i], torch_device_);
    device::mark_written(tensor);
    if (!scratch.device_outputs.empty())
      scratch.device_outputs[i] = device::range_of(tensor);
    else
      scratch.outputs[i] = tensor.mutable_data_ptr();
    // What a fallback makes is brought there from where it made it.
    if (by_plugin)
      scratch.roots[exports[i].root] = Root::owned(std::move(tensor));
    else
      scratch.brought.emplace_back(exports[i].root, std::move(tensor));
  }
}

std::vector<at::Tensor> CompiledFunction::results(const FunctionPlan& plan,
                                                  Scratch& scratch) const {
  const ir::Graph& graph = graph_->graph();
  std::vector<at::Tensor> results;
  results.reserve(plan.outputs.size());
  for (std::size_t i = 0; i < plan.outputs.size(); ++i) {
    const View& view = plan.outputs[i];
    Root& root = scratch.roots[view.root];
    if (graph.values[view.root].kind == ir::ValueKind::kConstant && !root->defined())
      root = Root::owned(constants_[view.root].clone());  // one for all results that show it
    at::Tensor made = view.of(*root);
    const bool on_device = torch_device_ != nullptr && outputs_on_device_[i];
    if (on_device && !device::is_resident(made))
      made = bring_back(made);
    else if (!on_device && device::is_resident(made))
      made = device::download(made);
    results.push_back(std::move(made));
  }
  return results;
}

}  // namespace backplane::compiler
