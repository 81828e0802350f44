// Steps of a program, and the kernels that compute them.
#pragma once

#include <backplane/sdk/device.hpp>
#include <backplane/sdk/tensor_spec.hpp>

#include <functional>
#include <optional>
#include <stdexcept>

namespace backplane::sdk {

// One kernel: the nodes it computes, the values it reads and writes. By default one node, with
// operands and results exactly as the node lists them (BP_NONE where absent).
struct Step {
  std::vector<std::uint32_t> nodes;     // indices into the graph; empty: copies operand to result
  std::vector<std::uint32_t> operands;  // value indices
  std::vector<std::uint32_t> results;   // value indices
  bool is_copy() const { return nodes.empty(); }
};

// What the kernels of one call share beside its memory, where the device has such: its stream, say.
class CallContext {
 protected:
  ~CallContext() = default;
};

struct KernelCall {
  std::byte* const* operands;  // null where absent or empty; views are already applied
  std::byte* const* results;
  std::byte* scratch;              // scratch_bytes() of memory of this call
  CallContext* context = nullptr;  // as given to ProgramExecutable::run
};
// Prepared for one set of sizes. Immutable: run may be called by several threads at once.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual Status run(const KernelCall& call) const = 0;
  virtual std::uint64_t scratch_bytes() const { return 0; }
};

// What a factory sees of one step at one set of sizes.
class StepContext {
 public:
  StepContext(const GraphView& graph, const Step& step, const std::vector<TensorSpec>& specs,
              Dims dims)
      : graph_(graph), step_(step), specs_(specs), dims_(dims) {}
  const GraphView& graph() const { return graph_; }
  const Step& step() const { return step_; }
  NodeView node(std::size_t i = 0) const { return node_at(step_.nodes[i]); }
  // A node of the graph, with the numbers that it has at these sizes.
  NodeView node_at(std::uint32_t index) const { return graph_[index].at(dims_.values()); }
  const Dims& dims() const { return dims_; }
  const TensorSpec& value(std::uint32_t index) const { return specs_[index]; }
  const std::vector<TensorSpec>& specs() const { return specs_; }  // of all values
  bool has_operand(std::size_t i) const {
    return i < step_.operands.size() && step_.operands[i] != BP_NONE;
  }
  const TensorSpec& operand(std::size_t i) const { return specs_[step_.operands[i]]; }
  // Whether one lies in a layout of the plugin's own.
  bool has_opaque_operand() const {
    return std::any_of(step_.operands.begin(), step_.operands.end(), [this](std::uint32_t value) {
      return value != BP_NONE && specs_[value].layout.kind == BP_LAYOUT_OPAQUE;
    });
  }
  // Of a value among the step's operands.
  std::optional<std::size_t> find_position(std::uint32_t value) const {
    const auto at = std::find(step_.operands.begin(), step_.operands.end(), value);
    if (at == step_.operands.end()) return std::nullopt;
    return static_cast<std::size_t>(at - step_.operands.begin());
  }
  std::size_t position(std::uint32_t value) const {
    if (const auto at = find_position(value)) return *at;
    throw std::logic_error("a value that the step does not bind");
  }
  const TensorSpec& result(std::size_t i = 0) const { return specs_[step_.results[i]]; }
  // Integer and integer-list attributes of node(0) with dim classes resolved.
  std::int64_t int_or(std::string_view name, std::int64_t fallback) const {
    return dims_.attribute(node(), name, fallback);
  }
  std::vector<std::int64_t> ints(std::string_view name) const { return dims_.list(node(), name); }

 private:
  const GraphView& graph_;
  const Step& step_;
  const std::vector<TensorSpec>& specs_;
  Dims dims_;
};
using KernelFactory = std::function<Result<std::unique_ptr<Kernel>>(const StepContext&)>;

// May give values that never leave the program other strides than the graph's, before anything is
// placed. Results of view ops must still be views of their operand.
using Relayout = std::function<void(const GraphView&, std::vector<TensorSpec>&)>;
// One step per node, in order.
inline std::vector<Step> step_per_node(const GraphView& graph) {
  std::vector<Step> steps;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    Step step{{static_cast<std::uint32_t>(i)}, {}, {}};
    for (std::size_t k = 0; k < graph[i].operand_count(); ++k)
      step.operands.push_back(graph[i].operand_index(k));
    for (std::size_t k = 0; k < graph[i].result_count(); ++k)
      step.results.push_back(graph[i].result_index(k));
    steps.push_back(std::move(step));
  }
  return steps;
}

}  // namespace backplane::sdk
