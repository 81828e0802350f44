// Which operands of an operator lie in the same memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>

#include "core/torch/record/operator_info.h"

namespace backplane::record {

// Some elements of a storage: those at offset + the sum of index * stride, index below size.
struct Elements {
  std::int64_t offset = 0;
  std::span<const std::int64_t> sizes, strides;  // strides not negative
};

// Whether two of them share an element; true also where that takes too long to find out.
bool share_element(const Elements& a, const Elements& b);
// Whether two indices lead to one element; true also where that takes too long to find out.
bool has_element_twice(const Elements& elements);

// Why a graph of values cannot say what a call does that writes: an element that is written is
// another operand's too, or is written twice. PyTorch refuses some of these calls, and what the
// others give depends on how the kernel walks. Empty where there is no such element. `arguments`
// end the stack.
std::string find_overlap(const OperatorInfo& info, const torch::jit::Stack& stack);

}  // namespace backplane::record
