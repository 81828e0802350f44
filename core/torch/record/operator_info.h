// What the recorder needs to know of an operator, worked out once per process.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/ir/op_table.h"
#include "core/torch/record/argument_checks.h"
#include "core/torch/record/operand_fit.h"

namespace backplane::record {

enum class ArgumentKind : std::uint8_t { kPlain, kTensor, kTensorList, kOptionalTensorList };

// How the shape of results is found. The first that applies.
enum class ShapeRoute : std::uint8_t {
  kRule,        // one of our own C++ functions
  kStructured,  // the operator's C++ shape function, its computation left out
  kComposite,   // the C++ kernel for any device, on meta tensors
  kMeta,        // the Meta key's kernel, which may be Python
  kRunOnZeros,  // PyTorch has none: the operator runs on zeros, its values thrown away
};

// Operators that take tensors of several devices. The others take one device's, and tensors without
// dimensions on the CPU beside them.
enum class DeviceMix : std::uint8_t {
  kNone,
  kIndices,  // what is indexed decides; index tensors may be on the CPU
  kAny,
};

// What an operator looks at and may refuse: an index out of range, a division by zero.
enum class RefusedValues : std::uint8_t { kNone, kOfIntegerOperands, kOfIntegerResults, kAny };

// Replaces the arguments on top of the stack by results, or leaves them and returns false.
using ShapeRule = bool (*)(torch::jit::Stack& stack);

struct OperatorInfo {
  explicit OperatorInfo(const c10::OperatorHandle& handle);

  c10::OperatorHandle handle;
  std::string schema_name, overload;  // "aten::add", "Tensor"
  std::uint64_t removals = 0;         // of operators, before this was looked at
  std::string name;                   // as the IR writes it: "aten.add.Tensor", "aten.relu"
  const ir::OpInfo* op = nullptr;
  std::vector<ArgumentKind> arguments;
  std::vector<bool> is_number;  // by argument: of Python's, of any kind
  std::size_t list_count = 0;   // tensor lists among the arguments
  int device_argument = -1;     // position, -1: none
  int dtype_argument = -1;      // position, -1: none
  int generator_argument = -1;  // position, -1: none
  std::size_t out_count = 0;    // arguments that are written as results of an out= overload
  bool writes = false;          // an argument is written
  bool refuses_casts = false;   // writes a result, of a dtype that can be cast to the written one
  bool changes_layout = false;  // resizes, transposes or replaces an argument itself
  bool depends_on_layout = false;  // how an operand lies decides between view and copy
  bool is_identity = false;        // detach, alias, lift: another name of the same value
  bool is_composite = false;       // has only a CompositeImplicitAutograd kernel
  bool gives_new_values = false;   // no draws, no views
  bool depends_on_values = false;  // numbers or shapes of results come from values
  bool is_random = false;
  bool is_pointwise = false;  // makes each element of those in the same place
  bool casts_inside = false;  // its kernel calls operators that autocast knows
  bool reads_offset = false;  // takes a storage offset as a number, or refuses some
  DeviceMix device_mix = DeviceMix::kNone;
  RefusedValues refused_values = RefusedValues::kNone;
  bool is_opaque = false;  // its result has no strides, although its shape function gives some
  bool asks_for_memory = false;  // a fact of the memory that real tensors have
  int sparse_argument = -1;      // position of what makes it one, -1: none
  bool meta_is_python = false;   // the Meta key's kernel
  ArgumentCheck check = nullptr;
  OperandFit fit = nullptr;
  bool leaves_shapes_to_autograd = false;  // a gradient whose operands nothing checks
  bool asks_for_shapes = false;  // of the CPU's kernel: nothing else looks at all operands
  ShapeRule rule = nullptr;
  ShapeRoute route = ShapeRoute::kMeta;
  // A kComposite kernel that turned out not to run on meta tensors.
  mutable std::atomic<bool> composite_failed{false};

  const OperatorInfo* substitute = nullptr;  // same arguments, same meaning, no lazy bits

  const OperatorInfo& recorded_as() const { return substitute ? *substitute : *this; }
  std::size_t argument_count() const { return arguments.size(); }
};

DeviceMix device_mix(std::string_view schema_name);  // "aten::index"

// Thread-safe; the reference is good for ever.
const OperatorInfo& operator_info(const c10::OperatorHandle& handle);

}  // namespace backplane::record
