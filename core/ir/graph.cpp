#include "core/ir/graph.h"

#include <algorithm>
#include <utility>

namespace backplane::ir {

const Attribute* Node::find_attribute(std::string_view attribute_name) const {
  for (const Attribute& attribute : attributes) {
    if (attribute.name == attribute_name) return &attribute;
  }
  return nullptr;
}

std::string Graph::unique_name(std::string_view wish) {
  // Values may have been appended or renumbered without us since the last call.
  if (names_seen_ > values.size()) {
    names_.clear();
    names_seen_ = 0;
  }
  for (; names_seen_ < values.size(); ++names_seen_) names_.insert(values[names_seen_].name);

  std::string unique(wish);
  if (unique.empty()) {
    do {
      unique = std::to_string(next_number_++);
    } while (names_.contains(unique));
  } else if (names_.contains(unique)) {
    std::uint32_t& suffix = next_suffix_[unique];
    do {
      unique = std::string(wish) + "_" + std::to_string(++suffix);
    } while (names_.contains(unique));
  }
  return unique;
}

ValueId Graph::add_input(std::string_view wish, TensorType type) {
  Value value;
  value.name = unique_name(wish);
  value.type = std::move(type);
  value.kind = ValueKind::kInput;
  const auto id = static_cast<ValueId>(values.size());
  values.push_back(std::move(value));
  inputs.push_back(id);
  return id;
}

ValueId Graph::add_constant(std::string_view wish, TensorType type,
                            std::shared_ptr<const ConstantData> data) {
  Value value;
  value.name = unique_name(wish);
  value.type = std::move(type);
  value.kind = ValueKind::kConstant;
  value.constant = std::move(data);
  const auto id = static_cast<ValueId>(values.size());
  values.push_back(std::move(value));
  return id;
}

NodeId Graph::add_node(const OpInfo* op, std::vector<ValueId> operands,
                       std::vector<Attribute> attributes, std::vector<TensorType> types,
                       std::string_view wish) {
  const auto id = static_cast<NodeId>(nodes.size());
  Node node;
  node.op = op;
  if (op->operands.find("[]") != std::string_view::npos) {
    const std::vector<OperandInfo> schema = operand_list(*op);
    const auto list = std::find_if(schema.begin(), schema.end(),
                                   [](const OperandInfo& operand) { return operand.is_list; });
    node.list_first = static_cast<std::uint32_t>(list - schema.begin());
    if (operands.size() + 1 >= schema.size()) {
      node.list_count = static_cast<std::uint32_t>(operands.size() + 1 - schema.size());
    }
  }
  node.operands = std::move(operands);
  node.attributes = std::move(attributes);
  node.results.reserve(types.size());
  for (std::size_t i = 0; i < types.size(); ++i) {
    Value value;
    value.name = unique_name(wish);
    value.type = std::move(types[i]);
    value.producer = id;
    value.result_index = static_cast<std::uint32_t>(i);
    node.results.push_back(static_cast<ValueId>(values.size()));
    values.push_back(std::move(value));
  }
  nodes.push_back(std::move(node));
  return id;
}

NodeId Graph::add_node_like(const Node& like, std::vector<ValueId> operands,
                            std::vector<TensorType> types, std::string_view wish) {
  const NodeId id = add_node(like.op, std::move(operands), like.attributes, std::move(types), wish);
  Node& made = nodes[id];
  made.list_first = like.list_first;
  made.list_count = like.list_count;
  made.location = like.location;
  made.host_reason = like.host_reason;
  return id;
}

std::vector<std::vector<NodeId>> Graph::users() const {
  std::vector<std::vector<NodeId>> users(values.size());
  for (NodeId n = 0; n < nodes.size(); ++n) {
    for (ValueId operand : nodes[n].operands) {
      if (operand == kNone) continue;
      std::vector<NodeId>& list = users[operand];
      if (list.empty() || list.back() != n) list.push_back(n);
    }
  }
  return users;
}

void Graph::replace_all_uses(ValueId from, ValueId to) {
  for (Node& node : nodes) std::replace(node.operands.begin(), node.operands.end(), from, to);
  std::replace(outputs.begin(), outputs.end(), from, to);
}

bool has_effects(const Node& node) {
  if (has_effects(*node.op)) return true;
  if (node.op->op_class != OpClass::kAttention) return false;
  const Attribute* dropout = node.find_attribute("dropout_p");
  if (dropout == nullptr) return false;
  const double* p = std::get_if<double>(&dropout->value);
  return p == nullptr || *p != 0;
}

std::size_t Graph::eliminate_dead() {
  std::vector<bool> is_read(values.size(), false);
  for (ValueId output : outputs) is_read[output] = true;
  std::vector<bool> is_live(nodes.size(), false);
  for (std::size_t n = nodes.size(); n-- > 0;) {
    const Node& node = nodes[n];
    is_live[n] = has_effects(node) || std::any_of(node.results.begin(), node.results.end(),
                                                  [&](ValueId result) { return is_read[result]; });
    if (!is_live[n]) continue;
    for (ValueId operand : node.operands) {
      if (operand != kNone) is_read[operand] = true;
    }
  }

  std::vector<NodeId> new_node(nodes.size(), kNone);
  NodeId node_count = 0;
  for (NodeId n = 0; n < nodes.size(); ++n) {
    if (is_live[n]) new_node[n] = node_count++;
  }
  std::vector<ValueId> new_value(values.size(), kNone);
  ValueId value_count = 0;
  for (ValueId v = 0; v < values.size(); ++v) {
    const Value& value = values[v];
    const bool keep =
        value.kind == ValueKind::kInput || (value.kind == ValueKind::kConstant && is_read[v]) ||
        (value.kind == ValueKind::kResult && value.producer != kNone && is_live[value.producer]);
    if (keep) new_value[v] = value_count++;
  }
  const std::size_t removed = nodes.size() - node_count;
  if (removed == 0 && value_count == values.size()) return 0;

  const auto renumber = [&](std::vector<ValueId>& ids) {
    for (ValueId& id : ids) {
      if (id != kNone) id = new_value[id];
    }
  };
  std::vector<Value> kept_values;
  kept_values.reserve(value_count);
  for (ValueId v = 0; v < values.size(); ++v) {
    if (new_value[v] == kNone) continue;
    Value& value = values[v];
    if (value.producer != kNone) value.producer = new_node[value.producer];
    kept_values.push_back(std::move(value));
  }
  std::vector<Node> kept_nodes;
  kept_nodes.reserve(node_count);
  for (NodeId n = 0; n < nodes.size(); ++n) {
    if (new_node[n] == kNone) continue;
    renumber(nodes[n].operands);
    renumber(nodes[n].results);
    kept_nodes.push_back(std::move(nodes[n]));
  }
  renumber(inputs);
  renumber(outputs);
  values = std::move(kept_values);
  nodes = std::move(kept_nodes);
  names_.clear();
  names_seen_ = 0;
  return removed;
}

std::int64_t Graph::hint_of(Dim dim) const {
  return dim.is_class() ? dim_classes[dim.class_index()].hint : dim.number();
}

std::vector<std::int64_t> Graph::hint_dims(const TensorType& type) const {
  std::vector<std::int64_t> dims;
  dims.reserve(type.dims.size());
  for (Dim dim : type.dims) dims.push_back(hint_of(dim));
  return dims;
}

std::int64_t Graph::hint_bytes(ValueId value) const {
  const TensorType& type = values[value].type;
  std::int64_t bytes = dtype_bytes(type.dtype);
  for (Dim dim : type.dims) bytes *= hint_of(dim);
  return bytes;
}

}  // namespace backplane::ir
