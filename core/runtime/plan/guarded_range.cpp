#include "core/runtime/plan/guarded_range.h"

#include <algorithm>
#include <cstring>

namespace backplane::runtime {

namespace {

constexpr std::uint64_t kGuardBytes = 512;

bp_range part(const bp_range& range, std::uint64_t offset, std::uint64_t bytes) {
  bp_range out = range;
  out.offset_bytes += offset;
  out.size_bytes = bytes;
  return out;
}

}  // namespace

void fill(std::span<std::byte> memory, Filling filling) {
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = filling_byte(filling, i);
}

std::size_t count_filled(std::span<const std::byte> memory, Filling filling) {
  std::size_t i = 0;
  while (i < memory.size() && memory[i] == filling_byte(filling, i)) ++i;
  return i;
}

Result<std::vector<std::byte>> read_range(Device* device, const bp_range& range) {
  std::vector<std::byte> out(static_cast<std::size_t>(range.size_bytes));
  if (out.empty()) return out;
  if (range.buffer == nullptr)
    std::memcpy(out.data(), static_cast<const char*>(range.host) + range.offset_bytes, out.size());
  else
    BP_RETURN_IF_ERROR(device->copy_from_device(range, out.data(), CopyCause::kOther));
  return out;
}

Status write_range(Device* device, const bp_range& range, std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  const bp_range target = part(range, 0, bytes.size());
  if (range.buffer != nullptr)
    return device->copy_to_device(bytes.data(), target, CopyCause::kOther);
  std::memcpy(static_cast<char*>(range.host) + range.offset_bytes, bytes.data(), bytes.size());
  return {};
}

Status fill_range(Device* device, const bp_range& range, Filling filling) {
  if (range.size_bytes == 0) return {};
  if (range.buffer == nullptr) {
    fill({static_cast<std::byte*>(range.host) + range.offset_bytes,
          static_cast<std::size_t>(range.size_bytes)},
         filling);
    return {};
  }
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 22;
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(kPiece, range.size_bytes)));
  fill(piece, filling);
  for (std::uint64_t at = 0; at < range.size_bytes; at += kPiece) {
    const std::uint64_t bytes = std::min(kPiece, range.size_bytes - at);
    BP_RETURN_IF_ERROR(write_range(device, part(range, at, bytes),
                                   {piece.data(), static_cast<std::size_t>(bytes)}));
  }
  return {};
}

Result<GuardedRange> GuardedRange::make(Device* device, std::uint64_t bytes) {
  GuardedRange out;
  out.device_ = device;
  out.bytes_ = bytes;
  out.guard_ = device == nullptr ? kGuardBytes : std::max(kGuardBytes, device->alignment_bytes());
  out.room_ = (bytes + 63) / 64 * 64;
  if (device == nullptr) {
    out.host_.reset(
        static_cast<std::byte*>(std::aligned_alloc(64, static_cast<std::size_t>(out.total()))));
    if (out.host_ == nullptr)
      return Status(Code::kOutOfMemory,
                    "no host memory for a checked range of " + std::to_string(bytes) + " bytes");
    backplane::runtime::fill({out.host_.get(), static_cast<std::size_t>(out.total())},
                             Filling::kGuard);
    return out;
  }
  BP_ASSIGN_OR_RETURN(out.buffer_, device->allocate(out.total()));
  BP_RETURN_IF_ERROR(
      fill_range(device, {out.buffer_.get(), nullptr, 0, out.total()}, Filling::kGuard));
  return out;
}

bp_range GuardedRange::range() const {
  if (device_ == nullptr) return {nullptr, host_.get() + guard_, 0, bytes_};
  return {buffer_.get(), nullptr, guard_, bytes_};
}

std::optional<std::int64_t> GuardedRange::find_damage(std::span<const std::byte> all) const {
  const auto guard = static_cast<std::size_t>(guard_), bytes = static_cast<std::size_t>(bytes_);
  // The one nearest to the range: that is where it began.
  for (std::size_t i = guard; i-- > 0;)
    if (all[i] != filling_byte(Filling::kGuard, i))
      return static_cast<std::int64_t>(i) - static_cast<std::int64_t>(guard);
  for (std::size_t i = guard + bytes; i < all.size(); ++i)
    if (all[i] != filling_byte(Filling::kGuard, i))
      return static_cast<std::int64_t>(i - guard - bytes);
  return std::nullopt;
}

std::optional<std::int64_t> GuardedRange::find_host_damage() const {
  if (device_ != nullptr) return std::nullopt;
  return find_damage({host_.get(), static_cast<std::size_t>(total())});
}

Result<std::optional<std::int64_t>> GuardedRange::find_damage() const {
  if (device_ == nullptr) return find_host_damage();
  BP_ASSIGN_OR_RETURN(const std::vector<std::byte> all,
                      read_range(device_, {buffer_.get(), nullptr, 0, total()}));
  return find_damage(all);
}

}  // namespace backplane::runtime
