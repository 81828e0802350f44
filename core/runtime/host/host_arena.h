// Host memory for the length of one call. Blocks go from call to call and from graph to graph, so
// that a forward and its backward work in the same memory.
#pragma once

#include <cstdint>
#include <utility>

#include "core/base/status.h"
#include "core/runtime/host/memory_report.h"

namespace backplane::runtime {

inline constexpr std::uint64_t kHostAlignment = 64;

// For a part of a call: from the process's allocator and back. Null where there is none left.
void* take_host_memory(std::uint64_t bytes, MemoryUse use);
void give_host_memory(void* memory, std::uint64_t bytes, MemoryUse use);

class HostArena {
 public:
  // At least that many bytes, aligned to kHostAlignment. Any thread.
  static Result<HostArena> take(std::uint64_t bytes);
  HostArena() = default;
  ~HostArena();  // gives the block back
  HostArena(HostArena&& other) noexcept { *this = std::move(other); }
  HostArena& operator=(HostArena&& other) noexcept;
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  char* data() const { return data_; }
  static void release_unused();

 private:
  char* data_ = nullptr;
  std::uint64_t block_bytes_ = 0, bytes_ = 0;  // bytes_: asked for
};

}  // namespace backplane::runtime
