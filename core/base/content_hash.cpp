#include "core/base/content_hash.h"

#include <cstring>

namespace backplane {

namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
  return hash ^ (hash >> 32);
}

// Sums of words side by side and the sums of those, so that a word counts with its place. What is
// left over at the end is hashed word by word.
struct Sums {
  std::uint64_t words[8];
  std::size_t count = 0;
};

#define BP_TURNED(lanes, by) ((lanes) << (by) | (lanes) >> (64 - (by)))

// Four vectors of `width` bytes at a time, each under a name of its own: an array of them would
// live in memory.
#define BP_SUM_WORDS(name, width)                                                            \
  std::size_t name(const unsigned char* at, std::size_t bytes, Sums& out) {                  \
    using Lanes = std::uint64_t __attribute__((vector_size(width)));                         \
    using Memory = std::uint64_t __attribute__((vector_size(width), aligned(1), may_alias)); \
    Lanes sum0{}, sum1{}, sum2{}, sum3{}, place0{}, place1{}, place2{}, place3{};            \
    std::size_t done = 0;                                                                    \
    for (; bytes - done >= 4 * (width); done += 4 * (width)) {                               \
      const auto* const words = reinterpret_cast<const Memory*>(at + done);                  \
      place0 += sum0 += words[0];                                                            \
      place1 += sum1 += words[1];                                                            \
      place2 += sum2 += words[2];                                                            \
      place3 += sum3 += words[3];                                                            \
    }                                                                                        \
    auto* const to = reinterpret_cast<Memory*>(out.words);                                   \
    to[0] = sum0 ^ BP_TURNED(sum1, 16) ^ BP_TURNED(sum2, 32) ^ BP_TURNED(sum3, 48);          \
    to[1] = place0 ^ BP_TURNED(place1, 24) ^ BP_TURNED(place2, 8) ^ BP_TURNED(place3, 40);   \
    static_assert(2 * (width) <= sizeof out.words);                                          \
    out.count = 2 * (width) / 8;                                                             \
    return done;                                                                             \
  }

BP_SUM_WORDS(sum_words, 16)

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2")
BP_SUM_WORDS(sum_words_avx2, 32)
#pragma GCC pop_options
const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
#endif

}  // namespace

std::uint64_t content_hash(const void* memory, std::size_t bytes) {
  const auto* const at = static_cast<const unsigned char*>(memory);
  Sums sums;
#if defined(__x86_64__)
  std::size_t done = has_avx2 ? sum_words_avx2(at, bytes, sums) : sum_words(at, bytes, sums);
#else
  std::size_t done = sum_words(at, bytes, sums);
#endif
  std::uint64_t hash = bytes;
  if (done != 0)
    for (std::size_t i = 0; i < sums.count; ++i) hash = mix(hash, sums.words[i]);
  for (; done < bytes; done += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at + done, bytes - done < 8 ? bytes - done : 8);
    hash = mix(hash, word);
  }
  return hash;
}

}  // namespace backplane
