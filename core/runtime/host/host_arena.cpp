#include "core/runtime/host/host_arena.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/fork.h"

namespace backplane::runtime {

namespace {

struct Block {
  std::uint64_t bytes = 0;
  char* data = nullptr;
};

// Never destroyed: calls may outlive static objects.
struct Pool {
  std::mutex& mutex = fork_mutex();
  std::vector<Block> unused;  // by size; a few
};

Pool& pool() {
  static Pool* const made = new Pool;
  return *made;
}

std::uint64_t align(std::uint64_t bytes) {
  return (bytes + kHostAlignment - 1) / kHostAlignment * kHostAlignment;
}

}  // namespace

void* take_host_memory(std::uint64_t bytes, MemoryUse use) {
  void* const memory = std::aligned_alloc(kHostAlignment, align(bytes));
  if (memory != nullptr) report_memory(memory, static_cast<std::int64_t>(bytes), use);
  return memory;
}

void give_host_memory(void* memory, std::uint64_t bytes, MemoryUse use) {
  report_memory(memory, -static_cast<std::int64_t>(bytes), use);
  std::free(memory);
}

Result<HostArena> HostArena::take(std::uint64_t bytes) {
  HostArena arena;
  if (bytes == 0) return arena;
  Pool& blocks = pool();
  {
    const std::lock_guard lock(blocks.mutex);
    const auto found = std::ranges::lower_bound(blocks.unused, bytes, {}, &Block::bytes);
    if (found != blocks.unused.end()) {
      arena.block_bytes_ = found->bytes;
      arena.data_ = found->data;
      blocks.unused.erase(found);
    } else if (!blocks.unused.empty()) {
      // One block grows, instead of one more.
      std::free(blocks.unused.back().data);
      blocks.unused.pop_back();
    }
  }
  if (arena.data_ == nullptr) {
    const std::uint64_t rounded = align(bytes);
    arena.data_ = static_cast<char*>(std::aligned_alloc(kHostAlignment, rounded));
    if (arena.data_ == nullptr)
      return Status(Code::kOutOfMemory,
                    "no host memory for an arena of " + std::to_string(bytes) + " bytes");
    arena.block_bytes_ = rounded;
  }
  arena.bytes_ = bytes;
  report_memory(arena.data_, static_cast<std::int64_t>(bytes), MemoryUse::kValues);
  return arena;
}

HostArena::~HostArena() {
  if (data_ == nullptr) return;
  report_memory(data_, -static_cast<std::int64_t>(bytes_), MemoryUse::kValues);
  Pool& blocks = pool();
  const std::lock_guard lock(blocks.mutex);
  blocks.unused.insert(std::ranges::lower_bound(blocks.unused, block_bytes_, {}, &Block::bytes),
                       Block{block_bytes_, data_});
}

HostArena& HostArena::operator=(HostArena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(block_bytes_, other.block_bytes_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void HostArena::release_unused() {
  Pool& blocks = pool();
  const std::lock_guard lock(blocks.mutex);
  for (const Block& block : blocks.unused) std::free(block.data);
  blocks.unused.clear();
}

}  // namespace backplane::runtime
