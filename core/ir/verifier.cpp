#include "core/ir/verifier.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "core/ir/dim_algebra.h"
#include "core/ir/expression.h"
#include "core/ir/literal.h"
#include "core/ir/shape_rules.h"
#include "core/ir/text.h"

namespace backplane::ir {
namespace {

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph) {}

  Status run() {
    BP_RETURN_IF_ERROR(dim_classes());
    BP_RETURN_IF_ERROR(values());
    BP_RETURN_IF_ERROR(border());
    const DimAlgebra algebra(graph_);
    std::vector<bool> is_defined(graph_.values.size(), false);
    for (ValueId v = 0; v < graph_.values.size(); ++v) {
      is_defined[v] = graph_.values[v].kind != ValueKind::kResult;
    }
    for (NodeId n = 0; n < graph_.nodes.size(); ++n) {
      Status status = node(n, is_defined);
      if (status.ok()) status = check_shape_rule(graph_, algebra, graph_.nodes[n]);
      if (!status.ok()) {
        return Status(Code::kVerifyError,
                      "Node \"" + print_node(graph_, n) + "\": " + status.message());
      }
    }
    for (ValueId output : graph_.outputs) {
      if (!is_defined[output]) {
        return error("Output %" + graph_.values[output].name + " is computed by no node.");
      }
    }
    return {};
  }

 private:
  static Status error(std::string message) {
    return Status(Code::kVerifyError, std::move(message));
  }

  bool is_valid(Dim dim) const {
    return !dim.is_class() || dim.class_index() < graph_.dim_classes.size();
  }

  Status dim_classes() const {
    std::unordered_map<std::string_view, std::uint32_t> index_of;
    const auto count = static_cast<std::uint32_t>(graph_.dim_classes.size());
    for (std::uint32_t c = 0; c < count; ++c) {
      const DimClass& dim_class = graph_.dim_classes[c];
      if (!is_identifier(dim_class.name) || is_reserved_word(dim_class.name)) {
        return error("The dim class name \"" + dim_class.name +
                     "\" is no identifier or has another meaning.");
      }
      if (!index_of.emplace(dim_class.name, c).second) {
        return error("Two dim classes are called " + dim_class.name + ".");
      }
      if (dim_class.min > dim_class.max || dim_class.divisor < 1) {
        return error("Dim class " + dim_class.name + " has an empty range or a divisor below 1.");
      }
    }
    std::vector<std::vector<std::uint32_t>> uses(count);
    for (std::uint32_t c = 0; c < count; ++c) {
      const DimClass& dim_class = graph_.dim_classes[c];
      if (dim_class.expression.empty()) continue;
      const auto steps = parse_expression(
          dim_class.expression, [&](std::string_view name) -> std::optional<std::uint32_t> {
            const auto it = index_of.find(name);
            return it == index_of.end() ? std::nullopt : std::optional(it->second);
          });
      if (!steps.ok()) {
        return error("Dim class " + dim_class.name + ": " + steps.status().message());
      }
      for (const ExpressionStep& step : *steps) {
        if (step.op == ExpressionOp::kClass) {
          uses[c].push_back(static_cast<std::uint32_t>(step.argument));
        }
      }
    }
    // Peel off classes whose operands are all settled; what remains is a cycle.
    std::vector<bool> is_settled(count, false);
    std::uint32_t settled_count = 0;
    for (bool progress = true; progress && settled_count < count;) {
      progress = false;
      for (std::uint32_t c = 0; c < count; ++c) {
        if (is_settled[c] || !std::all_of(uses[c].begin(), uses[c].end(),
                                          [&](std::uint32_t use) { return is_settled[use]; })) {
          continue;
        }
        is_settled[c] = progress = true;
        ++settled_count;
      }
    }
    for (std::uint32_t c = 0; c < count; ++c) {
      if (!is_settled[c]) {
        return error("The expression of dim class " + graph_.dim_classes[c].name +
                     " depends on itself.");
      }
    }
    return {};
  }

  Status type(const Value& value) const {
    const TensorType& type = value.type;
    if (static_cast<int>(type.dtype) >= kDTypeCount) {
      return error("Value %" + value.name + " has no element type.");
    }
    if (type.strides.size() != type.dims.size()) {
      return error("Value %" + value.name + " has rank " + std::to_string(type.dims.size()) +
                   " but " + std::to_string(type.strides.size()) + " strides.");
    }
    for (const std::vector<Dim>* list : {&type.dims, &type.strides}) {
      for (Dim dim : *list) {
        if (!is_valid(dim)) return error("Value %" + value.name + " uses an unknown dim class.");
        if (!dim.is_class() && dim.number() < 0) {
          return error("Value %" + value.name + " has a negative size or stride.");
        }
      }
    }
    if (value.is_host_scalar && type.rank() != 0) {
      return error("Value %" + value.name + " is a host scalar of rank " +
                   std::to_string(type.rank()) + ", expected 0.");
    }
    return {};
  }

  Status values() const {
    std::unordered_set<std::string_view> names;
    for (const Value& value : graph_.values) {
      if (value.name.empty()) return error("A value has no name.");
      if (!names.insert(value.name).second) {
        return error("Two values are called %" + value.name + ".");
      }
      BP_RETURN_IF_ERROR(type(value));
      if ((value.kind == ValueKind::kConstant) != (value.constant != nullptr)) {
        return error("Value %" + value.name +
                     (value.constant ? " has data but is no constant." : " has no data."));
      }
      if (value.constant != nullptr) BP_RETURN_IF_ERROR(constant(value));
      if ((value.kind == ValueKind::kResult) != (value.producer != kNone)) {
        return error("Value %" + value.name +
                     (value.producer == kNone ? " has no producer." : " must not be produced."));
      }
      if (value.producer == kNone) continue;
      if (value.producer >= graph_.nodes.size() ||
          value.result_index >= graph_.nodes[value.producer].results.size() ||
          &graph_.values[graph_.nodes[value.producer].results[value.result_index]] != &value) {
        return error("Value %" + value.name + " is no result of the node that it names.");
      }
    }
    return {};
  }

  Status constant(const Value& value) const {
    std::int64_t bytes = dtype_bytes(value.type.dtype);
    for (Dim dim : value.type.dims) {
      if (dim.is_class())
        return error("Constant %" + value.name + " has a dim class in its shape.");
      if (__builtin_mul_overflow(bytes, dim.number(), &bytes)) {
        return error("Constant %" + value.name + " is larger than memory.");
      }
    }
    if (static_cast<std::uint64_t>(bytes) != value.constant->bytes.size()) {
      return error("Constant %" + value.name + " has " +
                   std::to_string(value.constant->bytes.size()) + " bytes, its type " +
                   std::to_string(bytes) + ".");
    }
    return {};
  }

  Status border() const {
    std::vector<bool> is_input(graph_.values.size(), false);
    for (ValueId input : graph_.inputs) {
      if (input >= graph_.values.size() || graph_.values[input].kind != ValueKind::kInput) {
        return error("Input " + std::to_string(input) + " is no input value.");
      }
      if (is_input[input]) return error("%" + graph_.values[input].name + " is an input twice.");
      is_input[input] = true;
    }
    for (ValueId v = 0; v < graph_.values.size(); ++v) {
      if (graph_.values[v].kind == ValueKind::kInput && !is_input[v]) {
        return error("Value %" + graph_.values[v].name + " is missing in the list of inputs.");
      }
    }
    for (ValueId output : graph_.outputs) {
      if (output >= graph_.values.size()) {
        return error("Output " + std::to_string(output) + " is no value.");
      }
    }
    return {};
  }

  Status node(NodeId id, std::vector<bool>& is_defined) const {
    const Node& node = graph_.nodes[id];
    if (node.op == nullptr) return error("It has no op.");
    if (!is_op_name(node.op->name)) return error("Its op name cannot be written.");
    for (ValueId operand : node.operands) {
      if (operand == kNone) continue;
      if (operand >= graph_.values.size()) {
        return error("Operand " + std::to_string(operand) + " is no value.");
      }
      if (!is_defined[operand]) {
        return error("%" + graph_.values[operand].name + " is used before it is computed.");
      }
    }
    if (node.list_first + static_cast<std::uint64_t>(node.list_count) > node.operands.size()) {
      return error("Its operand list reaches past its operands.");
    }
    if (node.op->known) BP_RETURN_IF_ERROR(operands(node));
    std::unordered_set<std::string_view> attribute_names;
    for (const Attribute& attribute : node.attributes) {
      if (!is_identifier(attribute.name)) {
        return error("The attribute name \"" + attribute.name + "\" is no identifier.");
      }
      if (!attribute_names.insert(attribute.name).second) {
        return error("Attribute " + attribute.name + " is given twice.");
      }
      bool valid = true;
      if (const Dim* dim = std::get_if<Dim>(&attribute.value)) valid = is_valid(*dim);
      if (const auto* list = std::get_if<std::vector<Dim>>(&attribute.value)) {
        valid = std::all_of(list->begin(), list->end(), [&](Dim dim) { return is_valid(dim); });
      }
      if (!valid) return error("Attribute " + attribute.name + " uses an unknown dim class.");
    }
    for (std::size_t i = 0; i < node.results.size(); ++i) {
      const ValueId result = node.results[i];
      if (result >= graph_.values.size() || graph_.values[result].producer != id ||
          graph_.values[result].result_index != i) {
        return error("Result " + std::to_string(i) + " does not name this node as its producer.");
      }
      is_defined[result] = true;
    }
    return {};
  }

  Status operands(const Node& node) const {
    const std::vector<OperandInfo> schema = operand_list(*node.op);
    const auto list = std::find_if(schema.begin(), schema.end(),
                                   [](const OperandInfo& operand) { return operand.is_list; });
    const bool has_list = list != schema.end();
    const std::size_t fixed = schema.size() - (has_list ? 1 : 0);
    if (has_list ? node.operands.size() != fixed + node.list_count ||
                       node.list_first != static_cast<std::size_t>(list - schema.begin())
                 : node.operands.size() != fixed || node.list_count != 0) {
      return error("It has " + std::to_string(node.operands.size()) + " operands, expected (" +
                   std::string(node.op->operands) + ").");
    }
    std::size_t at = 0;
    for (const OperandInfo& operand : schema) {
      const std::size_t count = operand.is_list ? node.list_count : 1;
      for (std::size_t i = 0; i < count; ++i, ++at) {
        if (!operand.is_optional && node.operands[at] == kNone) {
          return error("Operand " + std::string(operand.name) + " is missing.");
        }
      }
    }
    return {};
  }

  const Graph& graph_;
};

}  // namespace

Status verify(const Graph& graph) { return Verifier(graph).run(); }

}  // namespace backplane::ir
