// Device memory of tensors: blocks that are used again, in the order of the device's queue.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/plugin/device.h"

namespace backplane::device {

class Pool;

// A piece of device memory. Its address is a name: on a device that shares the host's memory it is
// where the bytes are, elsewhere it lies in pages that nobody may touch.
struct Block {
  Pool* pool = nullptr;
  std::byte* address = nullptr;
  std::uint64_t bytes = 0;        // of the block, at least what was asked for
  std::uint64_t asked_bytes = 0;  // by the one who has it now
  // Of the work that writes to it (DeviceQueue::next_number); 0: what it holds is known.
  std::atomic<std::uint64_t> written{0};
  runtime::DeviceBuffer buffer{};  // none on a device that shares the host's memory

  // `offset_bytes` counts from the start.
  bp_range range(std::uint64_t offset_bytes, std::uint64_t size_bytes) const;
};

struct PoolCounters {
  std::uint64_t allocated_bytes = 0, allocated_peak_bytes = 0;  // asked for and in use
  std::uint64_t reserved_bytes = 0, reserved_peak_bytes = 0;    // in use or kept for later
  std::uint64_t allocation_count = 0, retry_count = 0;
};

// Thread-safe. A block given back is given out again while earlier work on it may be under way:
// whoever uses a block does so through the device's one queue.
class Pool {
 public:
  Pool(runtime::Device& device, runtime::DeviceQueue& queue, bool on_host);
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Owned; given back with give(). Null for zero bytes.
  Result<Block*> take(std::uint64_t bytes);
  void give(Block* block) noexcept;
  // The block whose memory an address lies in, or null.
  Block* find(const void* address) const;
  // Waits for the queue and releases all blocks that nobody has.
  void trim() noexcept;

  PoolCounters counters() const;
  void reset_peaks();

 private:
  Result<Block*> make(std::uint64_t bytes);
  void release(Block* block) noexcept;

  runtime::Device& device_;
  runtime::DeviceQueue& queue_;
  bool on_host_;
  mutable std::mutex mutex_;  // guards what follows; not held over a plugin call
  std::map<std::uint64_t, std::vector<Block*>> free_;  // by size
  std::map<const std::byte*, Block*> blocks_;          // all, by address
  PoolCounters counters_;
};

}  // namespace backplane::device
