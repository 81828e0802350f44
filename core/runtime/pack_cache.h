// Weights on a device: converted once per storage and version into the layout that executables
// asked for, and shared among all of them.
#pragma once

#include <backplane/plugin.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/ir/types.h"
#include "core/runtime/device.h"

namespace backplane::runtime {

// A static input as the caller holds it now. Borrowed for the call.
struct StaticTensor {
  const void* data = nullptr;
  const void* storage = nullptr;  // identity of the storage object
  std::uint64_t version = 0;      // changes with every write that the framework sees
  ir::DType dtype = ir::DType::kFloat32;
  std::span<const std::int64_t> dims, strides;
  // Keeps the storage object's address from being reused; called when a pack is made.
  std::shared_ptr<void> (*guard)(const void* context) = nullptr;
  const void* guard_context = nullptr;
};

// One weight in one layout on one device. Immutable.
class Pack {
 public:
  // Whether `tensor` still is what was packed: storage, address, version, shape, and a sample of
  // the content (all of it when `exact`), which catches writes that the version does not count.
  bool matches(const StaticTensor& tensor, bool exact) const;
  bp_range range() const { return {buffer_.get(), nullptr, 0, buffer_.bytes()}; }
  std::uint64_t bytes() const { return buffer_.bytes(); }

 private:
  friend class PackCache;
  Device* device_ = nullptr;
  DeviceBuffer buffer_;
  const void* data_ = nullptr;
  const void* storage_ = nullptr;
  std::shared_ptr<void> guard_;
  std::uint64_t version_ = 0, sample_ = 0, full_ = 0;
  ir::DType dtype_ = ir::DType::kFloat32;
  std::vector<std::int64_t> dims_, strides_;
  bp_layout layout_{};
};

class PackCache {
 public:
  static PackCache& instance();
  // The pack of `tensor`, made when nobody holds one. Thread-safe; no lock is held over the
  // plugin's conversion, so two threads may make the same pack and one is dropped.
  Result<std::shared_ptr<const Pack>> get(Device& device, const StaticTensor& tensor,
                                          bp_layout layout);
  // Forgets all packs; those in use live on until their calls end.
  void clear();
  // Grows with every clear(): whoever keeps packs compares it.
  std::uint64_t epoch() const;
  std::uint64_t resident_bytes();
};

// Exact checks of weights at every call: BACKPLANE_DEBUG_WEIGHTS=1.
bool exact_weight_checks();

}  // namespace backplane::runtime
