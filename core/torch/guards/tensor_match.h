// What a graph takes for granted about a tensor that it was captured with.
#pragma once

#include <Python.h>
//
#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace backplane::guards {

// Whether the object's class is torch.Tensor or derives from it. PyTorch's own test asks the object
// for __class__, which may run code of the program.
bool is_tensor(PyObject* object);

struct KnownTensor;

class TensorMatch {
 public:
  explicit TensorMatch(const at::Tensor& tensor);

  bool check(const c10::TensorImpl& tensor) const;
  // What differs first: "dtype is Half, expected Float".
  std::string explain(const at::Tensor& tensor) const;
  std::string text() const;
  bool operator==(const TensorMatch&) const = default;

 private:
  friend bool all_match(std::span<const KnownTensor>, std::span<const TensorMatch>);

  bool holds(const c10::TensorImpl& tensor) const;
  c10::DispatchKeySet keys_;
  caffe2::TypeMeta dtype_;
  c10::Device device_;
  bool requires_grad_;
  bool is_leaf_;
  bool has_tangent_;
  c10::IntArrayRef sizes() const { return {dims_.data(), dims_.size() / 2}; }
  c10::IntArrayRef strides() const { return {dims_.data() + dims_.size() / 2, dims_.size() / 2}; }

  c10::SmallVector<std::int64_t, 8> dims_;  // sizes, then strides
};

// A tensor that is known beforehand, and where its parts lay when it was last looked at.
struct KnownTensor {
  KnownTensor(PyObject* object, std::uint32_t match);

  PyObject* object;  // borrowed
  std::uint32_t match;
  const void *body, *meta;  // never read: they may be gone
};
bool all_match(std::span<const KnownTensor> tensors, std::span<const TensorMatch> matches);

}  // namespace backplane::guards
