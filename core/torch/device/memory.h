// Tensors of the torch device and their blocks of device memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "core/torch/device/devices.h"

namespace backplane::device {

// The allocator of all indices: it takes from the pool of the calling thread's current device. A
// c10::DeviceAllocator, which torch.accelerator asks for its memory statistics.
c10::Allocator* allocator();

// Backward of the calling thread runs in it. Autograd's threads for devices are counted once, at
// the first backward of the process, and forbid backward in a forked child.
void differentiate_in_this_thread() noexcept;

// Of one device, whatever the current one is.
c10::DataPtr allocate(TorchDevice& device, std::uint64_t bytes);

// On the torch device `backplane`.
bool is_on_device(const at::Tensor& tensor);
// There, or on a device of PyTorch's own that a plugin has adopted.
bool is_resident(const at::Tensor& tensor);
TorchDevice& owner_of(const at::Tensor& tensor);  // of a resident tensor

// Where a storage begins. PyTorch makes storages over the addresses of others as well; memory that
// the device never gave out is a c10::Error. No block for an empty storage.
struct Memory {
  Block* block = nullptr;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;  // of the storage

  // A storage may have been made smaller than its tensors show.
  bp_range range(std::uint64_t offset, std::uint64_t size) const {
    TORCH_CHECK(offset + size <= size_bytes, "a tensor shows ", offset + size,
                " bytes of a storage that has ", size_bytes);
    return block ? block->range(offset_bytes + offset, size) : bp_range{};
  }
};
Memory memory_of(const c10::Storage& storage);

// Where the first element lies in its storage, and how far the last one reaches.
struct Extent {
  std::uint64_t offset_bytes = 0, size_bytes = 0;
};
Extent extent_of(const at::Tensor& tensor);
// The memory between the first and the last element; nothing for an empty tensor.
bp_range range_of(const at::Tensor& tensor);
// The next work of the device's queue writes to the tensor. (On an adopted device PyTorch itself
// hears of failures, or the call waits: nothing is kept here.)
void mark_written(const at::Tensor& tensor);
// The failure of the work that wrote to it last; ok where none is known.
Status check_readable(const at::Tensor& tensor);
// Elements between the last address that the device can bind and the tensor's start.
std::int64_t bind_distance(const at::Tensor& tensor);
// Whether the device can bind the tensor where it starts.
inline bool is_aligned(const at::Tensor& tensor) { return bind_distance(tensor) == 0; }

// On any device, below the dispatcher: PyTorch's fake mode may be on.
at::Tensor make_empty(c10::Device device, at::IntArrayRef sizes, at::IntArrayRef strides,
                      at::ScalarType dtype);
inline at::Tensor make_empty(TorchDevice& device, at::IntArrayRef sizes, at::IntArrayRef strides,
                             at::ScalarType dtype) {
  return make_empty(device.torch_device(), sizes, strides, dtype);
}
inline at::Tensor make_empty_like(TorchDevice& device, const at::Tensor& like) {
  return make_empty(device, like.sizes(), like.strides(), like.scalar_type());
}

// Another tensor over the same memory, without pending conjugation or negation.
at::Tensor over_memory(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides,
                       std::int64_t storage_offset, std::optional<at::ScalarType> dtype = {});
inline at::Tensor without_bits(const at::Tensor& tensor) {
  return over_memory(tensor, tensor.sizes(), tensor.strides(), tensor.storage_offset());
}
// The whole storage as a vector of the tensor's element type.
at::Tensor whole_storage(const at::Tensor& tensor);

// Whether the tensor is all of its storage, each element once.
bool covers_storage(const at::Tensor& tensor);
// Whether two tensors are over one block of memory, through whatever storages.
bool shares_block(const at::Tensor& a, const at::Tensor& b);
// Gives `target` the content of `source`, which covers its storage as `target` does and is lost.
// The address stays: whoever else has it sees the new content. Nothing is copied where an address
// is a name and the block is all of the target's.
void take_content(const at::Tensor& target, at::Tensor source);

// The same memory as a tensor of the host, on a device that shares it. Valid while `tensor` lives.
at::Tensor host_alias(const at::Tensor& tensor);

// What copies by the calling thread are counted as while one lives.
class CauseScope {
 public:
  explicit CauseScope(runtime::CopyCause cause);
  ~CauseScope();
  CauseScope(const CauseScope&) = delete;
  CauseScope& operator=(const CauseScope&) = delete;
  static runtime::CopyCause current(runtime::CopyCause otherwise);

 private:
  int before_;
};

}  // namespace backplane::device
