// Strides that say nothing: at dims of one element, and of what is empty. A program that serves
// several sizes has another one's there; what is shown has those that were recorded at its own.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/as_strided.h>
#include <c10/util/DimVector.h>

#include <utility>

namespace backplane::autograd {

inline at::Tensor laid_as_recorded(at::Tensor content, at::IntArrayRef recorded) {
  if (content.strides() == recorded) return content;
  c10::DimVector strides(content.strides());
  for (std::size_t d = 0; d < strides.size(); ++d)
    if (content.numel() == 0 || content.sizes()[d] == 1) strides[d] = recorded[d];
  if (content.strides() == strides) return content;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return at::as_strided(content, content.sizes(), strides, content.storage_offset());
}

}  // namespace backplane::autograd
