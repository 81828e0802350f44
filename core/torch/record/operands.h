// The tensors among the arguments of one call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

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

}  // namespace backplane::record
