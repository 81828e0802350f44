// Which tensors share memory: of one storage, or of several that lie over the same bytes, as NumPy
// arrays, DLPack capsules and buffers give them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace backplane::bridge {

// The bytes of a tensor's storage; of one without memory, a byte that is its own.
struct MemoryRange {
  c10::Device device{c10::kCPU};
  std::uintptr_t begin = 0, end = 0;

  bool overlaps(const MemoryRange& other) const {
    return device == other.device && begin < other.end && other.begin < end;
  }
};
// Empty where there is no storage, or nothing in it.
MemoryRange memory_range(const at::Tensor& tensor);

}  // namespace backplane::bridge
