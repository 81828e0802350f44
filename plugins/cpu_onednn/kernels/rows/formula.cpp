// Pointwise operators as kernelgen's expressions have them, lowered to instructions.
#include <backplane/kernelgen/operators.hpp>

#include <map>
#include <numbers>
#include <stdexcept>

#include "kernels/rows/emitter.h"

namespace backplane::onednn {
namespace {

using kernelgen::Expr;
using kernelgen::Expressions;
using kernelgen::Node;
using kernelgen::Op;
using kernelgen::Storage;
using Scalar = kernelgen::Type;

Storage storage_of(Type type) {
  switch (type) {
    case Type::kF32:
      return Storage::kF32;
    case Type::kBF16:
      return Storage::kBF16;
    case Type::kF16:
      return Storage::kF16;
    case Type::kF64:
      return Storage::kF64;
    case Type::kI64:
      return Storage::kI64;
    case Type::kI32:
      return Storage::kI32;
    case Type::kI16:
      return Storage::kI16;
    case Type::kI8:
      return Storage::kI8;
    case Type::kU8:
      return Storage::kU8;
    case Type::kBool:
      return Storage::kBool;
  }
  return Storage::kBool;
}

Domain domain_of(Scalar type) {
  if (type == Scalar::kF32) return Domain::kF32;
  return type == Scalar::kF64 ? Domain::kF64 : Domain::kI64;
}

class Source final : public kernelgen::OperatorSource {
 public:
  Source(Emitter& emitter, Expressions& expressions)
      : emitter_(emitter), expressions_(expressions) {}
  bool has(std::size_t i) const override { return emitter_.has(i); }
  Expr operand(std::size_t i) override { return expressions_.value(i, operand_storage(i)); }
  Storage operand_storage(std::size_t i) const override { return storage_of(emitter_.type(i)); }
  std::int64_t operand_elements(std::size_t i) const override { return emitter_.elements(i); }
  Storage result_storage(std::size_t i) const override { return storage_of(emitter_.out(i)); }
  std::optional<kernelgen::Number> number(std::string_view name) const override {
    const bp_attribute* a = emitter_.node().attribute(name);
    if (a == nullptr) return std::nullopt;
    if (a->kind == BP_ATTRIBUTE_FLOAT) return kernelgen::Number{true, a->real, 0};
    return kernelgen::Number{false, 0, emitter_.dims().attribute(emitter_.node(), name, 0)};
  }
  std::string_view text(std::string_view name) const override {
    return emitter_.node().text_or(name, "");
  }
  std::int64_t row_length() const override { return emitter_.row_length(); }

 private:
  Emitter& emitter_;
  Expressions& expressions_;
};

// Of those that have one name here and there.
Opcode opcode_of(Op op) {
  switch (op) {
#define BP_SAME(name) \
  case Op::k##name:   \
    return Opcode::k##name;
    // clang-format off
    BP_SAME(Neg) BP_SAME(Abs) BP_SAME(BitNot) BP_SAME(Exp) BP_SAME(Expm1) BP_SAME(Log)
    BP_SAME(Log1p) BP_SAME(Tanh) BP_SAME(Erf) BP_SAME(Sigmoid) BP_SAME(Sqrt) BP_SAME(Rsqrt)
    BP_SAME(Floor) BP_SAME(Ceil) BP_SAME(Trunc) BP_SAME(Round) BP_SAME(Sin) BP_SAME(Cos)
    BP_SAME(Tan) BP_SAME(Asin) BP_SAME(Acos) BP_SAME(Atan) BP_SAME(Sinh) BP_SAME(Cosh)
    BP_SAME(Asinh) BP_SAME(Acosh) BP_SAME(Atanh) BP_SAME(Exp2) BP_SAME(Log2) BP_SAME(Log10)
    BP_SAME(Erfc) BP_SAME(Lgamma) BP_SAME(Add) BP_SAME(Sub) BP_SAME(Mul) BP_SAME(Min)
    BP_SAME(Max) BP_SAME(Pow) BP_SAME(Atan2) BP_SAME(Fmod) BP_SAME(Lt) BP_SAME(Le) BP_SAME(Eq)
    BP_SAME(Ne)
    // clang-format on
#undef BP_SAME
                                    case Op::kNot : return Opcode::kLogicalNot;
    case Op::kMod:
      return Opcode::kFmod;
    default:
      throw std::logic_error("an expression that no instruction is for");
  }
}

// Of one node's expressions, each once.
class Lowering {
 public:
  Lowering(Emitter& emitter, const Expressions& expressions)
      : emitter_(emitter), expressions_(expressions) {}

  // A result: never the register of an operand.
  Register result(Expr e) {
    const Register r = lower(e, truth_domain(e));
    const Op op = node(e).op;
    return op == Op::kValue || op == Op::kConstant ? emitter_.apply(Opcode::kCopy, r) : r;
  }

 private:
  const Node& node(Expr e) const { return expressions_.node(e); }

  // The domain in which a truth value comes about; of those that are read, the fastest.
  Domain truth_domain(Expr e) const {
    const Node& n = node(e);
    if (n.type != Scalar::kBool) return domain_of(n.type);
    if (n.op == Op::kSelect) return truth_domain(n.b);
    return n.a == kernelgen::kNoExpr ? Domain::kF32 : truth_domain(n.a);
  }

  // `truth`: the domain to have truth values in; others have that of their type.
  Register lower(Expr e, Domain truth) {
    const Domain d = node(e).type == Scalar::kBool ? truth : domain_of(node(e).type);
    const auto [at, fresh] = known_.try_emplace({e, d}, kNoRegister);
    if (!fresh) return at->second;
    const Register made = make(node(e), d);
    known_[{e, d}] = made;
    return made;
  }

  Register make(const Node& n, Domain d) {
    switch (n.op) {
      case Op::kConstant:
        return kernelgen::is_float(n.type)
                   ? emitter_.number(n.real, d)
                   : emitter_.program().constant(d, static_cast<double>(n.integer), n.integer);
      case Op::kValue:
        return emitter_.operand(static_cast<std::size_t>(n.index), d);
      case Op::kCast:
        return cast(n, d);
      case Op::kNarrow:
        return emitter_.apply(wrap(static_cast<Storage>(n.index)),
                              d == Domain::kI64 ? unwrapped(node(n.a), d) : lower(n.a, d));
      case Op::kSelect:
        return emitter_.apply(Opcode::kWhere, lower(n.a, d), lower(n.b, d), lower(n.c, d));
      case Op::kSignbit: {
        const Register x = lower(n.a, domain_of(node(n.a).type));
        return emitter_.program().convert(emitter_.apply(Opcode::kSignbit, x), d);
      }
      case Op::kLt:
      case Op::kLe:
      case Op::kEq:
      case Op::kNe: {
        const Domain compared = domain_of(node(n.a).type);
        return emitter_.program().convert(
            emitter_.apply(opcode_of(n.op), lower(n.a, compared), lower(n.b, compared)), d);
      }
      default: {
        const Register r = unwrapped(n, d);
        return n.type == Scalar::kI32 && grows(n.op) ? emitter_.apply(Opcode::kWrapI32, r) : r;
      }
    }
  }

  // Whether an integer may need more bits than those it is made of.
  static bool grows(Op op) {
    return op == Op::kAdd || op == Op::kSub || op == Op::kMul || op == Op::kNeg || op == Op::kAbs ||
           op == Op::kDiv || op == Op::kPow;
  }
  // Integers of 32 bits are computed in 64; what they wrap to may be left to a narrower type.
  Register unwrapped(const Node& n, Domain d) {
    const bool bits = d == Domain::kI64 && n.type != Scalar::kBool;
    switch (n.op) {
      case Op::kConstant:
      case Op::kValue:
      case Op::kCast:
      case Op::kNarrow:
      case Op::kSelect:
        return make(n, d);
      case Op::kNot:
        return emitter_.apply(Opcode::kLogicalNot, truth(n.a, d));
      case Op::kAnd:
        return bits ? two(Opcode::kBitAnd, n, d) : logical(Opcode::kAnd, n, d);
      case Op::kOr:
        return bits ? two(Opcode::kBitOr, n, d) : logical(Opcode::kOr, n, d);
      case Op::kXor:
        return bits ? two(Opcode::kBitXor, n, d) : logical(Opcode::kXor, n, d);
      case Op::kDiv:
        return two(d == Domain::kI64 ? Opcode::kTruncDiv : Opcode::kDiv, n, d);
      case Op::kNormalCdf: {
        const Register x = emitter_.number(-std::numbers::sqrt2 / 2, d);
        const Register tail =
            emitter_.apply(Opcode::kErfc, emitter_.apply(Opcode::kMul, lower(n.a, d), x));
        return emitter_.apply(Opcode::kMul, tail, emitter_.number(0.5, d));
      }
      default:
        if (kernelgen::is_binary(n.op)) return two(opcode_of(n.op), n, d);
        return emitter_.apply(opcode_of(n.op), lower(n.a, d));
    }
  }
  Register two(Opcode op, const Node& n, Domain d) {
    const Register a = lower(n.a, d);
    return emitter_.apply(op, a, lower(n.b, d));
  }
  Register logical(Opcode op, const Node& n, Domain d) {
    const Register a = truth(n.a, d);
    return emitter_.apply(op, a, truth(n.b, d));
  }
  // To logic any number but zero is true.
  Register truth(Expr e, Domain d) {
    const Node& n = node(e);
    const bool is_number = n.op == Op::kNe && domain_of(node(n.a).type) == d && is_zero(n.b);
    return lower(is_number ? n.a : e, d);
  }
  bool is_zero(Expr e) const {
    const Node& n = node(e);
    return n.op == Op::kConstant && n.real == 0 && n.integer == 0;
  }

  Register cast(const Node& n, Domain to) {
    const Node& from = node(n.a);
    if (from.type == Scalar::kBool) return lower(n.a, to);
    const bool to_float = kernelgen::is_float(n.type);
    // Loads convert.
    if (from.op == Op::kValue && to_float)
      return emitter_.operand(static_cast<std::size_t>(from.index), to);
    Register r = lower(n.a, to);
    const bool from_float = kernelgen::is_float(from.type);
    if (from_float && !to_float) r = emitter_.apply(Opcode::kTrunc, r);
    r = emitter_.program().convert(r, to);
    if (n.type != Scalar::kI32) return r;
    return emitter_.apply(from_float ? Opcode::kToI32 : Opcode::kWrapI32, r);
  }

  static Opcode wrap(Storage storage) {
    if (storage == Storage::kBF16) return Opcode::kToBF16;
    if (storage == Storage::kF16) return Opcode::kToF16;
    if (storage == Storage::kI16) return Opcode::kWrapI16;
    return storage == Storage::kI8 ? Opcode::kWrapI8 : Opcode::kWrapU8;
  }

  Emitter& emitter_;
  const Expressions& expressions_;
  std::map<std::pair<Expr, Domain>, Register> known_;
};

std::vector<Register> emit_formula(Emitter& e) {
  Expressions expressions;
  Source source(e, expressions);
  const std::vector<Expr> exprs =
      kernelgen::find_operator(e.node().op())->emit(expressions, source);
  Lowering lowering(e, expressions);
  std::vector<Register> results(exprs.size(), kNoRegister);
  for (std::size_t i = 0; i < exprs.size() && i < e.node().result_count(); ++i)
    if (exprs[i] != kernelgen::kNoExpr && e.node().result_index(i) != BP_NONE)
      results[i] = lowering.result(exprs[i]);
  return results;
}

}  // namespace

std::span<const ProgramOp> formula_program_ops() {
  static const auto& all = *[] {
    auto* made = new std::vector<ProgramOp>;
    for (const kernelgen::Operator* op : kernelgen::operators())
      if (op->kind == kernelgen::Operator::kPointwise)
        made->push_back({op->name, emit_formula, ProgramOp::kPointwise});
      else if (op->kind == kernelgen::Operator::kFloatsOnly)
        made->push_back({op->name, emit_formula, ProgramOp::kFloatsOnly});
    return made;
  }();
  return all;
}

}  // namespace backplane::onednn
