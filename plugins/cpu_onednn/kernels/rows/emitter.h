// Turns ATen nodes into instructions of a row program.
#pragma once

#include "kernels/rows/row_program.h"

#include <string_view>

namespace backplane::onednn {

// The values of the graph that a program can read.
class ProgramScope {
 public:
  virtual ~ProgramScope() = default;
  virtual Register read(std::uint32_t value, Domain domain) = 0;
  virtual Type type(std::uint32_t value) const = 0;
  virtual bool zero_dim(std::uint32_t value) const = 0;
};

// One node on its way into a program.
class Emitter {
 public:
  // row_length: elements of a row, for means.
  Emitter(RowProgram& program, const sdk::NodeView& node, const sdk::Dims& dims,
          ProgramScope& scope, std::int64_t row_length)
      : program_(program), node_(node), dims_(dims), scope_(scope), row_length_(row_length) {}

  const sdk::NodeView& node() const { return node_; }
  const sdk::Dims& dims() const { return dims_; }
  RowProgram& program() { return program_; }
  std::int64_t row_length() const { return row_length_; }
  Type out(std::size_t i = 0) const { return known_type(node_.result(i).dtype()); }
  Domain domain() const { return domain_of(out()); }
  bool has(std::size_t operand) const { return node_.has_operand(operand); }
  Type type(std::size_t operand) const { return scope_.type(node_.operand_index(operand)); }
  std::int64_t elements(std::size_t operand) const {
    return product(dims_(node_.operand(operand).dims()));
  }

  // Operand i in a domain; where it is absent, the number in the attribute of that name.
  Register operand(std::size_t i, Domain domain, std::string_view name = {});
  Register number(double value, Domain domain);
  // The number of an attribute that may be a dim class, or the fallback.
  Register attribute(std::string_view name, double fallback, Domain domain);
  double real(std::string_view name, double fallback) const;
  bool present(std::string_view name) const { return node_.attribute(name) != nullptr; }
  Register apply(Opcode op, Register a, Register b = kNoRegister, Register c = kNoRegister) {
    return program_.apply(op, a, b, c);
  }
  // Operand i as PyTorch promotes it: an integer beside 16-bit floats has their digits.
  Register promoted(std::size_t i, Type common, std::string_view name = {});
  // Operand i as a factor or divisor, of which one of a single element is not promoted.
  Register scale(std::size_t i, std::string_view name = {});
  // The type in which two operands (or an operand and a number) are compared.
  Type common_type(std::size_t i, std::size_t j, std::string_view name) const;
  // What the result's type keeps of operand i; may be the operand's register.
  Register converted(std::size_t i);
  // Wraps integers to the result's width.
  Register wrapped(Register r);

 private:
  RowProgram& program_;
  const sdk::NodeView& node_;
  const sdk::Dims& dims_;
  ProgramScope& scope_;
  std::int64_t row_length_;
};

// Results in the order of the node's; kNoRegister where nobody can want one.
using Emit = std::vector<Register> (*)(Emitter& emitter);

struct ProgramOp {
  std::string_view name;
  Emit emit;
  enum Kind : std::uint8_t {
    kPointwise,
    kFloatsOnly,  // pointwise, of float results only
    kRow,         // reduces over the dims that row_dims gives
  } kind;
};
// Null where the operator is none of these. Those of the tables come before kernelgen's formulas.
const ProgramOp* find_program_op(std::string_view name);
std::span<const ProgramOp> pointwise_program_ops();
std::span<const ProgramOp> row_program_ops();
std::span<const ProgramOp> formula_program_ops();

// Of operators of kind kRow: the dims that a row is made of, ascending.
std::vector<std::size_t> row_dims(const sdk::NodeView& node);
// Of operators of kind kRow: whether a result is one value a row.
bool row_result_is_narrow(const sdk::NodeView& node, std::size_t result);

}  // namespace backplane::onednn
