#include "core/torch/device/pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <memory>

#include "core/base/log.h"

namespace backplane::device {

namespace {

constexpr std::uint64_t kSmallestBlock = 512;
constexpr std::size_t kHostAlignment = 64;

// Four sizes per power of two: a quarter is lost at most.
std::uint64_t round_up(std::uint64_t bytes) {
  if (bytes <= kSmallestBlock) return kSmallestBlock;
  const std::uint64_t step = std::bit_floor(bytes - 1) / 4;
  return (bytes + step - 1) / step * step;
}

// Addresses that are nobody's: a wrong access by the host is a fault at once.
std::byte* reserve_addresses(std::uint64_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

}  // namespace

bp_range Block::range(std::uint64_t offset_bytes, std::uint64_t size_bytes) const {
  if (size_bytes == 0) return {};
  if (buffer) return {buffer.get(), nullptr, offset_bytes, size_bytes};
  return {nullptr, address + offset_bytes, 0, size_bytes};
}

Pool::Pool(runtime::Device& device, runtime::DeviceQueue& queue, bool on_host)
    : device_(device), queue_(queue), on_host_(on_host) {
  device.add_trim_hook([](runtime::Device*, void* pool) { static_cast<Pool*>(pool)->trim(); },
                       this);
}

Result<Block*> Pool::make(std::uint64_t bytes) {
  auto block = std::make_unique<Block>();
  block->pool = this;
  block->bytes = bytes;
  if (on_host_) {
    const std::uint64_t whole = (bytes + kHostAlignment - 1) / kHostAlignment * kHostAlignment;
    block->address = static_cast<std::byte*>(std::aligned_alloc(kHostAlignment, whole));
    if (block->address == nullptr) {
      trim();
      block->address = static_cast<std::byte*>(std::aligned_alloc(kHostAlignment, whole));
    }
  } else {
    // Asks again by itself after trimming.
    BP_ASSIGN_OR_RETURN(block->buffer, device_.allocate(bytes));
    block->address = reserve_addresses(bytes);
  }
  if (block->address == nullptr)
    return Status(Code::kOutOfMemory, device_.label() + ": no " +
                                          std::string(on_host_ ? "host memory" : "address space") +
                                          " for " + std::to_string(bytes) + " bytes");
  return block.release();
}

Result<Block*> Pool::take(std::uint64_t bytes) {
  if (bytes == 0) return static_cast<Block*>(nullptr);
  const std::uint64_t rounded = round_up(bytes);
  Block* block = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = free_.find(rounded); found != free_.end() && !found->second.empty()) {
      block = found->second.back();
      found->second.pop_back();
    }
  }
  const bool is_new = block == nullptr;
  if (is_new) {
    BP_ASSIGN_OR_RETURN(block, make(rounded));
  }
  block->asked_bytes = bytes;
  block->written.store(0, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  PoolCounters& c = counters_;
  ++c.allocation_count;
  c.allocated_bytes += bytes;
  c.allocated_peak_bytes = std::max(c.allocated_peak_bytes, c.allocated_bytes);
  if (is_new) {
    c.reserved_bytes += rounded;
    blocks_[block->address] = block;
  }
  c.reserved_peak_bytes = std::max(c.reserved_peak_bytes, c.reserved_bytes);
  return block;
}

void Pool::give(Block* block) noexcept {
  if (block == nullptr) return;
  const std::lock_guard lock(mutex_);
  counters_.allocated_bytes -= block->asked_bytes;
  free_[block->bytes].push_back(block);
}

Block* Pool::find(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  const std::lock_guard lock(mutex_);
  auto after = blocks_.upper_bound(at);
  if (after == blocks_.begin()) return nullptr;
  Block* block = (--after)->second;
  return at < block->address + block->bytes ? block : nullptr;
}

void Pool::release(Block* block) noexcept {
  if (on_host_)
    std::free(block->address);
  else
    ::munmap(block->address, block->bytes);
  delete block;
}

void Pool::trim() noexcept {
  std::map<std::uint64_t, std::vector<Block*>> unused;
  {
    const std::lock_guard lock(mutex_);
    unused.swap(free_);
    for (const auto& [bytes, blocks] : unused) {
      counters_.reserved_bytes -= bytes * blocks.size();
      for (const Block* block : blocks) blocks_.erase(block->address);
    }
    ++counters_.retry_count;
  }
  // Earlier work may still use them.
  queue_.drain();
  for (const auto& [bytes, blocks] : unused)
    for (Block* block : blocks) release(block);
}

PoolCounters Pool::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void Pool::reset_peaks() {
  const std::lock_guard lock(mutex_);
  counters_.allocated_peak_bytes = counters_.allocated_bytes;
  counters_.reserved_peak_bytes = counters_.reserved_bytes;
}

}  // namespace backplane::device
