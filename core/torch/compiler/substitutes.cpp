#include "core/torch/compiler/substitutes.h"

#include <c10/util/ScopeExit.h>
#include <pybind11/pybind11.h>

#include <string>
#include <utility>

#include "core/base/log.h"
#include "core/torch/compiler/compiled_function.h"

namespace backplane::compiler {

namespace {

constexpr std::size_t kMostRefusedSizes = 1024;

std::atomic<std::uint64_t> g_refused_calls{0};

}  // namespace

std::uint64_t refused_calls() { return g_refused_calls.load(std::memory_order_relaxed); }
void count_refused_call() { g_refused_calls.fetch_add(1, std::memory_order_relaxed); }

Substitutes::Function Substitutes::find(std::span<const std::int64_t> sizes) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_sizes_.find({sizes.begin(), sizes.end()});
  return found == by_sizes_.end() ? nullptr : found->second;
}

Substitutes::Function Substitutes::find_for(std::uint32_t partition) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_partition_.find(partition);
  return found == by_partition_.end() ? nullptr : found->second;
}

Substitutes::Function Substitutes::add(std::uint32_t partition, Function made,
                                       std::span<const std::int64_t> sizes) {
  const std::lock_guard lock(mutex_);
  Function& kept = by_partition_[partition];
  if (kept == nullptr) kept = std::move(made);
  if (by_sizes_.size() >= kMostRefusedSizes)
    by_sizes_.clear();  // each is found again by a refused call
  by_sizes_[{sizes.begin(), sizes.end()}] = kept;
  is_empty_.store(false, std::memory_order_relaxed);
  return kept;
}

Result<std::shared_ptr<CompiledFunction>> CompiledFunction::substitute(
    std::uint32_t partition, const Status& why, std::span<const std::int64_t> sizes) {
  count_refused_call();
  if (const auto known = substitutes_.find_for(partition))
    return substitutes_.add(partition, known, sizes);
  FunctionOptions options = options_;
  options.verify.rate = 0;
  options.compile.residence = {};
  const runtime::Withdrawal gone =
      graph_->withdrawal_of(partition, "refused at execute, though claimed: " + why.message());
  options.compile.withdrawals.push_back(gone);
  record::Placement placement;
  if (torch_device_ != nullptr)
    placement = {torch_device_->torch_device(), inputs_on_device_, outputs_on_device_};
  BP_ASSIGN_OR_RETURN(Substitutes::Function made,
                      build(graph_->graph(), placement, devices_, options));
  log(LogLevel::kWarning,
      std::to_string(gone.nodes.size()) + " nodes of " + graph_->graph().name +
          " go back to the CPU at sizes at which they are refused: " + why.message());
  const Substitutes::Function kept = substitutes_.add(partition, made, sizes);
  if (kept == made) add_part(kept);
  return kept;
}

// Its nodes on the CPU make tensors of arguments of which the graph only reads the memory; the
// first and last reference of such a tensor wants the GIL.
Result<std::vector<at::Tensor>> CompiledFunction::run_substitute(
    CompiledFunction& substitute, std::span<Argument> arguments,
    std::span<const std::int64_t> sizes) {
  std::vector<at::Tensor> held;
  {
    const pybind11::gil_scoped_acquire gil;
    for (const Argument& argument : arguments)
      if (argument.unsafeIsBorrowed()) held.push_back(*argument);
  }
  const auto let_go = c10::make_scope_exit([&] {
    const pybind11::gil_scoped_acquire gil;
    held.clear();
  });
  return substitute.run(arguments, sizes);
}

}  // namespace backplane::compiler
