// Addresses of device buffers, and the pool they come from.
#include <array>
#include <bit>

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

std::uint64_t size_class(std::uint64_t bytes) {
  constexpr std::uint64_t kSmall = 256;
  if (bytes <= kSmall) return kSmall;
  const std::uint64_t step = std::max<std::uint64_t>(std::bit_floor(bytes) / 8, kSmall);
  return (bytes + step - 1) / step * step;
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

std::unique_ptr<Memory> Pool::find_kept(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(bytes);
  if (found == kept_.end()) return nullptr;
  auto memory = std::move(found->second);
  kept_.erase(found);
  return memory;
}

Result<std::unique_ptr<Memory>> Pool::take(std::uint64_t bytes) {
  if (bytes > kOffsetMask) return Status(BP_OUT_OF_MEMORY, "impossible size");
  const std::uint64_t size = size_class(bytes);
  auto memory = find_kept(size);
  for (int attempt = 0; attempt < 2 && memory == nullptr; ++attempt) {
    if (attempt == 1) trim();
    {
      const std::lock_guard lock(mutex_);
      if (limit_ != 0 && held_ + size > limit_) continue;
      held_ += size;
    }
    cl_int code = CL_SUCCESS;
    cl_mem made = clCreateBuffer(context_, CL_MEM_READ_WRITE, size, nullptr, &code);
    if (code == CL_SUCCESS) {
      memory = std::make_unique<Memory>(made, size);
      break;
    }
    {
      const std::lock_guard lock(mutex_);
      held_ -= size;
    }
    if (!is_out_of_memory(code)) return driver_error("clCreateBuffer", code);
  }
  if (memory == nullptr)
    return Status(BP_OUT_OF_MEMORY, "out of device memory: " + std::to_string(size) +
                                        " bytes wanted, " + std::to_string(live_.load()) + " of " +
                                        std::to_string(limit_) + " in use");
  const std::uint64_t live = live_.fetch_add(size) + size;
  std::uint64_t peak = peak_.load();
  while (peak < live && !peak_.compare_exchange_weak(peak, live)) {
  }
  return memory;
}

void Pool::give(std::unique_ptr<Memory> memory) {
  live_.fetch_sub(memory->bytes());
  const std::lock_guard lock(mutex_);
  const std::uint64_t bytes = memory->bytes();
  kept_.emplace(bytes, std::move(memory));
}

std::uint64_t Pool::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t sum = 0;
  for (const auto& [bytes, memory] : kept_) sum += bytes;
  return sum;
}

void Pool::trim() {
  std::multimap<std::uint64_t, std::unique_ptr<Memory>> gone;
  const std::lock_guard lock(mutex_);
  gone.swap(kept_);
  for (const auto& [bytes, memory] : gone) held_ -= bytes;
}

}  // namespace backplane::opencl
