#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/ir/dim_algebra.h"
#include "core/ir/literal.h"
#include "core/ir/text.h"
#include "core/ir/text_cursor.h"

namespace backplane::ir {
namespace {

constexpr std::int64_t kMaxConstantBytes = std::int64_t{1} << 30;

class Parser {
 public:
  explicit Parser(std::string_view text) : cursor_(text) {}

  Result<Graph> run() {
    BP_RETURN_IF_ERROR(header());
    while (!cursor_.take_word("return")) BP_RETURN_IF_ERROR(statement());
    BP_RETURN_IF_ERROR(outputs());
    BP_RETURN_IF_ERROR(cursor_.expect("}"));
    cursor_.skip_space();
    if (!cursor_.at_end()) return cursor_.error("the end");
    return std::move(graph_);
  }

 private:
  struct Placed {
    TensorType type;
    std::size_t position;
  };

  // Types before `classes(...)` use the classes, so those are read first.
  Status header() {
    if (!cursor_.take_word("graph")) return cursor_.error("\"graph\"");
    BP_RETURN_IF_ERROR(cursor_.expect("@"));
    BP_ASSIGN_OR_RETURN(graph_.name, name());
    cursor_.skip_space();
    const std::size_t begin = cursor_.position();
    BP_RETURN_IF_ERROR(skip_parentheses());
    BP_RETURN_IF_ERROR(cursor_.expect("->"));
    BP_RETURN_IF_ERROR(skip_parentheses());
    if (cursor_.take_word("classes")) BP_RETURN_IF_ERROR(classes());
    BP_RETURN_IF_ERROR(cursor_.expect("{"));
    const std::size_t body = cursor_.position();
    algebra_.emplace(graph_);

    cursor_.set_position(begin);
    BP_RETURN_IF_ERROR(cursor_.expect("("));
    if (!cursor_.take(")")) {
      do {
        BP_RETURN_IF_ERROR(declare(ValueKind::kInput).take_status());
      } while (cursor_.take(","));
      BP_RETURN_IF_ERROR(cursor_.expect(")"));
    }
    BP_RETURN_IF_ERROR(cursor_.expect("->"));
    BP_RETURN_IF_ERROR(cursor_.expect("("));
    if (!cursor_.take(")")) {
      do {
        cursor_.skip_space();
        const std::size_t position = cursor_.position();
        BP_ASSIGN_OR_RETURN(TensorType type, this->type());
        output_types_.push_back({std::move(type), position});
      } while (cursor_.take(","));
      BP_RETURN_IF_ERROR(cursor_.expect(")"));
    }
    cursor_.set_position(body);
    return {};
  }

  Status skip_parentheses() {
    cursor_.skip_space();
    const std::size_t open = cursor_.position();
    BP_RETURN_IF_ERROR(cursor_.expect("("));
    for (std::size_t depth = 1; depth > 0;) {
      cursor_.skip_space();
      if (cursor_.at_end()) return cursor_.refuse_at(open, "This \"(\" is never closed.");
      if (cursor_.peek() == '"') {
        BP_RETURN_IF_ERROR(cursor_.quoted().take_status());
        continue;
      }
      if (cursor_.peek() == '(') ++depth;
      if (cursor_.peek() == ')') --depth;
      cursor_.advance();
    }
    return {};
  }

  Status classes() {
    BP_RETURN_IF_ERROR(cursor_.expect("("));
    if (cursor_.take(")")) return {};
    do {
      cursor_.skip_space();
      const std::size_t position = cursor_.position();
      DimClass dim_class;
      dim_class.name = cursor_.identifier();
      if (dim_class.name.empty() || is_reserved_word(dim_class.name)) {
        return cursor_.error_at(position, "the name of a dim class");
      }
      const auto index = static_cast<std::uint32_t>(graph_.dim_classes.size());
      if (!class_index_.emplace(dim_class.name, index).second) {
        return cursor_.refuse_at(position, "Dim class " + dim_class.name + " is declared twice.");
      }
      if (cursor_.take("=")) {
        BP_ASSIGN_OR_RETURN(dim_class.expression, cursor_.quoted());
      }
      BP_RETURN_IF_ERROR(cursor_.expect(":"));
      BP_ASSIGN_OR_RETURN(dim_class.hint, cursor_.integer());
      if (cursor_.take("[")) {
        BP_ASSIGN_OR_RETURN(dim_class.min, cursor_.integer());
        BP_RETURN_IF_ERROR(cursor_.expect(","));
        if (!cursor_.take_word("inf")) {
          BP_ASSIGN_OR_RETURN(dim_class.max, cursor_.integer());
        }
        BP_RETURN_IF_ERROR(cursor_.expect("]"));
      }
      if (cursor_.take_word("div")) {
        BP_ASSIGN_OR_RETURN(dim_class.divisor, cursor_.integer());
      }
      graph_.dim_classes.push_back(std::move(dim_class));
    } while (cursor_.take(","));
    return cursor_.expect(")");
  }

  // What follows % or @.
  Result<std::string> name() {
    if (cursor_.peek() == '"') return cursor_.quoted();
    const std::size_t begin = cursor_.position();
    while (!cursor_.at_end() && is_name_char(cursor_.peek())) cursor_.advance();
    if (cursor_.position() == begin) return cursor_.error("a name");
    return std::string(cursor_.slice(begin, cursor_.position()));
  }

  // A new value's %name.
  Result<std::string> new_name() {
    cursor_.skip_space();
    const std::size_t position = cursor_.position();
    BP_RETURN_IF_ERROR(cursor_.expect("%"));
    BP_ASSIGN_OR_RETURN(std::string text, name());
    if (value_of_.contains(text)) {
      return cursor_.refuse_at(position, "Value %" + text + " is already defined.");
    }
    return text;
  }

  Result<ValueId> operand() {
    if (cursor_.take_word("none")) return kNone;
    const std::size_t position = cursor_.position();
    if (!cursor_.take("%")) return cursor_.error("a value or \"none\"");
    BP_ASSIGN_OR_RETURN(const std::string text, name());
    const auto it = value_of_.find(text);
    if (it == value_of_.end()) {
      return cursor_.refuse_at(position, "Value %" + text + " is not defined above.");
    }
    return it->second;
  }

  ValueId add_value(Value value) {
    const auto id = static_cast<ValueId>(graph_.values.size());
    value_of_.emplace(value.name, id);
    graph_.values.push_back(std::move(value));
    return id;
  }

  // "%x: f32[2] static", an input or the head of a constant.
  Result<ValueId> declare(ValueKind kind) {
    Value value;
    value.kind = kind;
    BP_ASSIGN_OR_RETURN(value.name, new_name());
    BP_RETURN_IF_ERROR(cursor_.expect(":"));
    BP_RETURN_IF_ERROR(typed(value));
    const ValueId id = add_value(std::move(value));
    if (kind == ValueKind::kInput) graph_.inputs.push_back(id);
    return id;
  }

  Status typed(Value& value) {
    BP_ASSIGN_OR_RETURN(value.type, type());
    for (;;) {
      if (cursor_.take_word("static")) {
        value.is_static = true;
      } else if (cursor_.take_word("saved")) {
        value.is_saved = true;
      } else if (cursor_.take_word("scalar")) {
        value.is_host_scalar = true;
      } else {
        return {};
      }
    }
  }

  Result<TensorType> type() {
    cursor_.skip_space();
    const std::size_t position = cursor_.position();
    TensorType type;
    const std::optional<DType> dtype = find_dtype(cursor_.identifier());
    if (!dtype) return cursor_.error_at(position, "an element type such as f32");
    type.dtype = *dtype;
    BP_RETURN_IF_ERROR(cursor_.expect("["));
    BP_ASSIGN_OR_RETURN(type.dims, dims("]"));
    if (cursor_.take_word("strides")) {
      BP_RETURN_IF_ERROR(cursor_.expect("("));
      BP_ASSIGN_OR_RETURN(type.strides, dims(")"));
      return type;
    }
    BP_ASSIGN_OR_RETURN(type.strides, row_major(type.dims, position));
    return type;
  }

  Result<std::vector<Dim>> dims(std::string_view close) {
    std::vector<Dim> list;
    if (cursor_.take(close)) return list;
    do {
      BP_ASSIGN_OR_RETURN(const Dim dim, this->dim());
      list.push_back(dim);
    } while (cursor_.take(","));
    BP_RETURN_IF_ERROR(cursor_.expect(close));
    return list;
  }

  Result<Dim> dim() {
    cursor_.skip_space();
    const char c = cursor_.peek();
    const std::size_t position = cursor_.position();
    if (c == '-' || (c >= '0' && c <= '9')) {
      BP_ASSIGN_OR_RETURN(const std::int64_t number, cursor_.integer());
      if (Dim(number).is_class()) return cursor_.error_at(position, "a number above -2^62");
      return Dim(number);
    }
    const auto it = class_index_.find(std::string(cursor_.identifier()));
    if (it == class_index_.end()) return cursor_.error_at(position, "a number or a dim class");
    return Dim::dim_class(it->second);
  }

  // Strides that hand-written text leaves out may need a class that it does not declare.
  Result<std::vector<Dim>> row_major(const std::vector<Dim>& dims, std::size_t position) {
    const auto products = algebra_->row_major(dims);
    if (!products) return cursor_.refuse_at(position, "The strides of this type overflow.");
    std::vector<Dim> strides;
    for (const DimProduct& product : *products) {
      std::optional<Dim> stride = algebra_->find_dim(product);
      if (!stride) {
        DimClass dim_class;
        dim_class.hint = product.coefficient;
        dim_class.min = 0;
        if (product.coefficient != 1) dim_class.expression = std::to_string(product.coefficient);
        for (std::uint32_t c : product.classes) {
          const DimClass& factor = graph_.dim_classes[c];
          if (__builtin_mul_overflow(dim_class.hint, factor.hint, &dim_class.hint)) {
            return cursor_.refuse_at(position, "The strides of this type overflow.");
          }
          if (!dim_class.expression.empty()) dim_class.expression += "*";
          dim_class.expression += factor.name;
        }
        const auto index = static_cast<std::uint32_t>(graph_.dim_classes.size());
        for (std::uint32_t n = index;; ++n) {
          dim_class.name = "d" + std::to_string(n);
          if (class_index_.emplace(dim_class.name, index).second) break;
        }
        graph_.dim_classes.push_back(std::move(dim_class));
        algebra_.emplace(graph_);
        stride = Dim::dim_class(index);
      }
      strides.push_back(*stride);
    }
    return strides;
  }

  Status statement() {
    cursor_.skip_space();
    if (cursor_.take_word("constant")) {
      BP_ASSIGN_OR_RETURN(const ValueId id, declare(ValueKind::kConstant));
      BP_RETURN_IF_ERROR(cursor_.expect("="));
      return data(graph_.values[id]);
    }
    std::vector<std::string> results;
    if (cursor_.peek() == '%') {
      do {
        cursor_.skip_space();
        const std::size_t position = cursor_.position();
        BP_ASSIGN_OR_RETURN(std::string result, new_name());
        if (std::find(results.begin(), results.end(), result) != results.end()) {
          return cursor_.refuse_at(position, "Value %" + result + " is already defined.");
        }
        results.push_back(std::move(result));
      } while (cursor_.take(","));
      BP_RETURN_IF_ERROR(cursor_.expect("="));
    }
    return node(std::move(results));
  }

  Status node(std::vector<std::string> results) {
    cursor_.skip_space();
    const std::size_t position = cursor_.position();
    while (!cursor_.at_end() && (is_name_char(cursor_.peek()) || cursor_.peek() == ':')) {
      cursor_.advance();
    }
    const std::string_view op_name = cursor_.slice(position, cursor_.position());
    if (!is_op_name(op_name)) {
      return cursor_.error_at(position, results.empty() ? "a statement or \"return\"" : "an op");
    }
    Node node;
    node.op = find_or_intern_op(op_name);
    BP_RETURN_IF_ERROR(cursor_.expect("("));
    if (!cursor_.take(")")) {
      bool has_list = false;
      do {
        BP_RETURN_IF_ERROR(argument(node, has_list));
      } while (cursor_.take(","));
      BP_RETURN_IF_ERROR(cursor_.expect(")"));
    }
    const auto id = static_cast<NodeId>(graph_.nodes.size());
    for (std::size_t i = 0; i < results.size(); ++i) {
      BP_RETURN_IF_ERROR(cursor_.expect(i == 0 ? ":" : ","));
      Value value;
      value.name = std::move(results[i]);
      value.producer = id;
      value.result_index = static_cast<std::uint32_t>(i);
      BP_RETURN_IF_ERROR(typed(value));
      node.results.push_back(add_value(std::move(value)));
    }
    node.location = cursor_.trailing_comment();
    graph_.nodes.push_back(std::move(node));
    return {};
  }

  Status argument(Node& node, bool& has_list) {
    cursor_.skip_space();
    const std::size_t position = cursor_.position();
    const char c = cursor_.peek();
    if (c == '[') {
      if (has_list) return cursor_.refuse_at(position, "An op has one operand list at most.");
      if (!node.attributes.empty()) return cursor_.error("an attribute");
      cursor_.advance();
      has_list = true;
      node.list_first = static_cast<std::uint32_t>(node.operands.size());
      if (cursor_.take("]")) return {};
      do {
        BP_ASSIGN_OR_RETURN(const ValueId value, operand());
        node.operands.push_back(value);
      } while (cursor_.take(","));
      node.list_count = static_cast<std::uint32_t>(node.operands.size()) - node.list_first;
      return cursor_.expect("]");
    }
    if (c != '%') {
      std::string attribute_name(cursor_.identifier());
      if (attribute_name.empty()) return cursor_.error("an operand or an attribute");
      if (cursor_.take("=")) {
        BP_ASSIGN_OR_RETURN(AttributeValue value, attribute_value());
        node.attributes.push_back({std::move(attribute_name), std::move(value)});
        return {};
      }
      if (attribute_name != "none") return cursor_.error("\"=\"");
      cursor_.set_position(position);
    }
    if (!node.attributes.empty()) return cursor_.error_at(position, "an attribute");
    BP_ASSIGN_OR_RETURN(const ValueId value, operand());
    node.operands.push_back(value);
    return {};
  }

  Result<AttributeValue> attribute_value() {
    cursor_.skip_space();
    if (cursor_.peek() != '[') return scalar();
    cursor_.advance();
    if (cursor_.take("]")) return AttributeValue(std::vector<Dim>());
    std::vector<Dim> dims;
    std::vector<double> doubles;
    std::vector<bool> bools;
    do {
      cursor_.skip_space();
      const std::size_t position = cursor_.position();
      BP_ASSIGN_OR_RETURN(const AttributeValue element, scalar());
      if (const Dim* dim = std::get_if<Dim>(&element)) dims.push_back(*dim);
      if (const double* number = std::get_if<double>(&element)) doubles.push_back(*number);
      if (const bool* flag = std::get_if<bool>(&element)) bools.push_back(*flag);
      const int kinds = !dims.empty() + !doubles.empty() + !bools.empty();
      if (kinds != 1 || element.index() == 0) {
        return cursor_.error_at(position, "elements of one kind: integers, floats or booleans");
      }
    } while (cursor_.take(","));
    BP_RETURN_IF_ERROR(cursor_.expect("]"));
    if (!doubles.empty()) return AttributeValue(std::move(doubles));
    if (!bools.empty()) return AttributeValue(std::move(bools));
    return AttributeValue(std::move(dims));
  }

  Result<AttributeValue> scalar() {
    cursor_.skip_space();
    const std::size_t position = cursor_.position();
    if (cursor_.peek() == '"') {
      BP_ASSIGN_OR_RETURN(std::string text, cursor_.quoted());
      return AttributeValue(std::move(text));
    }
    const std::string_view text = cursor_.literal();
    if (text.empty()) return cursor_.error("an attribute's value");
    if (text == "none") return AttributeValue(std::monostate());
    if (text == "true" || text == "false") return AttributeValue(text == "true");
    if (text == "floats" || text == "bools") {
      BP_RETURN_IF_ERROR(cursor_.expect("["));
      BP_RETURN_IF_ERROR(cursor_.expect("]"));
      return text == "floats" ? AttributeValue(std::vector<double>())
                              : AttributeValue(std::vector<bool>());
    }
    if (const std::optional<DType> dtype = find_dtype(text)) return AttributeValue(*dtype);
    const bool is_number = text[0] == '-' || (text[0] >= '0' && text[0] <= '9');
    const bool is_float = text == "inf" || text == "nan" ||
                          (is_number && text.find_first_of(".en") != std::string_view::npos);
    if (is_float) {
      double number = 0;
      const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
      if (code != std::errc() || end != text.data() + text.size()) {
        return cursor_.error_at(position, "a number");
      }
      return AttributeValue(number);
    }
    cursor_.set_position(position);
    BP_ASSIGN_OR_RETURN(const Dim dim, this->dim());
    return AttributeValue(dim);
  }

  Status data(Value& value) {
    cursor_.skip_space();
    const std::size_t position = cursor_.position();
    const std::int64_t element_bytes = dtype_bytes(value.type.dtype);
    std::int64_t bytes = element_bytes;
    for (Dim dim : value.type.dims) {
      if (dim.is_class() || dim.number() < 0 ||
          __builtin_mul_overflow(bytes, dim.number(), &bytes)) {
        return cursor_.refuse_at(position, "A constant's shape must be constant.");
      }
    }
    if (bytes > kMaxConstantBytes) {
      return cursor_.refuse_at(position, "A constant of the text form has at most 2^30 bytes.");
    }
    auto constant = std::make_shared<ConstantData>();
    std::vector<std::uint8_t>& out = constant->bytes;
    if (cursor_.take("[")) {
      if (!cursor_.take("]")) {
        do {
          cursor_.skip_space();
          const std::size_t begin = cursor_.position();
          std::uint8_t element[16];
          if (!parse_element(value.type.dtype, cursor_.literal(), element)) {
            return cursor_.error_at(
                begin, "an element of type " + std::string(dtype_name(value.type.dtype)));
          }
          out.insert(out.end(), element, element + element_bytes);
        } while (cursor_.take(","));
        BP_RETURN_IF_ERROR(cursor_.expect("]"));
      }
    } else if (cursor_.take_word("hex")) {
      BP_ASSIGN_OR_RETURN(const std::string digits, cursor_.quoted());
      for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
        std::uint8_t byte = 0;
        const char* begin = digits.data() + i;
        if (std::from_chars(begin, begin + 2, byte, 16).ptr != begin + 2) break;
        out.push_back(byte);
      }
      if (out.size() * 2 != digits.size()) {
        return cursor_.refuse_at(position, "This is no even number of hexadecimal digits.");
      }
    } else if (cursor_.take_word("opaque")) {
      BP_RETURN_IF_ERROR(cursor_.expect("("));
      BP_ASSIGN_OR_RETURN(const std::int64_t count, cursor_.integer());
      BP_RETURN_IF_ERROR(cursor_.expect(")"));
      if (count == bytes) out.resize(static_cast<std::size_t>(bytes));
    } else {
      return cursor_.error("\"[\", hex\"...\" or opaque(bytes)");
    }
    if (out.size() != static_cast<std::size_t>(bytes)) {
      return cursor_.refuse_at(position,
                               "This constant needs " + std::to_string(bytes) + " bytes of data.");
    }
    value.constant = std::move(constant);
    return {};
  }

  Status outputs() {
    cursor_.skip_space();
    if (cursor_.peek() == '%') {
      do {
        cursor_.skip_space();
        const std::size_t position = cursor_.position();
        BP_ASSIGN_OR_RETURN(const ValueId value, operand());
        if (value == kNone) return cursor_.error_at(position, "a value");
        graph_.outputs.push_back(value);
      } while (cursor_.take(","));
    }
    if (graph_.outputs.size() != output_types_.size()) {
      return cursor_.refuse_at(cursor_.position(), "The graph declares " +
                                                       std::to_string(output_types_.size()) +
                                                       " outputs and returns " +
                                                       std::to_string(graph_.outputs.size()) + ".");
    }
    for (std::size_t i = 0; i < output_types_.size(); ++i) {
      const Value& value = graph_.values[graph_.outputs[i]];
      if (!(value.type == output_types_[i].type)) {
        return cursor_.refuse_at(output_types_[i].position,
                                 "Output " + std::to_string(i) + " is declared " +
                                     print_type(graph_, output_types_[i].type) + ", but %" +
                                     value.name + " is " + print_type(graph_, value.type) + ".");
      }
    }
    return {};
  }

  TextCursor cursor_;
  Graph graph_;
  std::optional<DimAlgebra> algebra_;
  std::unordered_map<std::string, std::uint32_t> class_index_;
  std::unordered_map<std::string, ValueId> value_of_;
  std::vector<Placed> output_types_;
};

}  // namespace

Result<Graph> parse(std::string_view text) { return Parser(text).run(); }

}  // namespace backplane::ir
