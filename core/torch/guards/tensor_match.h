// What a graph takes for granted about a tensor that it was captured with.
#pragma once

#include <Python.h>
//
#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>

#include <cstdint>
#include <string>
#include <vector>

namespace backplane::guards {

// Whether the object's class is torch.Tensor or derives from it. PyTorch's own test asks the object
// for __class__, which may run code of the program.
bool is_tensor(PyObject* object);

class TensorMatch {
 public:
  explicit TensorMatch(const at::Tensor& tensor);

  bool check(const c10::TensorImpl& tensor) const;
  // What differs first: "dtype is Half, expected Float".
  std::string explain(const at::Tensor& tensor) const;
  std::string text() const;

 private:
  c10::DispatchKeySet keys_;
  caffe2::TypeMeta dtype_;
  c10::Device device_;
  bool requires_grad_;
  bool is_leaf_;
  std::vector<std::int64_t> sizes_, strides_;
};

}  // namespace backplane::guards
