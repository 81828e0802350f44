// Tensors that somebody else keeps alive. Where PyTorch counts the first reference of C++ to a
// Python tensor, and where it counts the last one off, it takes the GIL: too much for each weight
// of each call.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <span>
#include <utility>

namespace backplane::bridge {

class BorrowedTensors {
 public:
  BorrowedTensors() = default;
  explicit BorrowedTensors(std::size_t capacity) { tensors_.reserve(capacity); }
  BorrowedTensors(BorrowedTensors&& other) noexcept : tensors_(std::move(other.tensors_)) {
    other.tensors_.clear();
  }
  BorrowedTensors(const BorrowedTensors&) = delete;
  BorrowedTensors& operator=(const BorrowedTensors&) = delete;
  BorrowedTensors& operator=(BorrowedTensors&&) = delete;
  ~BorrowedTensors() {
    for (at::Tensor& tensor : tensors_) tensor.unsafeReleaseTensorImpl();
  }

  void add(const at::Tensor& tensor) {
    tensors_.emplace_back(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(
        tensor.unsafeGetTensorImpl()));
  }

  // A copy of one of them is counted as ever.
  std::span<const at::Tensor> get() const { return {tensors_.data(), tensors_.size()}; }

 private:
  c10::SmallVector<at::Tensor, 16> tensors_;  // without a count of their own
};

}  // namespace backplane::bridge
