// Sums and roundings of sizes that somebody else gave: empty where 64 bits do not hold the answer.
#pragma once

#include <cstdint>
#include <optional>

namespace backplane {

constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t sum = a + b;
  return sum < a ? std::nullopt : std::optional(sum);
}

constexpr std::optional<std::uint64_t> checked_round_up(std::uint64_t bytes,
                                                        std::uint64_t alignment) {
  const std::optional<std::uint64_t> sum = checked_add(bytes, alignment - 1);
  return sum ? std::optional(*sum / alignment * alignment) : std::nullopt;
}

}  // namespace backplane
