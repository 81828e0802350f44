// Addresses of device buffers, and the pool they come from.
#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "memory.h"

namespace backplane::opencl {
namespace {

constexpr std::uint64_t kTag = std::uint64_t{1} << 62;
constexpr int kSlotShift = 40;  // the largest buffer is a terabyte
constexpr std::uint64_t kOffsetMask = (std::uint64_t{1} << kSlotShift) - 1;
constexpr std::size_t kSlots = std::size_t{1} << 18;

// Readers take no lock: a slot is written before its address is known to anybody.
struct Table {
  std::array<std::atomic<cl_mem>, kSlots> memory{};
  std::mutex mutex;
  std::vector<std::uint32_t> free;
  std::uint32_t used = 0;
};
Table& table() {
  static auto* all = new Table;  // buffers may be released while the process ends
  return *all;
}

}  // namespace

bool is_device_address(const void* address) {
  return (reinterpret_cast<std::uintptr_t>(address) & kTag) != 0;
}
Place place_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) & ~kTag;
  return {table().memory[bits >> kSlotShift].load(std::memory_order_acquire), bits & kOffsetMask};
}

Memory::Memory(cl_mem memory, std::uint64_t bytes) : memory_(memory), bytes_(bytes) {
  Table& t = table();
  const std::lock_guard lock(t.mutex);
  std::uint32_t slot = 0;
  if (!t.free.empty()) {
    slot = t.free.back();
    t.free.pop_back();
  } else if (t.used < kSlots) {
    slot = t.used++;
  } else {
    throw std::bad_alloc();
  }
  t.memory[slot].store(memory, std::memory_order_release);
  address_ = reinterpret_cast<std::byte*>(kTag | (std::uint64_t{slot} << kSlotShift));
}
Memory::~Memory() {
  clReleaseMemObject(memory_);
  Table& t = table();
  const std::lock_guard lock(t.mutex);
  const auto bits = reinterpret_cast<std::uintptr_t>(address_) & ~kTag;
  t.memory[bits >> kSlotShift].store(nullptr, std::memory_order_release);
  t.free.push_back(static_cast<std::uint32_t>(bits >> kSlotShift));
}

Pool::Pool(cl_context context, std::uint64_t limit_bytes)
    : BufferPool(
          [context](std::uint64_t bytes) -> Result<std::unique_ptr<Memory>> {
            cl_int code = CL_SUCCESS;
            cl_mem made = clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, nullptr, &code);
            if (code != CL_SUCCESS && is_out_of_memory(code)) return std::unique_ptr<Memory>();
            if (code != CL_SUCCESS) return driver_error("clCreateBuffer", code);
            return std::make_unique<Memory>(made, bytes);
          },
          limit_bytes) {}

}  // namespace backplane::opencl
