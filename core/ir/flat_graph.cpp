#include "core/ir/flat_graph.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <variant>

namespace backplane::ir {
namespace {

std::uint64_t hash_bytes(const void* data, std::size_t count) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  std::uint64_t hash = 14695981039346656037ULL;
  for (std::size_t i = 0; i < count; ++i) hash = (hash ^ bytes[i]) * 1099511628211ULL;
  return hash;
}

template <class T>
T read(const ConstantData& data) {
  T value;
  std::memcpy(&value, data.bytes.data(), sizeof value);
  return value;
}

std::uint64_t bits_of(double value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Whether an integer attribute of this name is a place or a choice, not an amount: which axis,
// which mode. What it is belongs to the structure.
bool is_choice(std::string_view name) {
  return name.starts_with("dim") || name.ends_with("dim") || name.ends_with("axis") ||
         name.ends_with("mode") || name.starts_with("expand") || name == "reduction" ||
         name == "groups" || name == "normalization";
}

class Flattening {
 public:
  explicit Flattening(const Graph& graph) : graph_(graph) {}

  FlatGraph run() {
    add(graph_.inputs.size());
    for (const ValueId v : graph_.inputs) {
      add(v);
      add_type(graph_.values[v].type);
      add(graph_.values[v].is_static);
    }
    for (ValueId v = 0; v < graph_.values.size(); ++v)
      if (graph_.values[v].kind == ValueKind::kConstant) add_constant(v);
    add(graph_.nodes.size());
    for (const Node& node : graph_.nodes) add_node(node);
    add(graph_.outputs.size());
    for (const ValueId v : graph_.outputs) add(v);
    collect_numbers();
    return std::move(out_);
  }

 private:
  void add(std::uint64_t token) { out_.structure.push_back(token); }
  void add_text(std::string_view text) {
    add(text.size());
    add(hash_bytes(text.data(), text.size()));
  }
  static bool is_empty(const TensorType& type) {
    return std::ranges::any_of(type.dims, [](Dim d) { return d.number() == 0; });
  }
  void add_type(const TensorType& type) {
    add(static_cast<std::uint64_t>(type.dtype) << 32U | type.rank());
    add(is_empty(type));
  }

  void add_constant(ValueId v) {
    const Value& value = graph_.values[v];
    add(v);
    add_type(value.type);
    std::int64_t number = 0;
    const bool whole = is_whole_number(value, number);
    add(whole);
    add(whole && number == 0);
    if (whole) return;
    for (const Dim d : value.type.dims) add(static_cast<std::uint64_t>(d.number()));
    add(value.constant->bytes.size());
    add(hash_bytes(value.constant->bytes.data(), value.constant->bytes.size()));
  }

  void add_node(const Node& node) {
    add_text(node.op->name);
    add(node.host_reason.empty());  // it may be about the numbers
    add(node.operands.size());
    for (const ValueId v : node.operands) add(v);
    add(static_cast<std::uint64_t>(node.list_first) << 32U | node.list_count);
    add(node.attributes.size());
    for (const Attribute& a : node.attributes) {
      add_text(a.name);
      add(a.value.index());
      std::visit([&](const auto& value) { add_value(value); }, a.value);
      if (is_choice(a.name)) add_choice(a.value);
      if (a.name == "other") add(is_zero(a.value));  // PyTorch refuses to divide integers by it
    }
    add(node.results.size());
    for (const ValueId v : node.results) {
      add(v);
      if (v != kNone) add_type(graph_.values[v].type);
    }
  }

  void add_value(std::monostate) {}
  void add_value(bool value) { add(value); }
  void add_value(Dim) {}
  void add_value(double value) { add(bits_of(value)); }
  void add_value(const std::string& value) { add_text(value); }
  void add_value(DType value) { add(static_cast<std::uint64_t>(value)); }
  void add_value(const std::vector<Dim>& list) { add(list.size()); }
  void add_value(const std::vector<double>& list) {
    add(list.size());
    for (const double value : list) add(bits_of(value));
  }
  void add_value(const std::vector<bool>& list) {
    add(list.size());
    for (const bool value : list) add(value);
  }

  static bool is_zero(const AttributeValue& value) {
    const auto* number = std::get_if<Dim>(&value);
    return number && *number == Dim(0);
  }
  void add_choice(const AttributeValue& value) {
    if (const auto* single = std::get_if<Dim>(&value))
      add(static_cast<std::uint64_t>(single->number()));
    if (const auto* list = std::get_if<std::vector<Dim>>(&value))
      for (const Dim d : *list) add(static_cast<std::uint64_t>(d.number()));
  }

  void collect_numbers() {
    visit_numbers(
        graph_, [&](const TensorType& type) { collect(type); },
        [&](const Dim& dim) { collect(dim); },
        [&](ValueId v) {
          std::int64_t number = 0;
          is_whole_number(graph_.values[v], number);
          out_.numbers.push_back(number);
        });
  }

  void collect(Dim dim) { out_.numbers.push_back(dim.number()); }
  void collect(const TensorType& type) {
    const bool empty = is_empty(type);
    for (const Dim d : type.dims) collect(d);
    for (std::size_t i = 0; i < type.strides.size(); ++i) {
      if (empty || type.dims[i].number() == 1)
        out_.numbers.push_back(kAnyNumber);
      else
        collect(type.strides[i]);
    }
  }

  const Graph& graph_;
  FlatGraph out_;
};

}  // namespace

bool is_whole_number(const Value& constant, std::int64_t& out_number) {
  if (constant.type.rank() != 0 || !constant.constant) return false;
  const ConstantData& data = *constant.constant;
  double number = 0;
  switch (constant.type.dtype) {
    case DType::kInt64:
      out_number = read<std::int64_t>(data);
      return out_number != kAnyNumber;
    case DType::kInt32:
      out_number = read<std::int32_t>(data);
      return true;
    case DType::kFloat32:
      number = static_cast<double>(read<float>(data));
      break;
    case DType::kFloat64:
      number = read<double>(data);
      break;
    default:
      return false;
  }
  // Exact in either type.
  constexpr double kLimit = 16777216;
  if (!(std::fabs(number) <= kLimit) || number != std::floor(number)) return false;
  if (number == 0 && std::signbit(number)) return false;
  out_number = static_cast<std::int64_t>(number);
  return true;
}

FlatGraph flatten(const Graph& graph) { return Flattening(graph).run(); }

}  // namespace backplane::ir
