// Expressions over dim classes, "s0*s1//2", as postfix code. Shared by DimProgram and DimAlgebra.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace backplane::ir {

enum class ExpressionOp : std::uint8_t {
  kConstant,
  kClass,
  kAdd,
  kSub,
  kMul,
  kFloorDiv,
  kMod,
  kPow,
  kMin,
  kMax,
};
struct ExpressionStep {
  ExpressionOp op;
  std::int64_t argument = 0;  // number or class index; 0 for operators
};

// Grammar, integers only: + - * // % ^ (or **), parentheses, min(a, b, ...), max(a, b, ...).
// `find_class` gives a name's index. Errors are kParseError and quote the expression.
Result<std::vector<ExpressionStep>> parse_expression(
    std::string_view text,
    const std::function<std::optional<std::uint32_t>(std::string_view)>& find_class);

// The deepest stack that evaluation needs.
std::uint32_t expression_stack_depth(const std::vector<ExpressionStep>& steps);

// False on overflow, division by zero or a negative exponent. // and % floor, as in Python.
bool apply_expression_op(ExpressionOp op, std::int64_t a, std::int64_t b, std::int64_t& out_value);

}  // namespace backplane::ir
