// Shared by the operator tables.
#pragma once

#include <backplane/kernelgen/operators.hpp>

#include <span>

namespace backplane::kernelgen {

using Results = std::vector<Expr>;

// Short forms over one node.
struct Emitter {
  Expressions& e;
  OperatorSource& s;

  Type type(std::size_t result = 0) const { return compute_type(s.result_storage(result)); }
  // Operand i as PyTorch promotes it: an integer beside 16-bit floats has their digits.
  Expr in(std::size_t i, Type as) {
    return is_wide_integer(i) ? promoted(i, as, s.result_storage(0)) : unpromoted(i, as);
  }
  Expr promoted(std::size_t i, Type as, Storage common) {
    const Expr x = unpromoted(i, as);
    const bool is_short = common == Storage::kBF16 || common == Storage::kF16;
    return is_short && is_float(as) && is_wide_integer(i) ? e.narrow(x, common) : x;
  }
  Expr unpromoted(std::size_t i, Type as) { return e.cast(s.operand(i), as); }
  // A factor or divisor, of which one of a single element is not promoted.
  Expr scale(std::size_t i, Type as, std::string_view name) {
    return s.has(i) && s.operand_elements(i) == 1 ? unpromoted(i, as) : in(i, as, name);
  }
  bool is_wide_integer(std::size_t i) const {
    const Storage storage = s.operand_storage(i);
    return !is_float(storage) && storage_bytes(storage) > 1;
  }
  // Operand i, or the number in the attribute of that name.
  Expr in(std::size_t i, Type as, std::string_view name) {
    return s.has(i) ? in(i, as) : attribute(name, 0, as);
  }
  Expr attribute(std::string_view name, double fallback, Type as) {
    const auto n = s.number(name);
    if (!n) return e.constant(as, fallback);
    if (!n->is_real) return e.integer(as, n->integer);
    return e.constant(as, n->real);
  }
  double real(std::string_view name, double fallback) const {
    const auto n = s.number(name);
    return !n ? fallback : n->is_real ? n->real : static_cast<double>(n->integer);
  }
  // The type in which operand i is compared with operand j or with a number.
  Type common(std::size_t i, std::size_t j, std::string_view name) {
    const Type a = compute_type(s.operand_storage(i));
    if (s.has(j)) return promote(a, compute_type(s.operand_storage(j)));
    const auto n = s.number(name);
    if (n && n->is_real && !is_float(a)) return Type::kF32;
    return a == Type::kBool ? Type::kI32 : a;
  }
  Expr number(double v) { return e.constant(type(), v); }
  // kMax and kMin take the second of equal ones: the operand, so that its zero keeps its sign.
  Expr at_least(Expr low, Expr x) { return e.binary(Op::kMax, low, x); }
  Expr at_most(Expr high, Expr x) { return e.binary(Op::kMin, high, x); }
  // Integers as the result has them. Floats keep what float32 computes until they are stored.
  Expr wrap(Expr x) {
    const Storage storage = s.result_storage(0);
    return is_float(storage) ? e.cast(x, compute_type(storage)) : e.narrow(x, storage);
  }
  // A conversion of operand i gives what the result's type can hold, stored or not.
  Expr converted(std::size_t i) {
    const Storage storage = s.result_storage(0);
    const Expr x = in(i, type());
    return s.operand_storage(i) == storage ? x : e.narrow(x, storage);
  }
};

std::span<const Operator> arithmetic_operators();
std::span<const Operator> activation_operators();
std::span<const Operator> row_operators();

}  // namespace backplane::kernelgen
