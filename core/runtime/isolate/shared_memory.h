// Memory that a program and a plugin's worker both see: reserved once, given out in blocks by the
// program. It outlives the worker.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "core/base/status.h"

namespace backplane::runtime {

// The whole of it, mapped into this process.
class SharedMapping {
 public:
  SharedMapping() = default;
  // Takes over the descriptor.
  static Result<SharedMapping> map(int fd, std::uint64_t bytes);
  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  ~SharedMapping();
  int fd() const { return fd_; }
  char* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  int fd_ = -1;
  char* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

class SharedMemory {
 public:
  static constexpr std::uint64_t kAlignment = 4096;

  // Twice the machine's memory in addresses, of which only what is written takes room.
  static Result<std::unique_ptr<SharedMemory>> create();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  const SharedMapping& mapping() const { return mapping_; }
  char* at(std::uint64_t offset) const { return mapping_.data() + offset; }

  // Where a block begins, aligned to kAlignment. Thread-safe.
  Result<std::uint64_t> take(std::uint64_t bytes);
  // Large blocks lose their pages.
  void give(std::uint64_t offset);

 private:
  explicit SharedMemory(SharedMapping mapping);
  SharedMapping mapping_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> free_, taken_;  // bytes by offset
};

// A block while it lives. Empty: nothing.
class SharedBlock {
 public:
  SharedBlock() = default;
  SharedBlock(SharedMemory* memory, std::uint64_t offset) : memory_(memory), offset_(offset) {}
  SharedBlock(SharedBlock&& other) noexcept;
  SharedBlock& operator=(SharedBlock&& other) noexcept;
  ~SharedBlock();
  std::uint64_t offset() const { return offset_; }
  char* data() const { return memory_->at(offset_); }

 private:
  SharedMemory* memory_ = nullptr;
  std::uint64_t offset_ = 0;
};
Result<SharedBlock> take_block(SharedMemory& memory, std::uint64_t bytes);

}  // namespace backplane::runtime
