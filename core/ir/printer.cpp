#include <algorithm>

#include "core/ir/dim_algebra.h"
#include "core/ir/literal.h"
#include "core/ir/text.h"

namespace backplane::ir {
namespace {

constexpr std::size_t kMaxListedElements = 16;
constexpr std::size_t kMaxHexBytes = 4096;
constexpr std::size_t kMaxColumns = 100;

class Printer {
 public:
  explicit Printer(const Graph& graph) : graph_(graph), algebra_(graph) {}

  std::string graph() const {
    std::string header = "graph @" + name(graph_.name) + "(";
    std::string tail = ") -> (";
    for (std::size_t i = 0; i < graph_.outputs.size(); ++i) {
      if (i > 0) tail += ", ";
      const ValueId output = graph_.outputs[i];
      tail += output < graph_.values.size() ? type(graph_.values[output].type) : "?";
    }
    tail += ")" + classes() + " {\n";
    std::size_t columns = header.size() + tail.size();
    std::vector<std::string> inputs;
    for (ValueId input : graph_.inputs) {
      inputs.push_back(declared(input));
      columns += inputs.back().size() + 2;
    }
    const bool wrap = columns > kMaxColumns && !inputs.empty();
    std::string text = std::move(header);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (i > 0) text += wrap ? "," : ", ";
      if (wrap) text += "\n    ";
      text += inputs[i];
    }
    if (wrap) text += "\n";
    text += tail;
    for (ValueId v = 0; v < graph_.values.size(); ++v) {
      if (graph_.values[v].kind == ValueKind::kConstant) {
        text += "  constant " + declared(v) + " = " + data(graph_.values[v]) + "\n";
      }
    }
    for (const Node& node : graph_.nodes) text += "  " + this->node(node) + "\n";
    text += "  return";
    for (std::size_t i = 0; i < graph_.outputs.size(); ++i) {
      text += (i > 0 ? ", " : " ") + reference(graph_.outputs[i]);
    }
    return text + "\n}\n";
  }

  std::string type(const TensorType& type) const {
    std::string text(dtype_name(type.dtype));
    text += "[" + dims(type.dims) + "]";
    if (!algebra_.is_row_major(type, /*exact=*/true))
      text += " strides(" + dims(type.strides) + ")";
    return text;
  }

  std::string node(const Node& node) const {
    std::string text;
    for (std::size_t i = 0; i < node.results.size(); ++i) {
      text += (i > 0 ? ", " : "") + reference(node.results[i]);
    }
    if (!node.results.empty()) text += " = ";
    text += node.op != nullptr ? std::string(node.op->name) : "?";
    text += "(";
    bool first = true;
    const auto separate = [&] {
      if (!first) text += ", ";
      first = false;
    };
    const bool has_list =
        node.list_count > 0 ||
        (node.op != nullptr && node.op->operands.find("[]") != std::string_view::npos);
    for (std::size_t i = 0; i <= node.operands.size(); ++i) {
      if (has_list && i == node.list_first) {
        separate();
        text += "[";
        for (; i < node.operands.size() && i < node.list_first + node.list_count; ++i) {
          if (i > node.list_first) text += ", ";
          text += reference(node.operands[i]);
        }
        text += "]";
      }
      if (i == node.operands.size()) break;
      separate();
      text += reference(node.operands[i]);
    }
    if (!node.attributes.empty()) separate();
    text += attributes(node) + ")";
    for (std::size_t i = 0; i < node.results.size(); ++i) {
      text += i > 0 ? ", " : " : ";
      const ValueId result = node.results[i];
      text += result < graph_.values.size() ? typed(graph_.values[result]) : "?";
    }
    std::string location = node.location;
    std::replace_if(
        location.begin(), location.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
    while (!location.empty() && location.back() == ' ') location.pop_back();
    location.erase(0, std::min(location.find_first_not_of(' '), location.size()));
    if (!location.empty()) text += "    // " + location;
    return text;
  }

  std::string attributes(const Node& node) const {
    std::string text;
    for (const Attribute& attribute : node.attributes)
      text += (text.empty() ? "" : ", ") + attribute.name + "=" + this->attribute(attribute.value);
    return text;
  }

 private:
  static std::string name(const std::string& name) {
    return is_plain_name(name) ? name : quote(name);
  }

  std::string reference(ValueId value) const {
    if (value == kNone) return "none";
    if (value >= graph_.values.size()) return "%?" + std::to_string(value);
    return "%" + name(graph_.values[value].name);
  }

  std::string typed(const Value& value) const {
    std::string text = type(value.type);
    if (value.is_static) text += " static";
    if (value.is_saved) text += " saved";
    if (value.is_host_scalar) text += " scalar";
    return text;
  }

  std::string declared(ValueId value) const {
    return reference(value) + ": " +
           (value < graph_.values.size() ? typed(graph_.values[value]) : "?");
  }

  std::string dim(Dim dim) const {
    if (!dim.is_class()) return std::to_string(dim.number());
    const std::uint32_t index = dim.class_index();
    return index < graph_.dim_classes.size() ? graph_.dim_classes[index].name
                                             : "?" + std::to_string(index);
  }

  std::string dims(const std::vector<Dim>& dims) const {
    std::string text;
    for (std::size_t i = 0; i < dims.size(); ++i) text += (i > 0 ? ", " : "") + dim(dims[i]);
    return text;
  }

  std::string classes() const {
    if (graph_.dim_classes.empty()) return "";
    std::string text = " classes(";
    for (std::size_t i = 0; i < graph_.dim_classes.size(); ++i) {
      const DimClass& dim_class = graph_.dim_classes[i];
      if (i > 0) text += ", ";
      text += dim_class.name;
      if (!dim_class.expression.empty()) text += " = " + quote(dim_class.expression);
      text += ": " + std::to_string(dim_class.hint);
      if (dim_class.min != 2 || dim_class.max != INT64_MAX) {
        text += " [" + std::to_string(dim_class.min) + ", ";
        text += (dim_class.max == INT64_MAX ? "inf" : std::to_string(dim_class.max)) + "]";
      }
      if (dim_class.divisor != 1) text += " div " + std::to_string(dim_class.divisor);
    }
    return text + ")";
  }

  std::string attribute(const AttributeValue& value) const {
    struct Visitor {
      const Printer& printer;
      std::string operator()(std::monostate) const { return "none"; }
      std::string operator()(bool b) const { return b ? "true" : "false"; }
      std::string operator()(Dim d) const { return printer.dim(d); }
      std::string operator()(double d) const { return format_float(d); }
      std::string operator()(const std::string& s) const { return quote(s); }
      std::string operator()(DType d) const { return std::string(dtype_name(d)); }
      std::string operator()(const std::vector<Dim>& list) const {
        return "[" + printer.dims(list) + "]";
      }
      // An empty list needs its element kind to be read back.
      std::string operator()(const std::vector<double>& list) const {
        if (list.empty()) return "floats[]";
        std::string text;
        for (double d : list) text += (text.empty() ? "[" : ", ") + format_float(d);
        return text + "]";
      }
      std::string operator()(const std::vector<bool>& list) const {
        if (list.empty()) return "bools[]";
        std::string text;
        for (bool b : list) text += std::string(text.empty() ? "[" : ", ") + (b ? "true" : "false");
        return text + "]";
      }
    };
    return std::visit(Visitor{*this}, value);
  }

  static std::string data(const Value& value) {
    if (value.constant == nullptr) return "opaque(0)";
    const std::vector<std::uint8_t>& bytes = value.constant->bytes;
    const auto element_bytes = static_cast<std::size_t>(dtype_bytes(value.type.dtype));
    if (bytes.size() <= kMaxListedElements * element_bytes && bytes.size() % element_bytes == 0) {
      std::string text = "[";
      bool exact = true;
      for (std::size_t i = 0; exact && i < bytes.size(); i += element_bytes) {
        const auto element = format_element(value.type.dtype, bytes.data() + i);
        exact = element.has_value();
        if (exact) text += (i > 0 ? ", " : "") + *element;
      }
      if (exact) return text + "]";
    }
    if (bytes.size() > kMaxHexBytes) return "opaque(" + std::to_string(bytes.size()) + ")";
    static constexpr char kHex[] = "0123456789abcdef";
    std::string text = "hex\"";
    for (std::uint8_t byte : bytes) {
      text += kHex[byte >> 4];
      text += kHex[byte & 15];
    }
    return text + "\"";
  }

  const Graph& graph_;
  DimAlgebra algebra_;
};

}  // namespace

std::string print(const Graph& graph) { return Printer(graph).graph(); }

std::string print_type(const Graph& graph, const TensorType& type) {
  return Printer(graph).type(type);
}

std::string print_node(const Graph& graph, NodeId node) {
  return Printer(graph).node(graph.nodes[node]);
}

std::string print_attributes(const Graph& graph, NodeId node) {
  return Printer(graph).attributes(graph.nodes[node]);
}

}  // namespace backplane::ir
