// Weights on a device: converted once per storage and version into the layout that executables
// asked for, and shared among all of them.
#pragma once

#include <backplane/plugin.h>

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/ir/types.h"
#include "core/runtime/plugin/device.h"

namespace backplane::runtime {

// A static input as the caller holds it now. Borrowed for the call.
struct StaticTensor {
  const void* data = nullptr;
  const void* storage = nullptr;  // identity of the storage object
  std::uint64_t version = 0;      // changes with every write that the framework sees
  bool counts_writes = true;      // false: `version` says nothing
  ir::DType dtype = ir::DType::kFloat32;
  std::span<const std::int64_t> dims, strides;
  // Keeps the storage object's address from being reused; called when a pack is made.
  std::shared_ptr<void> (*guard)(const void* context) = nullptr;
  const void* guard_context = nullptr;
};

// One weight in one layout on one device. Immutable.
class Pack {
 public:
  // Of the content, which shows writes that the version does not count, a call looks at all up to
  // this size and of tensors whose version says nothing; of larger ones at a sample, and at one
  // piece after the other, so that all of it is seen within kRounds calls.
  static constexpr std::int64_t kWholeBytes = 64 << 10;
  static constexpr std::int64_t kRounds = 1024;

  // Whether `tensor` still is what was packed: storage, address, version, shape and content (all of
  // it when `exact`). Once the answer was no for its content, it stays so.
  bool matches(const StaticTensor& tensor, bool exact) const;
  const void* storage() const { return storage_; }
  const Device* device() const { return device_; }
  // It matches no more.
  void forget() const { forgotten_.store(true, std::memory_order_relaxed); }
  bp_range range() const { return {buffer_.get(), nullptr, 0, buffer_.bytes()}; }
  std::uint64_t bytes() const { return buffer_.bytes(); }

 private:
  friend class PackCache;
  Device* device_ = nullptr;
  DeviceBuffer buffer_;
  const void* data_ = nullptr;
  const void* storage_ = nullptr;
  std::shared_ptr<void> guard_;
  void remember_content();
  bool content_matches(const StaticTensor& tensor, bool exact) const;

  std::uint64_t version_ = 0, sample_ = 0;
  std::int64_t bytes_ = 0, piece_bytes_ = 1;
  std::vector<std::uint64_t> pieces_;  // hashes
  mutable std::atomic<std::uint32_t> next_piece_{0};
  mutable std::atomic<bool> forgotten_{false};
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
  // Those of these storages alone.
  void forget(std::span<const void* const> storages);
  // Those on a device that lost what it held: the next call packs them anew from the host's
  // tensors.
  void forget(const Device& device);
  // Grows with every clear(): whoever keeps packs compares it.
  std::uint64_t epoch() const;
  std::uint64_t resident_bytes();
};

// Exact checks of weights at every call: BACKPLANE_DEBUG_WEIGHTS=1.
bool exact_weight_checks();

}  // namespace backplane::runtime
