// ATen operators as expressions: pointwise ones, and those that reduce over rows.
#pragma once

#include <backplane/kernelgen/expression.hpp>

#include <optional>
#include <string_view>
#include <vector>

namespace backplane::kernelgen {

struct Number {
  bool is_real = false;
  double real = 0;
  std::int64_t integer = 0;
};

// One node of a graph at one point of its group, as an operator's expressions need it.
class OperatorSource {
 public:
  virtual ~OperatorSource() = default;
  virtual bool has(std::size_t operand) const = 0;
  virtual Expr operand(std::size_t i) = 0;  // in the compute type of its storage
  virtual Storage operand_storage(std::size_t i) const = 0;
  virtual std::int64_t operand_elements(std::size_t i) const = 0;
  virtual Storage result_storage(std::size_t i) const = 0;
  virtual std::optional<Number> number(std::string_view attribute) const = 0;
  virtual std::string_view text(std::string_view attribute) const = 0;
  virtual std::int64_t row_length() const = 0;  // product of the loop axes' extents
};

// Expressions of a node's results; kNoExpr where nobody can want one.
using EmitOperator = std::vector<Expr> (*)(Expressions& e, OperatorSource& source);

struct Operator {
  std::string_view name;
  enum Kind : std::uint8_t {
    kPointwise,
    kFloatsOnly,  // pointwise, of float results only
    kRow,         // results are rows; reduces over them
    kFold,        // results are one value a row
    kChannel,     // pointwise; operands but the first are lists with an element a channel (dim 1)
  } kind;
  EmitOperator emit;
};

// Of the `count` points of the loops.
struct Moments {
  Expr mean, variance;  // the variance over all `count`
};
Moments moments(Expressions& e, Expr x, std::int64_t count);

std::vector<const Operator*> operators();  // of static storage
// Null where the operator is none of these.
const Operator* find_operator(std::string_view name);

}  // namespace backplane::kernelgen
