// Device memory that is given back and taken again, by size class, with counters.
#pragma once

#include <backplane/sdk/core.hpp>

#include <atomic>
#include <bit>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

namespace backplane::sdk {

// Block: has `bytes()`, its size as it was asked for; gives its memory back in its destructor.
// Thread-safe; calls of the driver are made without a lock.
template <class Block>
class BufferPool {
 public:
  // `make(bytes)` answers a block, null where there is no memory, or another error. `limit_bytes`:
  // of what is held, used or kept; 0: what the driver gives.
  using Make = std::function<Result<std::unique_ptr<Block>>(std::uint64_t bytes)>;
  BufferPool(Make make, std::uint64_t limit_bytes) : make_(std::move(make)), limit_(limit_bytes) {}
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // Where there is no memory, kept blocks are let go and it is asked for once more.
  Result<std::unique_ptr<Block>> take(std::uint64_t bytes) {
    if (bytes > kLargest) return Status(BP_OUT_OF_MEMORY, "impossible size");
    const std::uint64_t size = size_class(bytes);
    auto block = find_kept(size);
    for (int attempt = 0; attempt < 2 && block == nullptr; ++attempt) {
      if (attempt == 1) trim();
      if (!reserve(size)) continue;
      auto made = make_(size);
      if (made.ok() && *made != nullptr) {
        block = std::move(*made);
        break;
      }
      const std::lock_guard lock(mutex_);
      held_ -= size;
      if (!made.ok()) return made.status();
    }
    if (block == nullptr)
      return Status(BP_OUT_OF_MEMORY, "out of device memory: " + std::to_string(size) +
                                          " bytes wanted, " + std::to_string(live_.load()) +
                                          (limit_ == 0 ? "" : " of " + std::to_string(limit_)) +
                                          " in use");
    const std::uint64_t live = live_.fetch_add(size) + size;
    std::uint64_t peak = peak_.load();
    while (peak < live && !peak_.compare_exchange_weak(peak, live)) {
    }
    return block;
  }
  void give(std::unique_ptr<Block> block) {
    live_.fetch_sub(block->bytes());
    const std::lock_guard lock(mutex_);
    const std::uint64_t bytes = block->bytes();
    kept_.emplace(bytes, std::move(block));
  }
  // As take; goes back to `pool` with its last owner.
  template <class Pool>
  static Result<std::shared_ptr<Block>> share(const std::shared_ptr<Pool>& pool,
                                              std::uint64_t bytes) {
    auto block = pool->take(bytes);
    if (!block.ok()) return block.status();
    return std::shared_ptr<Block>(
        (*block).release(), [pool](Block* used) { pool->give(std::unique_ptr<Block>(used)); });
  }
  // Lets go what is kept.
  void trim() {
    std::multimap<std::uint64_t, std::unique_ptr<Block>> gone;
    const std::lock_guard lock(mutex_);
    gone.swap(kept_);
    for (const auto& [bytes, block] : gone) held_ -= bytes;
  }
  std::uint64_t live_bytes() const { return live_.load(); }
  std::uint64_t peak_bytes() const { return peak_.load(); }
  std::uint64_t kept_bytes() const {
    const std::lock_guard lock(mutex_);
    std::uint64_t sum = 0;
    for (const auto& [bytes, block] : kept_) sum += bytes;
    return sum;
  }

 private:
  static constexpr std::uint64_t kSmallest = 256, kLargest = std::uint64_t{1} << 40;
  // Eight classes between powers of two.
  static std::uint64_t size_class(std::uint64_t bytes) {
    if (bytes <= kSmallest) return kSmallest;
    const std::uint64_t step = std::max(std::bit_floor(bytes) / 8, kSmallest);
    return (bytes + step - 1) / step * step;
  }
  bool reserve(std::uint64_t size) {
    const std::lock_guard lock(mutex_);
    if (limit_ != 0 && held_ + size > limit_) return false;
    held_ += size;
    return true;
  }
  std::unique_ptr<Block> find_kept(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = kept_.find(bytes);
    if (found == kept_.end()) return nullptr;
    auto block = std::move(found->second);
    kept_.erase(found);
    return block;
  }

  Make make_;
  std::uint64_t limit_;
  mutable std::mutex mutex_;
  std::multimap<std::uint64_t, std::unique_ptr<Block>> kept_;
  std::uint64_t held_ = 0;  // by the driver: live and kept
  std::atomic<std::uint64_t> live_{0}, peak_{0};
};

}  // namespace backplane::sdk
