#include "register_tiles.hpp"

#include <gtest/gtest.h>

namespace backplane::kernels {
namespace {

constexpr std::int64_t kAvx512 = 24, kAvx2 = 6, kSse = 3;  // DeviceFacts::product_sums

TEST(RegisterTilesTest, SumsAndFactorsFitInRegisters) {
  for (const std::int64_t sums : {kAvx512, kAvx2, kSse})
    EXPECT_LE(most_rows(sums, 1) + 2, sums * 4 / 3);
  for (const std::int64_t vectors : {2, 3})
    EXPECT_LE(most_rows(kAvx2, vectors) * vectors + vectors + 1, kAvx2 * 4 / 3);
  EXPECT_EQ(most_rows(kAvx2, 1), 6);
  EXPECT_EQ(most_rows(kAvx512, 2), 12);
}

TEST(RegisterTilesTest, FewRegistersWantNarrowTiles) {
  EXPECT_TRUE(prefers_one_vector(kAvx2));
  EXPECT_TRUE(prefers_one_vector(kSse));
  EXPECT_FALSE(prefers_one_vector(kAvx512));
  for (const std::int64_t sums : {kAvx2, kAvx512}) {
    const std::int64_t rows = most_rows(sums, usual_vectors(sums));
    EXPECT_GT(rows, 1);
    EXPECT_LE(rows * usual_vectors(sums), sums);
  }
}

}  // namespace
}  // namespace backplane::kernels
