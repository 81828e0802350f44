// The one table of operators: a row per op, read by printer, parser, verifier, recorder, passes,
// partitioner, the ABI's view of a graph and docs/ops.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace backplane::ir {

enum class OpClass : std::uint8_t {
  kPointwise,  // result shape = broadcast of the operands
  kReduction,
  kView,      // results alias operand 0; metadata only
  kMovement,  // copies elements without arithmetic
  kMatmul,
  kConvolution,
  kPooling,
  kNormalization,  // norms and softmaxes, forward and backward
  kAttention,
  kIndexing,  // gather, scatter, embedding
  kFactory,   // no tensor operand, or only its shape
  kRandom,    // draws from a generator; never folded, duplicated or recomputed
  kOther,
};

// How the verifier checks result types; kTrusted takes what the importer says.
enum class ShapeRule : std::uint8_t { kTrusted, kBroadcast, kSameAsFirst, kMatmul, kView };

// FLOPs: per result element, times the contracted length for kMatmul and kConvolution.
struct OpInfo {
  std::string_view name;      // "aten.add.Tensor"; the default overload has no suffix: "aten.relu"
  std::string_view operands;  // tensor arguments in schema order, "self, other", "tensors[]",
                              // "self, indices[]?, values"; a '?' marks an optional one
  OpClass op_class = OpClass::kOther;
  ShapeRule shape_rule = ShapeRule::kTrusted;
  double flops_per_element = 1;
  std::uint32_t version = 1;  // of its meaning
  bool is_gradient = false;   // of another op, which its derivation makes
  bool data_dependent_shape = false;
  bool known = true;     // false: met in a recording, not in the table; only the fallback runs it
  bool mutates = false;  // writes an operand, or exists for a side effect such as an assertion
};

// The row of that name; null when the table has none.
const OpInfo* find_op(std::string_view name);
// As find_op, else an interned row with known = false. Thread-safe; the row lives for ever.
const OpInfo* find_or_intern_op(std::string_view name);
// All rows of the table, in name order.
std::span<const OpInfo> all_ops();

// `operands` of a row, taken apart. `name` points into the row.
struct OperandInfo {
  std::string_view name;
  bool is_list = false;      // "tensors[]"
  bool is_optional = false;  // for a list: its elements may be absent
};
std::vector<OperandInfo> operand_list(const OpInfo& op);

// The node must stay even where nobody reads it, and must not run twice: random draws, writes, and
// ops that the table does not know.
bool has_effects(const OpInfo& op);

std::string_view op_class_name(OpClass op_class);  // "pointwise"
std::string_view shape_rule_name(ShapeRule rule);  // "broadcast"

}  // namespace backplane::ir
