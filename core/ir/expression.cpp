#include "core/ir/expression.h"

#include <algorithm>
#include <charconv>
#include <string>

namespace backplane::ir {
namespace {

constexpr int kMaxNesting = 64;

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class ExpressionParser {
 public:
  ExpressionParser(std::string_view text,
                   const std::function<std::optional<std::uint32_t>(std::string_view)>& find_class)
      : text_(text), find_class_(find_class) {}

  Result<std::vector<ExpressionStep>> run() {
    BP_RETURN_IF_ERROR(sum(0));
    skip_space();
    if (position_ != text_.size()) return error("an operator or the end");
    return std::move(steps_);
  }

 private:
  Status error(std::string_view expected) const {
    return Status(Code::kParseError, "Expression \"" + std::string(text_) + "\", column " +
                                         std::to_string(position_ + 1) + ": expected " +
                                         std::string(expected) + ".");
  }
  void skip_space() {
    while (position_ < text_.size() && text_[position_] == ' ') ++position_;
  }
  bool take(std::string_view token) {
    skip_space();
    if (!text_.substr(position_).starts_with(token)) return false;
    position_ += token.size();
    return true;
  }
  void emit(ExpressionOp op, std::int64_t argument = 0) { steps_.push_back({op, argument}); }

  Status sum(int depth) {
    if (depth > kMaxNesting) return error("less nesting");
    BP_RETURN_IF_ERROR(term(depth));
    for (;;) {
      if (take("+")) {
        BP_RETURN_IF_ERROR(term(depth));
        emit(ExpressionOp::kAdd);
      } else if (take("-")) {
        BP_RETURN_IF_ERROR(term(depth));
        emit(ExpressionOp::kSub);
      } else {
        return {};
      }
    }
  }

  Status term(int depth) {
    BP_RETURN_IF_ERROR(unary(depth));
    for (;;) {
      if (take("//")) {
        BP_RETURN_IF_ERROR(unary(depth));
        emit(ExpressionOp::kFloorDiv);
      } else if (take("%")) {
        BP_RETURN_IF_ERROR(unary(depth));
        emit(ExpressionOp::kMod);
      } else if (take("*")) {
        BP_RETURN_IF_ERROR(unary(depth));
        emit(ExpressionOp::kMul);
      } else {
        return {};
      }
    }
  }

  Status unary(int depth) {
    if (depth > kMaxNesting) return error("less nesting");
    if (take("-")) {
      emit(ExpressionOp::kConstant, 0);
      BP_RETURN_IF_ERROR(unary(depth + 1));
      emit(ExpressionOp::kSub);
      return {};
    }
    BP_RETURN_IF_ERROR(atom(depth));
    if (take("**") || take("^")) {
      BP_RETURN_IF_ERROR(unary(depth + 1));
      emit(ExpressionOp::kPow);
    }
    return {};
  }

  Status atom(int depth) {
    skip_space();
    if (take("(")) {
      BP_RETURN_IF_ERROR(sum(depth + 1));
      if (!take(")")) return error("\")\"");
      return {};
    }
    if (position_ == text_.size()) return error("a number, a class or \"(\"");
    const char first = text_[position_];
    if (is_digit(first)) {
      std::int64_t number = 0;
      const char* begin = text_.data() + position_;
      const auto [end, code] = std::from_chars(begin, text_.data() + text_.size(), number);
      if (code != std::errc()) return error("a number of 64 bits");
      position_ += static_cast<std::size_t>(end - begin);
      emit(ExpressionOp::kConstant, number);
      return {};
    }
    if (!is_name_start(first)) return error("a number, a class or \"(\"");
    std::size_t end = position_;
    while (end < text_.size() && (is_name_start(text_[end]) || is_digit(text_[end]))) ++end;
    const std::string_view name = text_.substr(position_, end - position_);
    if ((name == "min" || name == "max") && end < text_.size() && text_[end] == '(') {
      position_ = end + 1;
      return fold(name == "min" ? ExpressionOp::kMin : ExpressionOp::kMax, depth);
    }
    const std::optional<std::uint32_t> index = find_class_(name);
    if (!index) return error("a declared class");
    position_ = end;
    emit(ExpressionOp::kClass, *index);
    return {};
  }

  Status fold(ExpressionOp op, int depth) {
    BP_RETURN_IF_ERROR(sum(depth + 1));
    while (take(",")) {
      BP_RETURN_IF_ERROR(sum(depth + 1));
      emit(op);
    }
    if (!take(")")) return error("\",\" or \")\"");
    return {};
  }

  std::string_view text_;
  const std::function<std::optional<std::uint32_t>(std::string_view)>& find_class_;
  std::size_t position_ = 0;
  std::vector<ExpressionStep> steps_;
};

bool power(std::int64_t base, std::int64_t exponent, std::int64_t& out_value) {
  if (exponent < 0) return false;
  out_value = 1;
  for (;;) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(out_value, base, &out_value)) return false;
    exponent >>= 1;
    if (exponent == 0) return true;
    if (__builtin_mul_overflow(base, base, &base)) return false;
  }
}

}  // namespace

Result<std::vector<ExpressionStep>> parse_expression(
    std::string_view text,
    const std::function<std::optional<std::uint32_t>(std::string_view)>& find_class) {
  return ExpressionParser(text, find_class).run();
}

std::uint32_t expression_stack_depth(const std::vector<ExpressionStep>& steps) {
  std::uint32_t depth = 0, deepest = 0;
  for (const ExpressionStep& step : steps) {
    const bool is_leaf = step.op == ExpressionOp::kConstant || step.op == ExpressionOp::kClass;
    is_leaf ? ++depth : --depth;
    deepest = std::max(deepest, depth);
  }
  return deepest;
}

bool apply_expression_op(ExpressionOp op, std::int64_t a, std::int64_t b, std::int64_t& out_value) {
  switch (op) {
    case ExpressionOp::kAdd:
      return !__builtin_add_overflow(a, b, &out_value);
    case ExpressionOp::kSub:
      return !__builtin_sub_overflow(a, b, &out_value);
    case ExpressionOp::kMul:
      return !__builtin_mul_overflow(a, b, &out_value);
    case ExpressionOp::kFloorDiv:
    case ExpressionOp::kMod: {
      if (b == 0 || (a == INT64_MIN && b == -1)) return false;
      const std::int64_t remainder = a % b;
      const bool adjust = remainder != 0 && (remainder < 0) != (b < 0);
      if (op == ExpressionOp::kMod) {
        out_value = adjust ? remainder + b : remainder;
      } else {
        out_value = adjust ? a / b - 1 : a / b;
      }
      return true;
    }
    case ExpressionOp::kPow:
      return power(a, b, out_value);
    case ExpressionOp::kMin:
      out_value = std::min(a, b);
      return true;
    case ExpressionOp::kMax:
      out_value = std::max(a, b);
      return true;
    case ExpressionOp::kConstant:
    case ExpressionOp::kClass:
      break;
  }
  return false;
}

}  // namespace backplane::ir
