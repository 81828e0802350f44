// Copies between the host and devices, and on a device: between any two strided tensors.
#pragma once

#include <ATen/core/Tensor.h>

namespace backplane::device {

// aten::_copy_from: `target` has the sizes of `source`, or those it broadcasts to.
at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking);
at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target);
// An output of any sizes gets these, which need not be dense (linalg.lstsq).
void resize_to_lie(const at::Tensor& target, at::IntArrayRef sizes, at::IntArrayRef strides);
at::Scalar read_scalar(const at::Tensor& tensor);

// A copy on the host, in the same strides where they leave no gaps.
at::Tensor download(const at::Tensor& tensor);

}  // namespace backplane::device
