#include "core/torch/guards/tensor_match.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <sstream>

#include "core/torch/bridge/tangent.h"

namespace backplane::guards {

namespace {

const torch::autograd::AutogradMeta* meta_of(const c10::TensorImpl& tensor) {
  return static_cast<const torch::autograd::AutogradMeta*>(tensor.autograd_meta());
}

// As PyTorch has it, but without two calls each.
struct GradientState {
  explicit GradientState(const c10::TensorImpl& tensor) {
    if (const auto* meta = meta_of(tensor)) {
      is_leaf = !meta->grad_fn_;
      // A view answers for its base as well.
      requires_grad =
          meta->requires_grad_ || !is_leaf || (meta->is_view_ && tensor.requires_grad());
      has_tangent = bridge::has_tangent(*meta);
    }
  }
  bool requires_grad = false, is_leaf = true, has_tangent = false;
};

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
      is_leaf_(GradientState(*tensor.unsafeGetTensorImpl()).is_leaf),
      has_tangent_(GradientState(*tensor.unsafeGetTensorImpl()).has_tangent),
      dims_(tensor.sizes().begin(), tensor.sizes().end()) {
  dims_.append(tensor.strides().begin(), tensor.strides().end());
}

[[gnu::always_inline]] inline bool TensorMatch::holds(const c10::TensorImpl& tensor) const {
  const GradientState gradient(tensor);
  if (tensor.key_set() != keys_ || tensor.dtype() != dtype_ || tensor.device() != device_ ||
      gradient.requires_grad != requires_grad_ || gradient.is_leaf != is_leaf_ ||
      gradient.has_tangent != has_tangent_)
    return false;
  const c10::IntArrayRef sizes = tensor.sizes(), strides = tensor.strides();
  const std::size_t count = dims_.size() / 2;
  if (sizes.size() != count) return false;
  // A few numbers: a call of memcmp for each would take longer.
  for (std::size_t dim = 0; dim < count; ++dim)
    if (sizes[dim] != dims_[dim] || strides[dim] != dims_[count + dim]) return false;
  return true;
}

bool TensorMatch::check(const c10::TensorImpl& tensor) const { return holds(tensor); }

KnownTensor::KnownTensor(PyObject* object, std::uint32_t match)
    : object(object),
      match(match),
      body(THPVariable_Unpack(object).unsafeGetTensorImpl()),
      meta(meta_of(*THPVariable_Unpack(object).unsafeGetTensorImpl())) {}

bool all_match(std::span<const KnownTensor> tensors, std::span<const TensorMatch> matches) {
  // The parts of hundreds of tensors do not stay in the nearest cache.
  constexpr std::size_t kAhead = 8;
  const auto fetch = [](const KnownTensor& tensor) {
    const auto* body = static_cast<const char*>(tensor.body);
    __builtin_prefetch(tensor.meta);
    for (std::size_t line = 0; line < sizeof(c10::TensorImpl); line += 64)
      __builtin_prefetch(body + line);
  };
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (i + kAhead < tensors.size()) fetch(tensors[i + kAhead]);
    const at::Tensor& tensor = THPVariable_Unpack(tensors[i].object);
    if (!matches[tensors[i].match].holds(*tensor.unsafeGetTensorImpl())) return false;
  }
  return true;
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
  if (tensor.sizes() != sizes()) return differs("shape", text_of(tensor.sizes()), text_of(sizes()));
  if (tensor.strides() != strides())
    return differs("strides", text_of(tensor.strides()), text_of(strides()));
  if (tensor.key_set() != keys_)
    return differs("dispatch keys", text_of(tensor.key_set()), text_of(keys_));
  if (GradientState(*tensor.unsafeGetTensorImpl()).is_leaf != is_leaf_)
    return differs("is_leaf", is_leaf_ ? "False" : "True", is_leaf_ ? "True" : "False");
  if (GradientState(*tensor.unsafeGetTensorImpl()).has_tangent != has_tangent_)
    return differs("a tangent of forward-mode AD", has_tangent_ ? "absent" : "there",
                   has_tangent_ ? "there" : "absent");
  return "nothing differs";
}

std::string TensorMatch::text() const {
  return text_of(dtype_) + " " + text_of(sizes()) + " strides " + text_of(strides()) + " on " +
         text_of(device_) +
         (requires_grad_ ? is_leaf_ ? " requires_grad leaf" : " requires_grad" : "");
}

}  // namespace backplane::guards
