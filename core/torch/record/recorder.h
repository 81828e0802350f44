// A program as a graph: its forward recorded under autograd, then autograd's own backward recorded
// with it. The joint graph that partitioning, passes and the runtime take.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/ir/graph.h"
#include "core/partition/joint_cut.h"
#include "core/torch/record/session.h"

namespace backplane::record {

inline constexpr std::uint32_t kAbsent = 0xffffffffu;

// What argument i of the program is.
struct ArgumentInfo {
  std::uint32_t graph_input = kAbsent;  // position in graph.inputs; shared by equal arguments
  bool requires_grad = false;
  bool is_mutated = false;
  std::uint32_t new_value = kAbsent;  // is_mutated: position in graph.outputs
  bool new_value_requires_grad = false;
  std::uint32_t tangent = kAbsent;   // new_value_requires_grad: position in graph.inputs
  std::uint32_t gradient = kAbsent;  // position in graph.outputs; absent: the gradient is zero
};

enum class OutputKind : std::uint8_t {
  kPlain,           // no tensor: a number, None
  kFresh,           // memory of its own
  kArgument,        // the argument `base` itself
  kViewOfArgument,  // shares the memory of argument `base`
  kViewOfOutput,    // shares the memory of the earlier output `base`
};

struct OutputInfo {
  OutputKind kind = OutputKind::kFresh;
  std::uint32_t base = kAbsent;
  std::uint32_t graph_output = kAbsent;  // position in graph.outputs of its content
  c10::IValue plain;                     // kPlain
  std::vector<std::int64_t> sizes, strides;
  std::int64_t storage_offset = 0;  // as the program sees it: from the start of the storage
  bool requires_grad = false;
  std::uint32_t tangent = kAbsent;  // requires_grad: position in graph.inputs
};

struct Recorded {
  ir::Graph graph;
  std::size_t forward_node_count = 0;  // nodes before it are the forward
  partition::JointBorder border;
  std::vector<ArgumentInfo> arguments;
  std::vector<OutputInfo> outputs;
  bool grad_mode_after = true;        // what the program leaves the thread's grad mode at
  std::vector<at::Tensor> constants;  // as Lowered::constants
  std::size_t call_count = 0;         // recorded, with those that nobody reads
  ShapeCounts shapes;
  std::vector<std::string> python_shapes;  // operators whose shape came from a Python function
};

// The program: takes one tensor for each argument. Its exceptions become a Status.
using Program = std::function<std::vector<c10::IValue>(const std::vector<at::Tensor>&)>;

struct RecordOptions {
  std::string name = "joint";
  bool with_backward = true;                    // where an argument requires gradients
  std::vector<std::string> argument_names;      // missing ones are "primals_1", ...
  std::vector<std::uint32_t> static_arguments;  // weights and buffers
};

// Runs `program` once on tensors without memory; the given arguments are looked at, not read. Any
// thread, without the GIL. kUnsupported, with the reason, for what a graph cannot say; nothing the
// program did to its arguments remains.
Result<Recorded> record(const Program& program, std::span<const at::Tensor> arguments,
                        const RecordOptions& options);

}  // namespace backplane::record
