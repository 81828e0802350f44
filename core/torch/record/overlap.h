// Which operands of an operator lie in the same memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

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
bool shows_element_twice(const at::Tensor& tensor);

// Why a graph of values cannot say what a call does that writes: an element that is written is
// another operand's too, or is written twice. PyTorch refuses some of these calls, and what the
// others give depends on how the kernel walks. Empty where there is no such element. `arguments`
// end the stack.
std::string find_overlap(const OperatorInfo& info, const torch::jit::Stack& stack);

// Autograd makes the histories of views anew from their base as it lies then, by operators on its
// dims where it has no memory. Empty where the call turns none that has views.
std::string find_turned_beside_views(const OperatorInfo& info, const torch::jit::Stack& stack);

// What an operator with out= writes, unless that is an empty tensor of its own. PyTorch refuses to
// resize most that are read as well, and some kernels read what they have resized; of the others,
// what else shows their memory keeps its sizes, which a graph of values cannot say.
class SizesOfOuts {
 public:
  SizesOfOuts(const OperatorInfo& info, const torch::jit::Stack& stack);
  // What the call has resized, or would have but for functionalization, which gives the old sizes
  // to the result; empty where nothing.
  std::string find_resized() const;

 private:
  const std::string& name_;
  std::vector<std::pair<at::Tensor, std::vector<std::int64_t>>> outs_;
  bool is_fitting_ = true;  // a result has other sizes than what it is written to
};

}  // namespace backplane::record
