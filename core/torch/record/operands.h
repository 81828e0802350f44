// The tensors among the arguments of one call.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <optional>

#include "core/torch/record/operator_info.h"

namespace backplane::record {

// In order, undefined ones too. The arguments begin at `base`. visit(tensor, is_written).
template <class Visit>
void for_each_operand(const OperatorInfo& info, const torch::jit::Stack& stack, std::size_t base,
                      const Visit& visit) {
  for (std::size_t i = 0; i < info.argument_count(); ++i) {
    const c10::IValue& value = stack[base + i];
    const c10::AliasInfo* alias = info.handle.schema().arguments()[i].alias_info();
    const bool is_written = alias && alias->isWrite();
    if (value.isTensor()) {
      visit(value.toTensor(), is_written);
    } else if (info.arguments[i] == ArgumentKind::kTensorList && value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor, is_written);
    } else if (info.arguments[i] == ArgumentKind::kOptionalTensorList && value.isList()) {
      for (const c10::IValue& item : value.toListRef())
        if (item.isTensor()) visit(item.toTensor(), is_written);
    }
  }
}

// An argument with others in the place of its tensors: replace(tensor).
template <class Replace>
c10::IValue with_tensors(const c10::IValue& value, const Replace& replace) {
  if (value.isTensor()) return replace(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(replace(tensor));
    return list;
  }
  if (value.isList() && std::ranges::any_of(value.toListRef(), &c10::IValue::isTensor)) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& item : value.toListRef())
      list.push_back(item.isTensor() ? std::optional(replace(item.toTensor())) : std::nullopt);
    return list;
  }
  return value;
}

}  // namespace backplane::record
