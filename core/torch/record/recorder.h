// A program as a graph: its forward recorded under autograd, then autograd's own backward recorded
// with it. The joint graph that partitioning, passes and the runtime take.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
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
  bool is_inference = false;  // autograd saves it for no backward
  bool is_buffer = false;     // RecordOptions::buffers
  bool is_mutated = false;
  // What its version moves by: not by writes through x.data, but by views that are turned in place.
  std::uint32_t counted_writes = 0;
  std::uint32_t new_value = kAbsent;  // is_mutated: position in graph.outputs
  bool new_value_requires_grad = false;
  std::uint32_t tangent = kAbsent;   // new_value_requires_grad: position in graph.inputs
  std::uint32_t gradient = kAbsent;  // position in graph.outputs; absent: the gradient is zero
  std::uint32_t turn = 0;            // gradient: how many others autograd has at hand before it
  // Those of the recording, counted from 0, whose outputs have it in their history. What comes of
  // them may be zeros that no operator of the graph computes from a tangent.
  std::vector<std::uint32_t> reached_by;
  std::int64_t storage_offset = 0;  // where it started in its storage
};

enum class OutputKind : std::uint8_t {
  kPlain,           // no tensor: a number, None
  kFresh,           // memory of its own
  kArgument,        // the argument `base` itself
  kViewOfArgument,  // shares the memory of argument `base`
  kViewOfOutput,    // a part of the output `base`, whose autograd differentiates it
  // Shares memory with the output `base` (itself for the first of them), but neither is a part of
  // the other, or only one is differentiated: each has a tangent of its own.
  kSharedWithOutput,
};

struct OutputInfo {
  OutputKind kind = OutputKind::kFresh;
  std::uint32_t base = kAbsent;
  std::uint32_t graph_output = kAbsent;  // position in graph.outputs of its content
  c10::IValue plain;                     // kPlain
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> sizes, strides;
  std::int64_t storage_offset = 0;  // as the program sees it: from the start of the storage
  bool requires_grad = false;
  std::uint32_t version = 0;       // kFresh, kSharedWithOutput, or counts_own_writes
  bool is_view = false;            // as autograd sees it
  bool is_detached = false;        // shares memory with its base, of which autograd knows nothing
  bool counts_own_writes = false;  // and PyTorch counts its writes apart from those of its base
  std::uint32_t counts_with = kAbsent;  // kSharedWithOutput: the first that has its version counter
  bool is_bare = false;         // a view made where gradients are off: no gradient goes through it
  bool is_one_of_many = false;  // a view that autograd lets nobody write, as those of chunk
  std::uint32_t same_as = kAbsent;  // kViewOfOutput: no part, but that very tensor
  bool is_hidden = false;  // no result, but what some are parts of; comes behind all results
  Pending pending;         // kFresh: what the caller is to find pending on it
  std::uint32_t tangent = kAbsent;  // requires_grad: position in graph.inputs
};

// Where the inputs and outputs of a graph are: on the host, or on one device.
struct Placement {
  std::optional<c10::Device> device;  // none: everything is on the host
  std::vector<bool> inputs, outputs;  // on the device; by position in the graph's
};

// What another output is computed from.
struct GradientSource {
  bool is_view = false;        // an output of kind kViewOfArgument or kViewOfOutput
  std::uint32_t position = 0;  // is_view: of the output; else of its tangent, counted from 0
  bool operator==(const GradientSource&) const = default;
};

// One of autograd's nodes, or several that are alike, that has saved something for the backward: a
// backward that comes by it and keeps no graph lets that go.
struct SavingNode {
  std::vector<bool> tangents;      // of the recording: those whose outputs it is behind
  std::vector<bool> gradients;     // by input of the forward: those that are behind it
  std::vector<ir::ValueId> saved;  // of the graph; while it is recorded, of the tape
};

struct Recorded {
  ir::Graph graph;
  std::size_t forward_node_count = 0;  // nodes before it are the forward
  partition::JointBorder border;
  std::vector<ArgumentInfo> arguments;
  std::vector<OutputInfo> outputs;
  // By tangent: what is in the history of its output, all the way.
  std::vector<std::vector<GradientSource>> sources_of_tangent;
  std::vector<SavingNode> saving_nodes;
  bool grad_mode_after = true;        // what the program leaves the thread's grad mode at
  bool draws = false;                 // random numbers
  bool recomputes = false;            // a checkpoint: eager mode saves none of its results
  bool reads_offsets = false;         // holds for the storage offsets of these arguments only
  Placement placement;                // of the joint graph
  std::vector<at::Tensor> constants;  // as Lowered::constants
  // The numbers among them, by the content of their constant, which passes keep.
  std::unordered_map<std::shared_ptr<const ir::ConstantData>, at::Tensor> numbers;
  std::size_t call_count = 0;  // recorded, with those that nobody reads
  ShapeCounts shapes;
  std::shared_ptr<const ProgramTape> program;  // where it has a backward
  std::vector<std::string> python_shapes;      // operators whose shape came from a Python function
};

// The program: takes one tensor for each argument. Its exceptions become a Status.
using Program = std::function<std::vector<c10::IValue>(const std::vector<at::Tensor>&)>;

struct RecordOptions {
  std::string name = "joint";
  bool with_backward = true;                    // where an argument requires gradients
  std::vector<std::string> argument_names;      // missing ones are "primals_1", ...
  std::vector<std::uint32_t> static_arguments;  // weights and buffers
  std::vector<std::uint32_t> buffers;           // those of them that programs write
  // One input for arguments that are the same tensor; else the graph holds for others as well.
  bool merge_equal_arguments = true;
  Locate locate;  // for the nodes' locations; called from within the program's calls
};

// Runs `program` once on tensors without memory; the given arguments are looked at, not read. Any
// thread, without the GIL. kUnsupported, with the reason, for what a graph cannot say; nothing the
// program did to its arguments remains.
Result<Recorded> record(const Program& program, std::span<const at::Tensor> arguments,
                        const RecordOptions& options);

}  // namespace backplane::record
