// Numbers of a program beside tensors: the dtype they take, and whether it can hold them.
#pragma once

#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

namespace backplane::bridge {

// Whether a kernel that computes in the dtype gets the number: in range, whole where the dtype is.
// Floats round; shorter ones than float32 are computed in float32, so small numbers are not lost.
bool holds(const c10::Scalar& number, c10::ScalarType dtype);

// What PyTorch's kernels for the CPU do with a number, or a tensor without dimensions, beside
// elements of a short float: factors and divisors stay as they are in float32, every other operand
// is rounded to the elements' dtype first. `op` and `argument`: the operator's name, and the
// number's in its schema.
bool is_rounded(std::string_view op, std::string_view argument);
c10::Scalar rounded_number(std::string_view op, std::string_view argument,
                           const c10::Scalar& number, std::optional<c10::ScalarType> beside);

// A number that is an operand. Where its dtype cannot hold it, one that leads to the same result;
// else its own kind, and why plugins cannot have the node: PyTorch's kernels wrap around, compute
// in a wider type or refuse, each in its own way.
struct NumberOperand {
  c10::ScalarType dtype;
  std::string host_reason;
};
NumberOperand number_operand(std::string_view op, std::string_view argument,
                             const c10::Scalar& number, std::optional<c10::ScalarType> beside,
                             c10::ScalarType result);

// The same of a number that is an attribute: why plugins cannot have the node, or nothing. `first`:
// the dtype of the first operand.
std::string attribute_misfit(const c10::Scalar& number, std::optional<c10::ScalarType> first,
                             c10::ScalarType result);

}  // namespace backplane::bridge
