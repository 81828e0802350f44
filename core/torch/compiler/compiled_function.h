// The callable that a compiled graph becomes: tensors in, tensors out, no Python in between.
#pragma once

#include <ATen/ATen.h>
#include <c10/util/MaybeOwned.h>

#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/plan/compiled_graph.h"
#include "core/torch/bridge/aten_node.h"
#include "core/torch/compiler/function_plan.h"
#include "core/torch/compiler/substitutes.h"
#include "core/torch/device/devices.h"
#include "core/torch/record/recorder.h"

namespace backplane::compiler {

// Numbers among the constants as PyTorch holds them, by their content: nodes that ATen runs get
// these, and so eager's bits.
using Numbers = std::unordered_map<std::shared_ptr<const ir::ConstantData>, at::Tensor>;

// Hold results against PyTorch's own; verification.h.
struct VerifyOptions {
  double rate = 0;      // the share of calls; 0: none
  bool strict = false;  // a difference is an error instead of a change to PyTorch
};

struct FunctionOptions {
  runtime::CompileOptions compile;
  Numbers numbers;
  VerifyOptions verify;
};

// A tensor that is borrowed outlives the call.
using Argument = c10::MaybeOwned<at::Tensor>;

class Verification;

// kDeviceLost in a child of fork() that has not opened the devices itself: PyTorch is to run the
// program there. Asked before a lock of the program is taken, which a thread of the parent may have
// held at that moment. Told once.
Status check_process(std::span<runtime::Device* const> devices);

class CompiledFunction {
 public:
  ~CompiledFunction();
  static Result<std::unique_ptr<CompiledFunction>> compile(
      ir::Graph graph, const record::Placement& placement,
      const std::vector<runtime::Device*>& devices, const FunctionOptions& options);

  // The graph's outputs. `sizes`: of the dim classes that no expression gives, in order. Any
  // thread, without the GIL. Exceptions of ATen operators that run as fallback pass through. Takes
  // the arguments over: each tensor that is owned goes when its last reader has run.
  Result<std::vector<at::Tensor>> call(std::span<Argument> arguments,
                                       std::span<const std::int64_t> sizes);

  // Compiled by the process that this one was forked from: a call fails. Tells it once.
  bool is_of_parent() const;
  runtime::CompiledGraph& graph() { return *graph_; }
  const runtime::CompiledGraph& graph() const { return *graph_; }
  // Where inputs and outputs are, by position in the graph's; none: all on the host.
  std::optional<c10::Device> device() const {
    return torch_device_ ? std::optional(torch_device_->torch_device()) : std::nullopt;
  }
  bool is_input_on_device(std::size_t position) const { return inputs_on_device_[position]; }
  bool is_output_on_device(std::size_t position) const { return outputs_on_device_[position]; }
  // By position in the graph's inputs: a call makes tensors of it, for ATen's nodes or as an
  // output.
  std::vector<bool> counted_inputs() const;
  // What computes some of the outputs from some of the arguments, run instead where that is enough.
  void add_part(std::shared_ptr<const CompiledFunction> part);
  std::vector<std::shared_ptr<const CompiledFunction>> parts() const;
  // Calls so far, and inputs that came in other strides than compiled for and were copied; those
  // of the parts too.
  std::uint64_t calls() const;
  std::uint64_t restrided_inputs() const;

 private:
  friend class Verification;
  class Runner;
  class Lender;
  struct Scratch;
  class ScratchLease;
  CompiledFunction();
  // Of a graph that passes have been over.
  static Result<std::unique_ptr<CompiledFunction>> build(
      ir::Graph graph, const record::Placement& placement,
      const std::vector<runtime::Device*>& devices, const FunctionOptions& options);
  // See substitutes.h. The same graph without that partition on its device. `why` is the plugin's.
  Result<std::shared_ptr<CompiledFunction>> substitute(std::uint32_t partition, const Status& why,
                                                       std::span<const std::int64_t> sizes);
  static Result<std::vector<at::Tensor>> run_substitute(CompiledFunction& substitute,
                                                        std::span<Argument> arguments,
                                                        std::span<const std::int64_t> sizes);
  Status check(std::span<const Argument> arguments, std::span<const std::int64_t> sizes) const;
  Result<std::shared_ptr<const FunctionPlan>> plan(std::span<const Argument> arguments,
                                                   std::span<const std::int64_t> sizes);
  Result<std::vector<at::Tensor>> run(std::span<Argument> arguments,
                                      std::span<const std::int64_t> sizes);
  std::unique_ptr<Scratch> make_scratch() const;
  void bind_inputs(const FunctionPlan& plan, std::span<Argument> arguments, Scratch& scratch);
  void bind_outputs_on_device(const FunctionPlan& plan, Scratch& scratch);
  std::vector<at::Tensor> results(const FunctionPlan& plan, Scratch& scratch) const;
  // The device of inputs and outputs, null when all are on the host.
  device::TorchDevice* torch_device_ = nullptr;
  std::vector<bool> inputs_on_device_, outputs_on_device_;  // by position in the graph's
  std::vector<bool> exports_on_device_;
  bool is_on_device(ir::ValueId root) const;  // some output of that root is
  void find_kept_outputs(const runtime::Residence& residence);
  at::Tensor bring_back(const at::Tensor& host) const;

  std::unique_ptr<runtime::CompiledGraph> graph_;
  std::unique_ptr<Verification> verification_;               // null: nobody asks for it
  std::vector<std::unique_ptr<bridge::AtenNode>> fallback_;  // by node; null where a plugin runs it
  std::vector<at::Tensor> constants_;                        // by value; undefined elsewhere
  std::vector<at::Tensor> numbers_;                          // those of FunctionOptions, likewise
  std::size_t size_count_ = 0;
  // For substitutes.
  std::vector<runtime::Device*> devices_;
  FunctionOptions options_;
  at::Generator drawn_from_;  // by nodes that ATen runs; undefined where none draws
  Substitutes substitutes_;
  std::atomic<std::uint64_t> calls_{0}, restrided_{0};
  mutable std::mutex mutex_;  // guards:
  std::vector<std::shared_ptr<const CompiledFunction>> parts_;
  std::list<std::shared_ptr<const FunctionPlan>> plans_;  // most recently used first
  std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace backplane::compiler
