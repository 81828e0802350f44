#include "core/torch/record/tape.h"

#include <utility>

namespace backplane::record {

torch::jit::Stack make_stack(const Call& call,
                             const std::function<at::Tensor(ValueNumber)>& tensor_of) {
  torch::jit::Stack stack;
  stack.reserve(call.arguments.size());
  std::size_t next = 0, next_list = 0;
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    switch (call.info->arguments[i]) {
      case ArgumentKind::kPlain:
        stack.push_back(call.arguments[i]);
        break;
      case ArgumentKind::kTensor: {
        const ValueNumber value = call.operands[next++];
        stack.push_back(value == kNoValue ? c10::IValue() : c10::IValue(tensor_of(value)));
        break;
      }
      case ArgumentKind::kTensorList: {
        c10::List<at::Tensor> list;
        for (std::uint32_t n = call.list_counts[next_list++]; n > 0; --n)
          list.push_back(tensor_of(call.operands[next++]));
        stack.emplace_back(std::move(list));
        break;
      }
      case ArgumentKind::kOptionalTensorList: {
        c10::List<std::optional<at::Tensor>> list;
        for (std::uint32_t n = call.list_counts[next_list++]; n > 0; --n) {
          const ValueNumber value = call.operands[next++];
          list.push_back(value == kNoValue ? std::nullopt
                                           : std::optional<at::Tensor>(tensor_of(value)));
        }
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }
  return stack;
}

std::vector<at::Tensor> take_results(torch::jit::Stack& stack) {
  std::vector<at::Tensor> results;
  for (c10::IValue& value : stack) {
    if (value.isTensor())
      results.push_back(std::move(value).toTensor());
    else if (value.isTensorList())
      for (at::Tensor& tensor : value.toTensorVector()) results.push_back(std::move(tensor));
  }
  return results;
}

}  // namespace backplane::record
