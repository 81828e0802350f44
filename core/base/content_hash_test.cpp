#include "core/base/content_hash.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

namespace backplane {
namespace {

TEST(ContentHash, EveryBitCounts) {
  for (const std::size_t size : {1u, 7u, 8u, 63u, 64u, 128u, 300u}) {
    std::vector<unsigned char> bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<unsigned char>(37 * i);
    std::set<std::uint64_t> seen{content_hash(bytes.data(), size)};
    for (std::size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= static_cast<unsigned char>(1U << bit % 8);
      EXPECT_TRUE(seen.insert(content_hash(bytes.data(), size)).second) << size << " " << bit;
      bytes[bit / 8] ^= static_cast<unsigned char>(1U << bit % 8);
    }
    EXPECT_TRUE(seen.contains(content_hash(bytes.data(), size)));
  }
}

TEST(ContentHash, TheOrderCounts) {
  std::vector<std::uint64_t> words(64);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = i * i;
  const std::uint64_t before = content_hash(words.data(), words.size() * 8);
  for (std::size_t i = 0; i + 1 < words.size(); ++i)
    for (std::size_t j = i + 1; j < words.size(); ++j) {
      std::swap(words[i], words[j]);
      EXPECT_NE(content_hash(words.data(), words.size() * 8), before) << i << " " << j;
      std::swap(words[i], words[j]);
    }
}

TEST(ContentHash, TheSizeCounts) {
  const std::vector<unsigned char> zeros(1000);
  std::set<std::uint64_t> seen;
  for (std::size_t size = 0; size <= zeros.size(); ++size)
    EXPECT_TRUE(seen.insert(content_hash(zeros.data(), size)).second) << size;
}

}  // namespace
}  // namespace backplane
