#include "kernels/rows/emitter.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "kernels/kernel_registry.h"

namespace backplane::onednn {

Register Emitter::operand(std::size_t i, Domain domain, std::string_view name) {
  if (!has(i)) return attribute(name, 0, domain);
  return scope_.read(node_.operand_index(i), domain);
}

Register Emitter::number(double value, Domain domain) {
  return program_.constant(domain, value, static_cast<std::int64_t>(value));
}

double Emitter::real(std::string_view name, double fallback) const {
  const bp_attribute* a = node_.attribute(name);
  if (a == nullptr) return fallback;
  if (a->kind == BP_ATTRIBUTE_FLOAT) return a->real;
  return static_cast<double>(a->is_class ? dims_(a->integer) : a->integer);
}

Register Emitter::attribute(std::string_view name, double fallback, Domain domain) {
  const bp_attribute* a = node_.attribute(name);
  if (a == nullptr) return number(fallback, domain);
  if (a->kind == BP_ATTRIBUTE_FLOAT) return number(a->real, domain);
  const std::int64_t integer = a->is_class ? dims_(a->integer) : a->integer;
  return program_.constant(domain, static_cast<double>(integer), integer);
}

Register Emitter::promoted(std::size_t i, Type common, std::string_view name) {
  const Register r = operand(i, domain_of(common), name);
  const bool is_short = common == Type::kBF16 || common == Type::kF16;
  if (!is_short || !has(i) || is_float(type(i)) || holds(common, type(i))) return r;
  return apply(common == Type::kBF16 ? Opcode::kToBF16 : Opcode::kToF16, r);
}

Register Emitter::scale(std::size_t i, std::string_view name) {
  return has(i) && elements(i) == 1 ? operand(i, domain()) : promoted(i, out(), name);
}

Type Emitter::common_type(std::size_t i, std::size_t j, std::string_view name) const {
  if (!has(i) && !has(j)) return Type::kF64;
  if (!has(i) || !has(j)) {
    const Type t = type(has(i) ? i : j);
    const bp_attribute* a = node_.attribute(name);
    if (!is_float(t) && a && a->kind == BP_ATTRIBUTE_FLOAT) return Type::kF32;
    return t;
  }
  const Type a = type(i), b = type(j);
  const bool a_number = scope_.zero_dim(node_.operand_index(i)),
             b_number = scope_.zero_dim(node_.operand_index(j));
  // A 0-d operand does not widen one of the same category.
  if (is_float(a) == is_float(b) && a_number != b_number) return a_number ? b : a;
  return promote(a, b);
}

Register Emitter::converted(std::size_t i) {
  const Type from = type(i), to = out();
  if (from == to || (is_float(to) && holds(to, from))) return operand(i, domain_of(to));
  const Register r = operand(i, domain_of(from));
  if (to == Type::kBool) return apply(Opcode::kTruth, r);
  if (!is_float(to)) {
    const bool from_float = is_float(from);
    const Register whole =
        program_.convert(from_float ? apply(Opcode::kTrunc, r) : r, domain_of(to));
    // Of 32 bits and fewer they are made from one of 32, which out of range is the most negative.
    return wrapped(from_float && to != Type::kI64 ? apply(Opcode::kToI32, whole) : whole);
  }
  const Register real = program_.convert(r, domain_of(to));
  if (to == Type::kBF16) return apply(Opcode::kToBF16, real);
  return to == Type::kF16 ? apply(Opcode::kToF16, real) : real;
}

Register Emitter::wrapped(Register r) {
  switch (out()) {
    case Type::kI32:
      return apply(Opcode::kWrapI32, r);
    case Type::kI16:
      return apply(Opcode::kWrapI16, r);
    case Type::kI8:
      return apply(Opcode::kWrapI8, r);
    case Type::kU8:
      return apply(Opcode::kWrapU8, r);
    default:
      return r;
  }
}

const ProgramOp* find_program_op(std::string_view name) {
  static const auto& table = *[] {
    auto* made = new std::unordered_map<std::string_view, const ProgramOp*>;
    for (const auto ops : {pointwise_program_ops(), row_program_ops(), formula_program_ops()})
      for (const ProgramOp& op : ops)
        if (find_kernel(op.name) == nullptr || op.kind == ProgramOp::kRow)
          made->emplace(op.name, &op);
    return made;
  }();
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace backplane::onednn
