// What shape rules are written with.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/torch/record/operator_info.h"

namespace backplane::record {

using torch::jit::Stack;
using Dims = std::vector<std::int64_t>;
using ShapeRules = std::span<const std::pair<std::string_view, ShapeRule>>;

ShapeRules norm_shapes();
ShapeRules picture_shapes();

// The last `count` entries of a stack: the arguments of one call.
class Arguments {
 public:
  Arguments(Stack& stack, std::size_t count) : stack_(stack), base_(stack.size() - count) {}

  const c10::IValue& at(std::size_t i) const { return stack_[base_ + i]; }
  at::Tensor tensor(std::size_t i) const {
    return at(i).isTensor() ? at(i).toTensor() : at::Tensor();
  }
  bool flag(std::size_t i, std::size_t index) const { return at(i).toBoolList()[index]; }

  template <class... Tensors>
  bool reply(Tensors&&... results) {
    stack_.resize(base_);
    (stack_.emplace_back(std::forward<Tensors>(results)), ...);
    return true;
  }

 private:
  Stack& stack_;
  std::size_t base_;
};

inline at::Tensor strided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
  return at::detail::empty_strided_meta(sizes, strides, dtype);
}

inline at::Tensor dense(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::detail::empty_meta(sizes, dtype);
}

inline at::Tensor dense(at::IntArrayRef sizes, at::ScalarType dtype, at::MemoryFormat format) {
  return at::detail::empty_meta(sizes, dtype, std::nullopt, std::nullopt, std::nullopt, format);
}

inline at::Tensor dense_like(const at::Tensor& t) { return dense(t.sizes(), t.scalar_type()); }

// As PyTorch's empty_like: strides kept where they are dense, else made so in the same order.
inline at::Tensor like(const at::Tensor& t) {
  if (t.is_non_overlapping_and_dense()) return strided(t.sizes(), t.strides(), t.scalar_type());
  return strided(t.sizes(), at::infer_dense_strides(t.sizes(), t.strides()), t.scalar_type());
}

// Strides of single elements stay as they are, and may look like another format's.
inline at::Tensor contiguous(const at::Tensor& t) { return t.is_contiguous() ? t : dense_like(t); }

inline at::Tensor in_format_of(const at::Tensor& t) {
  return dense(t.sizes(), t.scalar_type(), t.suggest_memory_format());
}

}  // namespace backplane::record
