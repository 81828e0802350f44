// Operators whose numbers change from call to call (the step size of an optimizer) in a form that
// takes them as values, so that one executable serves all of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <string_view>

namespace backplane::device {

struct Rewrite {
  std::string_view op;  // of the IR: "aten.addcdiv"
  int number_argument;  // position of the number that becomes a tensor
  // The arguments of the operator with tensors for the numbers, to its result.
  at::Tensor (*run)(const torch::jit::Stack& arguments);
};

// Null for most operators.
const Rewrite* find_rewrite(std::string_view op);

}  // namespace backplane::device
