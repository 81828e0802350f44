// What a program did, call by call: the exact ATen calls, before they become IR.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/torch/record/operator_info.h"
#include "core/torch/record/value_tensor.h"

namespace torch::autograd {
struct Node;
}

namespace backplane::record {

enum class ValueOrigin : std::uint8_t { kInput, kConstant, kResult };

struct TapeValue {
  at::Tensor meta;  // shape, strides, dtype, offset
  c10::Device device = c10::kCPU;
  ValueOrigin origin = ValueOrigin::kResult;
  std::uint32_t producer = 0;  // kResult: index into Tape::calls
  bool is_constant = false;    // depends on no input and no random draw
  at::Tensor constant;         // kConstant; or what a call over constants gave, once asked for
};

struct Call {
  const OperatorInfo* info = nullptr;
  std::vector<c10::IValue> arguments;      // in schema order; empty where a tensor stands
  std::vector<ValueNumber> operands;       // all tensors in schema order, lists flattened
  std::vector<std::uint32_t> list_counts;  // of each tensor list
  std::vector<ValueNumber> results;        // all tensors, lists flattened; kNoValue where undefined
  const std::string* location = nullptr;   // borrowed for as long as the recording
  // In the backward: autograd's node that makes it, which may be gone.
  const torch::autograd::Node* made_by = nullptr;
};

struct Tape {
  std::vector<TapeValue> values;
  std::vector<Call> calls;
};

// The boxed arguments of a call, tensors given by `tensor_of`.
torch::jit::Stack make_stack(const Call& call,
                             const std::function<at::Tensor(ValueNumber)>& tensor_of);
// The tensors on a stack of results, lists flattened.
std::vector<at::Tensor> take_results(torch::jit::Stack& stack);

}  // namespace backplane::record
