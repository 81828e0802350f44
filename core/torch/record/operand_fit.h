// Which shapes the operands of an operator must have where neither its shape function nor every
// kernel looks: gradient operators, norms, losses. PyTorch's own calls fit; a program's may not.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <functional>
#include <string_view>

namespace backplane::record {

struct OperatorInfo;

// The operands of one call.
class Operands {
 public:
  // Gives a call's operand expanded to sizes.
  using Expand = std::function<c10::IValue(const c10::IValue& tensor, c10::IntArrayRef sizes)>;

  Operands(const OperatorInfo& info, torch::jit::Stack& stack, Expand expand);

  const c10::IValue& at(std::size_t i) const { return stack_[base_ + i]; }
  bool has(std::size_t i) const;  // a tensor is given
  at::IntArrayRef sizes(std::size_t i) const;
  std::int64_t size(std::size_t i, std::int64_t dim) const;  // throws where there is none
  std::int64_t rank(std::size_t i) const { return static_cast<std::int64_t>(sizes(i).size()); }

  // Throw Refusal where an operand that is given does not fit.
  void need(std::size_t i, at::IntArrayRef sizes) const;
  void need(std::size_t i, at::IntArrayRef sizes, bool fits) const;  // `sizes` for the reason
  void like(std::size_t i, std::size_t other) const { need(i, sizes(other)); }
  void dims(std::size_t i, std::int64_t rank) const;
  // PyTorch's kernel broadcasts: the plugin gets the operand expanded.
  void expand(std::size_t i, at::IntArrayRef sizes);
  [[noreturn]] void refuse(std::size_t i, std::string_view why) const;

 private:
  const OperatorInfo& info_;
  torch::jit::Stack& stack_;
  const std::size_t base_;
  Expand expand_;
};

// Throws Refusal with a reason: PyTorch then raises, broadcasts or computes by itself.
using OperandFit = void (*)(Operands& operands);

OperandFit find_operand_fit(std::string_view name);  // "aten.glu_backward"; null: none

}  // namespace backplane::record
