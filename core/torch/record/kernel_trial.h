// What eager mode refuses is refused here: the CPU's own kernel is asked, with numbers that mean
// nothing. Shape functions, which recordings go by, look at sizes alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace backplane::record {

// By what the tensors of a call are replaced.
struct Trial {
  bool (*is_replaced)(const at::Tensor& tensor);  // the others are numbers, and stay
  // With its own sizes, on the CPU, each number `fill`. One function serves one try: tensors that
  // share memory may do so there.
  std::function<std::function<at::Tensor(const at::Tensor& like)>(int fill)> as_it_lies;
  // Small tensors lie in the order of the call's, whose strides are those of eager mode. Else they
  // are contiguous.
  bool keeps_order = false;
};

// What the kernel throws of such a call, null where it takes it. Large sizes are made small, each
// equal one alike, but where a kernel may trust integers that count or place elements.
std::exception_ptr find_refusal(const c10::OperatorHandle& op,
                                std::span<const c10::IValue> arguments, const Trial& trial);

// The same, asked once in the process for calls that are alike: of equal dtypes, numbers and small
// sizes. `is_small`: the tensors may run with their own sizes. Null where only larger ones tell.
std::exception_ptr find_refusal_of_shapes(const c10::OperatorHandle& op,
                                          std::span<const c10::IValue> arguments,
                                          const Trial& trial, bool is_small);

// The same of tensors with their own sizes alone.
std::exception_ptr find_refusal_as_it_lies(const c10::OperatorHandle& op,
                                           std::span<const c10::IValue> arguments,
                                           const Trial& trial);

// How a kernel leaves outputs that it resizes.
struct Resizing {
  std::vector<std::vector<std::int64_t>> strides;  // of each output
  bool warns = false;                              // that one had elements
};

// Of a call with out=, whose results, all of them outputs, have such sizes. None where it is
// refused.
std::optional<Resizing> find_resizing(const c10::OperatorHandle& op,
                                      std::span<const c10::IValue> arguments, const Trial& trial,
                                      std::span<const at::IntArrayRef> sizes);

std::string text_of(const std::exception_ptr& error);  // as eager mode says it

}  // namespace backplane::record
