#include "core/torch/guards/tensor_match.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <sstream>

namespace backplane::guards {

namespace {

bool is_leaf(const c10::TensorImpl& tensor) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(tensor.autograd_meta());
  return !meta || !meta->grad_fn_;
}

template <class T>
std::string text_of(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

}  // namespace

bool is_tensor(PyObject* object) {
  return PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(THPVariableClass)) != 0;
}

TensorMatch::TensorMatch(const at::Tensor& tensor)
    : keys_(tensor.key_set()),
      dtype_(tensor.dtype()),
      device_(tensor.device()),
      requires_grad_(tensor.requires_grad()),
      is_leaf_(!requires_grad_ || is_leaf(*tensor.unsafeGetTensorImpl())),
      sizes_(tensor.sizes().vec()),
      strides_(tensor.strides().vec()) {}

bool TensorMatch::check(const c10::TensorImpl& tensor) const {
  if (tensor.key_set() != keys_ || tensor.dtype() != dtype_ || tensor.device() != device_ ||
      tensor.requires_grad() != requires_grad_)
    return false;
  const c10::IntArrayRef sizes = tensor.sizes(), strides = tensor.strides();
  if (sizes.size() != sizes_.size()) return false;
  // A few numbers: a call of memcmp for each would take longer.
  for (std::size_t dim = 0; dim < sizes_.size(); ++dim)
    if (sizes[dim] != sizes_[dim] || strides[dim] != strides_[dim]) return false;
  return !requires_grad_ || is_leaf(tensor) == is_leaf_;
}

std::string TensorMatch::explain(const at::Tensor& tensor) const {
  const auto differs = [](const char* what, const std::string& is, const std::string& expected) {
    return std::string(what) + " is " + is + ", expected " + expected;
  };
  if (tensor.dtype() != dtype_) return differs("dtype", text_of(tensor.dtype()), text_of(dtype_));
  if (tensor.device() != device_)
    return differs("device", text_of(tensor.device()), text_of(device_));
  if (tensor.requires_grad() != requires_grad_)
    return differs("requires_grad", tensor.requires_grad() ? "True" : "False",
                   requires_grad_ ? "True" : "False");
  if (tensor.sizes() != c10::IntArrayRef(sizes_))
    return differs("shape", text_of(tensor.sizes()), text_of(c10::IntArrayRef(sizes_)));
  if (tensor.strides() != c10::IntArrayRef(strides_))
    return differs("strides", text_of(tensor.strides()), text_of(c10::IntArrayRef(strides_)));
  if (tensor.key_set() != keys_)
    return differs("dispatch keys", text_of(tensor.key_set()), text_of(keys_));
  if (requires_grad_ && is_leaf(*tensor.unsafeGetTensorImpl()) != is_leaf_)
    return differs("is_leaf", is_leaf_ ? "False" : "True", is_leaf_ ? "True" : "False");
  return "nothing differs";
}

std::string TensorMatch::text() const {
  return text_of(dtype_) + " " + text_of(c10::IntArrayRef(sizes_)) + " strides " +
         text_of(c10::IntArrayRef(strides_)) + " on " + text_of(device_) +
         (requires_grad_ ? is_leaf_ ? " requires_grad leaf" : " requires_grad" : "");
}

}  // namespace backplane::guards
