// Copies elements between two strided tensors of the same dims and element size.
#pragma once

#include "tensor.h"

namespace backplane::onednn {

class StridedCopy {
 public:
  StridedCopy() : walk_({}, {{}, {}}) {}
  // Stride 0 of `source` broadcasts.
  StridedCopy(const Shape& dims, const Shape& target, const Shape& source, std::int64_t element);
  void run(std::byte* target, const std::byte* source) const;

 private:
  void transpose(std::byte* target, const std::byte* source) const;
  Walk walk_;
  std::int64_t element_ = 1;
  bool empty_ = false, transposed_ = false;
};

// Writes one value (an element's bytes) everywhere.
void strided_fill(const Shape& dims, const Shape& strides, std::int64_t element, std::byte* target,
                  std::uint64_t value);

// The kernel of a step without nodes, and of clones that change neither type nor size.
sdk::Result<std::unique_ptr<sdk::Kernel>> make_copy_kernel(const sdk::TensorSpec& source,
                                                           const sdk::TensorSpec& target);

}  // namespace backplane::onednn
