// The graph IR: values, nodes and dim classes in flat vectors, in topological order. A Graph owns
// everything; ids are indices that stay valid for its whole life. Nodes are never reordered in
// place: a pass rebuilds with a Builder or marks nodes dead and calls compact().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "core/base/status.h"
#include "core/ir/op_table.h"
#include "core/ir/types.h"

namespace backplane::ir {

using ValueId = std::uint32_t;
using NodeId = std::uint32_t;
inline constexpr std::uint32_t kNone = 0xffffffffu;  // absent operand, no producer

// All sizes, strides and integers of the graph that are equal in every call.
struct DimClass {
  std::string name;        // "s0"
  std::string expression;  // over other classes' names, "s0*s1"; empty: bound from an input's size
  std::int64_t min = 2, max = INT64_MAX;
  std::int64_t divisor = 1;
  std::int64_t hint = 0;  // the value at compile time
};

// What an operator's non-tensor argument can be. Dim covers every integer; std::monostate is None.
using AttributeValue = std::variant<std::monostate, bool, Dim, double, std::string, DType,
                                    std::vector<Dim>, std::vector<double>, std::vector<bool>>;
struct Attribute {
  std::string name;
  AttributeValue value;
  friend bool operator==(const Attribute&, const Attribute&) = default;
};

enum class ValueKind : std::uint8_t {
  kInput,     // graph border
  kConstant,  // data known at compile time
  kResult,    // of a node
};

// Dense little-endian content of a constant.
struct ConstantData {
  std::vector<std::uint8_t> bytes;
};

struct Value {
  std::string name;  // text form %name; unique
  TensorType type;
  ValueKind kind = ValueKind::kResult;
  NodeId producer = kNone;
  std::uint32_t result_index = 0;
  bool is_static = false;       // a weight: same tensor at every call, changes rarely
  bool is_saved = false;        // crosses from a forward to its backward
  bool is_host_scalar = false;  // rank 0, produced and consumed on the host, bound by value
  std::shared_ptr<const ConstantData> constant;  // kConstant only
};

struct Node {
  const OpInfo* op = nullptr;
  std::vector<ValueId> operands;  // kNone where an optional operand is absent
  // The one operand that is a list (aten.cat), flattened in place: [list_first, +list_count).
  std::uint32_t list_first = 0, list_count = 0;
  std::vector<ValueId> results;
  std::vector<Attribute> attributes;  // sorted as the schema lists them
  std::string location;               // "model.py:12"
  std::string host_reason;            // why PyTorch alone gives its result; empty: plugins may, too

  const Attribute* find_attribute(std::string_view name) const;
};

class Graph {
 public:
  std::string name = "graph";
  std::vector<DimClass> dim_classes;
  std::vector<Value> values;
  std::vector<Node> nodes;  // topological order
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;  // a value may occur twice, and may be an input; never kNone

  // Appends; the name is made unique. Dangling operands are a bug of the caller.
  ValueId add_input(std::string_view name, TensorType type);
  ValueId add_constant(std::string_view name, TensorType type,
                       std::shared_ptr<const ConstantData> data);
  // Results get `types.size()` new values named after `name` (empty: the next number).
  NodeId add_node(const OpInfo* op, std::vector<ValueId> operands,
                  std::vector<Attribute> attributes, std::vector<TensorType> types,
                  std::string_view name = {});
  // A node of another graph with other operands and types.
  NodeId add_node_like(const Node& like, std::vector<ValueId> operands,
                       std::vector<TensorType> types, std::string_view name = {});

  // Nodes that read each value, in order; rebuilt on every call: O(edges).
  std::vector<std::vector<NodeId>> users() const;
  void replace_all_uses(ValueId from, ValueId to);
  // Drops nodes whose op is pure and whose results nobody reads, then constants without user.
  // Renumbers nodes and values; inputs stay. Returns how many nodes went.
  std::size_t eliminate_dead();

  std::int64_t hint_of(Dim dim) const;  // the number, or the class's hint
  std::vector<std::int64_t> hint_dims(const TensorType& type) const;
  std::int64_t hint_bytes(ValueId value) const;  // elements at the hints times element size

 private:
  std::string unique_name(std::string_view wish);
  std::uint32_t next_number_ = 0;
  // Names of values[0, names_seen_); caught up with `values` on demand.
  std::unordered_set<std::string> names_;
  std::size_t names_seen_ = 0;
  std::unordered_map<std::string, std::uint32_t> next_suffix_;
};

// As of its op, or by its attributes: attention with dropout draws.
bool has_effects(const Node& node);

}  // namespace backplane::ir
