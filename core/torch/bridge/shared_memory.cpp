#include "core/torch/bridge/shared_memory.h"

namespace backplane::bridge {

MemoryRange memory_range(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return {};
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  MemoryRange range{storage.device(), 0, 0};
  // Fake tensors have none, and raise where they are asked.
  if (const void* const data = storage._mutable_data_ptr_no_checks().get()) {
    range.begin = reinterpret_cast<std::uintptr_t>(data);
    range.end = range.begin + (storage.sym_nbytes().is_symbolic() ? 1 : storage.nbytes());
  } else {  // "meta", and empty ones
    range.begin = reinterpret_cast<std::uintptr_t>(&storage);
    range.end = range.begin + 1;
  }
  return range;
}

}  // namespace backplane::bridge
