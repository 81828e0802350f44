// Expressions as text.
#include <cmath>
#include <cstdio>

#include "functions.hpp"
#include "printer.hpp"
#include "printer_names.hpp"

namespace backplane::kernelgen {

std::string PointPrinter::splat(Type type, const std::string& value) const {
  return "((" + type_name(type, lanes_) + ")(" + value + "))";
}

std::string PointPrinter::literal(const Node& n) const {
  if (!is_float(n.type)) {
    if (n.type != Type::kI64)
      return n.integer < 0 ? "(" + number(n.integer) + ")" : number(n.integer);
    if (n.integer == INT64_MIN) return "(-9223372036854775807L - 1L)";
    return "(" + number(n.integer) + "L)";
  }
  const char* suffix = n.type == Type::kF32 ? "f" : "";
  if (std::isnan(n.real)) return n.type == Type::kF32 ? "BP_NAN" : "((double)BP_NAN)";
  if (std::isinf(n.real)) {
    const std::string one = n.type == Type::kF32 ? "BP_INFINITY" : "((double)BP_INFINITY)";
    return n.real < 0 ? "(-" + one + ")" : one;
  }
  const double v = n.type == Type::kF32 ? static_cast<double>(static_cast<float>(n.real)) : n.real;
  if (std::isinf(v)) return v < 0 ? "(-BP_INFINITY)" : "BP_INFINITY";
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%a%s", v, suffix);
  return std::signbit(v) ? "(" + std::string(buffer) + ")" : buffer;
}

// A comparison as 0 or 1: scalars give that already, vectors give -1 in the operands' width.
std::string PointPrinter::truth(const std::string& comparison, Type of, bool wide) const {
  if (!wide) return comparison;
  const std::string& c = comparison;
  if (is_wide_type(of)) return "(convert_int" + number(lanes_) + c + " & 1)";
  return "(" + c + " & 1)";
}

std::string PointPrinter::ref(Expr e, bool wide) {
  const Node& n = e_.node(e);
  if (n.op == Op::kConstant) return wide ? splat(n.type, literal(n)) : literal(n);
  if (wide && !varies(e)) return splat(n.type, ref(e, false));
  if (n.op == Op::kAxis && !wide) return axis_name(static_cast<std::size_t>(n.index));
  if (n.op == Op::kExternal) return variable("x", n.index);
  // NOLINTNEXTLINE(modernize-loop-convert): clang 14 does not compile std::views::reverse
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
    if (const auto found = scope->find({e, wide}); found != scope->end()) return found->second;
  const std::int32_t keeper = kept_[static_cast<std::size_t>(e)];
  const bool is_kept = keeper != 0 && pass_ != keeper;
  const std::string value = is_kept ? kept_value(e, wide) : text(e, wide);
  std::string name = variable(wide ? "w" : "v", e);
  line(type_name(n.type, wide ? lanes_ : 1) + " " + name + " = " + value + ";");
  if (keeper != 0 && pass_ == keeper) keep_value(e, name, wide);
  scopes_.back()[{e, wide}] = name;
  return name;
}

std::string PointPrinter::kept_name(Expr e) const {
  return variable("k", e) + (vectors_ != 0 ? "_" + number(vector_) : "");
}
std::string PointPrinter::kept_value(Expr e, bool wide) const {
  if (grouped_) return kept_name(e) + "[" + element_index() + "]";
  if (vectors_ != 0) return kept_name(e);
  const std::string place = axis_name(e_.extents().size() - 1);
  return wide ? "*(float" + number(lanes_) + "*)(" + kept_name(e) + " + " + place + ")"
              : kept_name(e) + "[" + place + "]";
}
void PointPrinter::keep_value(Expr e, const std::string& value, bool wide) {
  if (vectors_ != 0 || grouped_) return line(kept_value(e, wide) + " = " + value + ";");
  const std::string place = axis_name(e_.extents().size() - 1);
  line(wide ? "*(float" + number(lanes_) + "*)(" + kept_name(e) + " + " + place + ") = " + value +
                  ";"
            : kept_name(e) + "[" + place + "] = " + value + ";");
}

std::string PointPrinter::text(Expr e, bool wide) {
  const Node& n = e_.node(e);
  switch (n.op) {
    case Op::kAxis: {
      const std::string base = axis_name(static_cast<std::size_t>(n.index));
      if (n.type == Type::kI64)
        return "(" + splat(n.type, base) + " + convert_long" + number(lanes_) + "(BP_IOTA_" +
               number(lanes_) + "))";
      return "(" + splat(n.type, base) + " + BP_IOTA_" + number(lanes_) + ")";
    }
    case Op::kLoad:
      return text_load(n, wide);
    case Op::kValue: {
      const std::string s = variable("s", n.index);
      const auto storage = static_cast<Storage>(n.integer);
      if (storage == Storage::kF32) return "BP_BITS_F32(" + s + ")";
      if (storage == Storage::kF64) return "BP_BITS_F64(" + s + ")";
      if (storage == Storage::kBF16) return "bp_from_bf16_1((ushort)" + s + ")";
      if (storage == Storage::kF16) return "bp_from_f16(" + s + ")";
      if (storage == Storage::kBool) return "(int)((uchar)" + s + " != 0)";
      return "(" + type_name(n.type, 1) + ")(" + std::string(element_type(storage)) + ")" + s;
    }
    case Op::kCast:
      return text_cast(ref(n.a, wide), e_.type(n.a), n.type, wide);
    case Op::kNarrow: {
      const auto storage = static_cast<Storage>(n.index);
      const std::string a = ref(n.a, wide), w = number(wide ? lanes_ : 1);
      if (storage == Storage::kBF16)
        return "bp_from_bf16_" + w + "(bp_to_bf16_" + w + "(" + a + "))";
      if (storage == Storage::kF16) return "bp_round_f16_" + w + "(" + a + ")";
      const std::string small = storage == Storage::kI8   ? "char"
                                : storage == Storage::kU8 ? "uchar"
                                                          : "short";
      if (wide)
        return "convert_int" + number(lanes_) + "(convert_" + small + number(lanes_) + "(" + a +
               "))";
      return "(int)(" + std::string(element_type(storage)) + ")" + a;
    }
    case Op::kSelect: {
      const std::string c = ref(n.a, wide), a = ref(n.b, wide), b = ref(n.c, wide);
      if (!wide) return "(" + c + " ? " + a + " : " + b + ")";
      if (is_wide_type(n.type))
        return "select(" + b + ", " + a + ", convert_long" + number(lanes_) + "(-" + c + "))";
      return "select(" + b + ", " + a + ", -" + c + ")";
    }
    case Op::kReduce:
      return "0 /* reduction outside its loop */";
    default:
      return is_unary(n.op) ? text_unary(n, wide) : text_binary(n, wide);
  }
}

std::string PointPrinter::text_cast(const std::string& from, Type from_type, Type to, bool wide) {
  (void)from_type;
  if (wide) return "convert_" + type_name(to, lanes_) + "(" + from + ")";
  return "(" + type_name(to, 1) + ")" + from;
}

std::string PointPrinter::call_own(Op op, bool wide, const std::string& arguments) {
  const std::int64_t width = wide ? lanes_ : 1;
  return "bp_" + std::string(own_function_name(op)) + "_" + number(width) + "(" + arguments + ")";
}

// Whole numbers of tensors wrap around. In OpenCL C and CUDA C those with a sign do not: compilers
// take a product with itself for positive, and a sum's sign for that of its parts.
std::string PointPrinter::text_whole(const std::string& a, const char* op, const std::string& b,
                                     Type type, std::int64_t width) {
  if (dialect_ == Dialect::kC11) return "(" + a + op + b + ")";
  const std::string to = type_name(type, width);
  if (width > 1)
    return "as_" + to + "(as_u" + to + "(" + a + ")" + op + "as_u" + to + "(" + b + "))";
  return "(" + to + ")((u" + to + ")(" + a + ")" + op + "(u" + to + ")(" + b + "))";
}

std::string PointPrinter::text_negative(const std::string& a, Type type, bool wide) {
  return text_whole(wide ? splat(type, "0") : "0", " - ", a, type, wide ? lanes_ : 1);
}

// Of whole numbers. That by zero is zero. The least number by -1 is a trap on some processors, for
// the remainder too: nothing is divided by either.
std::string PointPrinter::text_quotient(const Node& n, const char* op, const std::string& a,
                                        const std::string& b, bool wide) {
  const Type of = e_.type(n.a);
  const bool is_division = n.op == Op::kDiv;
  const std::string zero = "(" + b + " == 0)", minus = "(" + b + " == -1)";
  const std::string negative = text_negative(a, of, wide);
  if (!wide) {
    const std::string rest = "(" + minus + " ? " + (is_division ? negative : "0") + " : ";
    return "(" + zero + " ? 0 : " + rest + a + op + b + "))";
  }
  const std::string one = splat(of, "1"), none = splat(of, "0");
  const std::string by = "select(" + b + ", " + one + ", " + zero + " | " + minus + ")";
  std::string plain = "(" + a + op + by + ")";  // 0 is every remainder by 1
  if (!is_division) return plain;
  return "select(select(" + plain + ", " + negative + ", " + minus + "), " + none + ", " + zero +
         ")";
}

std::string PointPrinter::text_unary(const Node& n, bool wide) {
  const std::string a = ref(n.a, wide);
  const auto negative = [&] {
    return is_float(n.type) || !e_.is_data(n.a) ? "-" + a : text_negative(a, n.type, wide);
  };
  switch (n.op) {
    case Op::kNeg:
      return negative();
    case Op::kNot:
      return wide ? "(1 - " + a + ")" : "!" + a;
    case Op::kBitNot:
      return "~" + a;
    case Op::kSignbit: {  // of NaN, too
      const Type of = e_.type(n.a);
      const std::string w = wide ? number(lanes_) : "";
      const std::string bits = of == Type::kF32               ? "BP_AI_" + number(wide ? lanes_ : 1)
                               : dialect_ == Dialect::kOpenCL ? "as_long" + w
                                                              : "copysign";
      return truth("(" + bits + (bits == "copysign" ? "(1.0, " : "(") + a + ") < 0)", of, wide);
    }
    case Op::kRsqrt: {
      const std::string root(library_function(Op::kSqrt, n.type, dialect_));
      return (n.type == Type::kF32 ? "1.0f / " : "1.0 / ") + root + "(" + a + ")";
    }
    case Op::kAbs:
      if (!is_float(n.type))
        return wide ? "select(" + a + ", " + negative() + ", " + a + " < 0)"
                    : "(" + a + " < 0 ? " + negative() + " : " + a + ")";
      break;
    case Op::kSigmoid:
      if (n.type == Type::kF64) return "1.0 / (1.0 + exp(-" + a + "))";
      break;
    default:
      break;
  }
  if (n.type == Type::kF32 && is_own_function(n.op)) return call_own(n.op, wide, a);
  const std::string name(library_function(n.op, n.type, dialect_));
  const bool is_periodic = n.op == Op::kSin || n.op == Op::kCos || n.op == Op::kTan;
  if (wide && is_periodic && n.type == Type::kF32)
    return "bp_" + name + "_" + number(lanes_) + "(" + a + ")";
  return name + "(" + a + ")";
}

std::string PointPrinter::text_binary(const Node& n, bool wide) {
  const Type of = e_.type(n.a);
  const std::string a = ref(n.a, wide), b = ref(n.b, wide);
  const auto infix = [&](const char* op) { return "(" + a + op + b + ")"; };
  const auto wrapping = [&](const char* op) {
    const bool wraps = !is_float(n.type) && (e_.is_data(n.a) || e_.is_data(n.b));
    return wraps ? text_whole(a, op, b, n.type, wide ? lanes_ : 1) : infix(op);
  };
  switch (n.op) {
    case Op::kAdd:
      return wrapping(" + ");
    case Op::kSub:
      return wrapping(" - ");
    case Op::kMul:
      return wrapping(" * ");
    case Op::kDiv:
    case Op::kMod: {
      const char* op = n.op == Op::kDiv ? " / " : " % ";
      const Node& divisor = e_.node(n.b);
      if (is_float(of) || (divisor.op == Op::kConstant && divisor.integer != 0)) return infix(op);
      return text_quotient(n, op, a, b, wide);
    }
    case Op::kMin:
    case Op::kMax: {
      const bool largest = n.op == Op::kMax;
      if (of == Type::kF32) return call_own(n.op, wide, a + ", " + b);
      const char* op = largest ? " > " : " < ";
      if (of == Type::kF64) {
        if (wide)
          return "select(" + b + ", " + a + ", (" + a + op + b + ") | (" + a + " != " + a + "))";
        return "((" + a + op + b + ") || (" + a + " != " + a + ") ? " + a + " : " + b + ")";
      }
      if (wide) return std::string(largest ? "max(" : "min(") + a + ", " + b + ")";
      return "(" + a + op + b + " ? " + a + " : " + b + ")";
    }
    case Op::kLt:
      return truth(infix(" < "), of, wide);
    case Op::kLe:
      return truth(infix(" <= "), of, wide);
    case Op::kEq:
      return truth(infix(" == "), of, wide);
    case Op::kNe:
      return truth(infix(" != "), of, wide);
    case Op::kAnd:
      return infix(" & ");
    case Op::kOr:
      return infix(" | ");
    case Op::kXor:
      return infix(" ^ ");
    case Op::kShl:
      return infix(" << ");
    case Op::kShr:
      return infix(" >> ");
    default: {
      const std::string name(library_function(n.op, n.type, dialect_));
      // PoCL's pow and fmod of a double16 are wrong in all lanes, or never end, where one of them
      // is zero or not finite.
      if (!wide || of != Type::kF64) return name + "(" + a + ", " + b + ")";
      std::string all;
      for (std::int64_t i = 0; i < lanes_; ++i) {
        const std::string lane = std::string(".s") + kLaneDigits[i];
        all += (i ? ", " : "") + name + "(" + a + lane + ", " + b + lane + ")";
      }
      return splat(n.type, all);
    }
  }
}

std::string PointPrinter::text_load(const Node& n, bool wide) {
  const auto storage = static_cast<Storage>(n.integer);
  const std::string t = variable("t", n.index);
  const auto one = [&](const std::string& at) { return element_load(storage, t, at); };
  if (!chunks_.empty())
    if (const auto chunk = chunks_.find(chunk_of(static_cast<std::size_t>(n.index), n.a));
        chunk != chunks_.end())
      return element_load(storage, chunk->second.name, chunk->second.index);
  if (!wide) return one(ref(n.a, false));
  std::int64_t stride = 0;
  const bool known = e_.stride(n.a, lane_axis_, stride);
  if (known && stride == 0) return splat(n.type, one(ref(n.a, false)));
  const std::string w = number(lanes_);
  if (known && stride == 1) {
    const std::string at = t + " + " + ref(n.a, false);
    switch (storage) {
      case Storage::kBF16:
        return "bp_from_bf16_" + w + "(vload" + w + "(0, " + at + "))";
      case Storage::kF16:
        return "BP_LOAD_F16_" + w + "(0, " + at + ")";
      case Storage::kI16:
      case Storage::kI8:
      case Storage::kU8:
        return "convert_int" + w + "(vload" + w + "(0, " + at + "))";
      case Storage::kBool:
        return "((convert_int" + w + "(vload" + w + "(0, " + at + ")) != 0) & 1)";
      case Storage::kF32:
      case Storage::kI32:
        if (lanes_ == 16)
          return std::string("BP_LOAD_") + (storage == Storage::kF32 ? "F32" : "I32") + "_16(0, " +
                 at + ")";
        [[fallthrough]];
      default:
        return "vload" + w + "(0, " + at + ")";
    }
  }
  const std::string at = ref(n.a, true);
  std::string lanes;
  for (std::int64_t i = 0; i < lanes_; ++i)
    lanes += (i ? ", " : "") + one(at + ".s" + kLaneDigits[i]);
  return "(" + type_name(n.type, lanes_) + ")(" + lanes + ")";
}

std::string PointPrinter::initial(Reduction how, Type type) const {
  const Node n = identity(how, type);
  if (type == Type::kI32 && n.integer == INT32_MIN) return "(-2147483647 - 1)";
  return literal(n);
}

// combine() at widths that have no functions of their own.
std::string PointPrinter::join(Reduction how, Type type, const std::string& a, const std::string& b,
                               std::int64_t width) {
  if (how == Reduction::kSum || how == Reduction::kProduct)
    return "(" + fold(how, type, a, b, width) + ")";
  if (width == 1) return "(" + combine(how, type, a, b, false) + ")";
  const bool largest = how != Reduction::kMin;
  if (!is_float(type)) return (largest ? "max(" : "min(") + a + ", " + b + ")";
  const std::string better = a + (largest ? " > " : " < ") + b;
  return "select(" + b + ", " + a + ", " +
         (how == Reduction::kTop ? better : "(" + better + ") | (" + a + " != " + a + ")") + ")";
}

std::string PointPrinter::fold(Reduction how, Type type, const std::string& a, const std::string& b,
                               std::int64_t width) {
  const char* op = how == Reduction::kSum ? " + " : " * ";
  return is_float(type) ? a + op + b : text_whole(a, op, b, type, width);
}

std::string PointPrinter::combine(Reduction how, Type type, const std::string& a,
                                  const std::string& b, bool wide) {
  if (how == Reduction::kSum || how == Reduction::kProduct)
    return fold(how, type, a, b, wide ? lanes_ : 1);
  const bool largest = how != Reduction::kMin && how != Reduction::kArgMin;
  if (how == Reduction::kTop && is_float(type))
    return wide ? "select(" + b + ", " + a + ", " + a + " > " + b + ")"
                : "(" + a + " > " + b + " ? " + a + " : " + b + ")";
  if (type == Type::kF32) return call_own(largest ? Op::kMax : Op::kMin, wide, a + ", " + b);
  const std::string op = largest ? " > " : " < ";
  if (type == Type::kF64) {
    if (wide)
      return "select(" + b + ", " + a + ", (" + a + op + b + ") | (" + a + " != " + a + "))";
    return "((" + a + op + b + ") || (" + a + " != " + a + ") ? " + a + " : " + b + ")";
  }
  if (wide) return (largest ? "max(" : "min(") + a + ", " + b + ")";
  return "(" + a + op + b + " ? " + a + " : " + b + ")";
}

}  // namespace backplane::kernelgen
