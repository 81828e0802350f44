// A hash of memory that tells a change of its content; no more is promised than for a checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace backplane {

// Eight sums of words side by side and the sums of those, so that a word counts with its place: any
// change of one word shows, others all but surely. Runs at the speed of the caches.
inline std::uint64_t content_hash(const void* memory, std::size_t bytes) {
  using Lanes = std::uint64_t __attribute__((vector_size(16)));
  constexpr std::size_t kVectors = 4, kStripe = kVectors * sizeof(Lanes);
  const auto* at = static_cast<const unsigned char*>(memory);
  Lanes sums[kVectors] = {}, places[kVectors] = {};
  std::size_t left = bytes;
  for (; left >= kStripe; left -= kStripe, at += kStripe) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      Lanes words;
      std::memcpy(&words, at + v * sizeof(Lanes), sizeof(Lanes));
      sums[v] += words;
      places[v] += sums[v];
    }
  }
  std::uint64_t hash = bytes;
  const auto mix = [&](std::uint64_t word) {
    hash ^= word + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
    hash *= 0xff51afd7ed558ccdULL;
  };
  for (std::size_t v = 0; v < kVectors; ++v)
    for (std::size_t lane = 0; lane < 2; ++lane) {
      mix(sums[v][lane]);
      mix(places[v][lane]);
    }
  for (; left >= 8; left -= 8, at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, 8);
    mix(word);
  }
  if (left != 0) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, left);
    mix(word);
  }
  return hash;
}

}  // namespace backplane
