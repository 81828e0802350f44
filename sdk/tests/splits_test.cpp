#include <backplane/sdk/splits.hpp>
#include <backplane/sdk/testing/host.hpp>

#include <gtest/gtest.h>

#include <mutex>
#include <vector>

namespace backplane::sdk {
namespace {

class Splits : public ::testing::Test {
 protected:
  void SetUp() override { detail::g_host = &testing::host_api(); }
};

TEST_F(Splits, EachRowBelongsToOnePart) {
  for (const std::size_t rows : {0UL, 1UL, 7UL, 1000UL})
    for (const std::size_t bytes : {0UL, 4UL, 4096UL, 1UL << 20}) {
      std::vector<int> seen(rows, 0);
      std::mutex mutex;
      const Status status = split_rows(rows, bytes, [&](std::size_t begin, std::size_t end) {
        const std::lock_guard lock(mutex);
        for (; begin < end; ++begin) ++seen[begin];
        return Status();
      });
      EXPECT_TRUE(status.ok());
      EXPECT_EQ(seen, std::vector<int>(rows, 1));
    }
  EXPECT_EQ(rows_of_a_part(1U << 20), 1U);
  EXPECT_EQ(rows_of_a_part(4), 8192U);
}

TEST_F(Splits, APartThatFailsIsTheAnswer) {
  const auto fails = [](std::size_t, std::size_t) { return Status(BP_INTERNAL, "no"); };
  EXPECT_EQ(split_rows(10, 4, fails).message(), "no");
}

TEST_F(Splits, AReductionIsThatOfItsPartsInOrder) {
  constexpr std::size_t kCount = 20000;  // three parts of floats
  const std::size_t length = rows_of_a_part(sizeof(float));
  std::vector<float> x(kCount);
  for (std::size_t i = 0; i < kCount; ++i) x[i] = 1.0F / static_cast<float>(i + 1);
  const auto sum = [&](std::size_t begin, std::size_t end) {
    float total = 0;
    for (; begin < end; ++begin) total += x[begin];
    return total;
  };
  float expected = 0.5F;
  for (std::size_t at = 0; at < kCount; at += length)
    expected += sum(at, std::min(kCount, at + length));
  float out = 0.5F;
  EXPECT_TRUE(split_reduction(kCount, sizeof(float), out, sum, std::plus<>()).ok());
  EXPECT_EQ(out, expected);
  EXPECT_TRUE(split_reduction(0, sizeof(float), out, sum, std::plus<>()).ok());
  EXPECT_EQ(out, expected);
}

}  // namespace
}  // namespace backplane::sdk
