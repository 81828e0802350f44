// One small graph compiled for a device, and its calls: what eager operators become.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/ir/graph.h"
#include "core/runtime/plugin/executable.h"
#include "core/torch/device/devices.h"

namespace backplane::device {

// What is bound to one input of the graph: a tensor on the device, or a number by value.
struct Argument {
  at::Tensor tensor;   // undefined: `number` is bound, as an element of the input's type
  c10::Scalar number;  // of tensors on the host without dimensions
};

class Operation {
 public:
  // Fails with the plugin's reason where the device does not take every node of the graph.
  // `absent` are positions of results that are no outputs: gradients that were not asked for.
  static Result<std::shared_ptr<const Operation>> compile(TorchDevice& device, ir::Graph graph,
                                                          std::vector<std::size_t> absent = {});

  // The results in new memory, in the strides of the graph. Submits to the device's queue. A
  // failure is that of the call; what fails later is told by whoever waits for the queue.
  Result<std::vector<at::Tensor>> try_run(std::span<const Argument> arguments) const;
  std::vector<at::Tensor> run(std::span<const Argument> arguments) const {
    return unwrap(try_run(arguments));
  }
  // The one output into memory that is bound as it is: see fits().
  Status try_run_into(std::span<const Argument> arguments, const at::Tensor& output) const;
  void run_into(std::span<const Argument> arguments, const at::Tensor& output) const {
    check(try_run_into(arguments, output));
  }
  // Whether the one output can be written to `target` where it is: aligned, in the strides of the
  // graph, and apart from all inputs.
  bool fits(std::span<const Argument> arguments, const at::Tensor& target) const;

  struct Output {
    std::vector<std::int64_t> sizes, strides;
    at::ScalarType dtype = at::kFloat;
  };
  const Output& output(std::size_t i) const { return outputs_[i]; }
  std::size_t output_count() const { return outputs_.size(); }

 private:
  Operation(TorchDevice& device, ir::Graph graph) : device_(device), graph_(std::move(graph)) {}
  Status execute(std::span<const Argument> arguments, std::span<const at::Tensor> outputs) const;

  TorchDevice& device_;
  ir::Graph graph_;
  std::unique_ptr<runtime::Executable> executable_;
  std::uint64_t workspace_bytes_ = 0;
  bool may_be_refused_ = false;  // for its data, an index out of range
  std::vector<Output> outputs_;
  std::vector<std::size_t> absent_;  // ascending
};

// Operations by everything that decides them. `make` is called where the key is new; a refusal is
// kept as well. Thread-safe; two threads may make the same one, and the first is kept. Of more than
// BACKPLANE_DEVICE_OPERATIONS those that were not used for long are let go.
using OperationResult = Result<std::shared_ptr<const Operation>>;
OperationResult find_operation(const std::string& key,
                               const std::function<OperationResult()>& make);
std::size_t operation_count();

// A key, piece by piece. It begins with the default dtype, which results of integers have.
class KeyWriter {
 public:
  explicit KeyWriter(std::string& out) : out_(out) {
    out_.clear();
    add(c10::get_default_dtype_as_scalartype());
  }
  template <class T>
  void add(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void add_text(std::string_view text) {
    add(text.size());
    out_.append(text);
  }
  void add_list(at::IntArrayRef list) {
    add(list.size());
    out_.append(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(std::int64_t));
  }
  // Type, sizes, strides, and where it starts if the device cannot bind it there.
  void add_tensor(const at::Tensor& tensor);

 private:
  std::string& out_;
};

}  // namespace backplane::device
