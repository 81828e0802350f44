// Memory between guard zones, on the host or on a device, for MemoryCheck.
#pragma once

#include <backplane/plugin.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/plugin/device.h"

namespace backplane::runtime {

// What memory is filled with; sixteen bits, repeated.
enum class Filling : std::uint16_t {
  kUnwritten = 0x7ff9,  // an output before the plugin wrote it
  kScratch = 0x7ffa,    // a workspace
  kGuard = 0x7ffb,
  kFreed = 0x7ffd,
};
inline constexpr Filling kFillings[] = {Filling::kUnwritten, Filling::kScratch, Filling::kGuard,
                                        Filling::kFreed};

// The byte of a filling at this place in memory.
inline std::byte filling_byte(Filling filling, std::size_t at) {
  return static_cast<std::byte>(static_cast<std::uint16_t>(filling) >> (at % 2 == 0 ? 0 : 8));
}
void fill(std::span<std::byte> memory, Filling filling);
// How many bytes at the front, or from it on, are as they were filled.
std::size_t count_filled(std::span<const std::byte> memory, Filling filling);

// The content of a range of memory, on the host or on `device`.
Result<std::vector<std::byte>> read_range(Device* device, const bp_range& range);
Status write_range(Device* device, const bp_range& range, std::span<const std::byte> bytes);
Status fill_range(Device* device, const bp_range& range, Filling filling);

class GuardedRange {
 public:
  // On the host where `device` is null.
  static Result<GuardedRange> make(Device* device, std::uint64_t bytes);

  bp_range range() const;
  Device* device() const { return device_; }
  std::uint64_t bytes() const { return bytes_; }
  Result<std::vector<std::byte>> read() const { return read_range(device_, range()); }
  Status write(std::span<const std::byte> content) {
    return write_range(device_, range(), content);
  }
  Status fill(Filling filling) { return fill_range(device_, range(), filling); }

  // The first byte of a guard zone that was written: negative before the begin, from 0 on past the
  // end.
  Result<std::optional<std::int64_t>> find_damage() const;
  // On the host alone, without a status; nothing on a device.
  std::optional<std::int64_t> find_host_damage() const;
  std::span<std::byte> host() const {
    return {host_.get() + guard_, static_cast<std::size_t>(bytes_)};
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::uint64_t total() const { return room_ + 2 * guard_; }
  std::optional<std::int64_t> find_damage(std::span<const std::byte> all) const;

  Device* device_ = nullptr;
  std::unique_ptr<std::byte, Free> host_;
  DeviceBuffer buffer_;
  std::uint64_t bytes_ = 0, room_ = 0, guard_ = 0;  // room: bytes, rounded up
};

}  // namespace backplane::runtime
