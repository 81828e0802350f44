#include <backplane/sdk/testing/numbers.hpp>

#include <gtest/gtest.h>

#include <limits>

namespace backplane::sdk::testing {
namespace {

TEST(HostTensor, ShortFloatsRoundOnceToNearestEven) {
  const float inf = std::numeric_limits<float>::infinity();
  HostTensor t(kFloat16, {7});
  t.set_values(Floats{1, 1 + 0x1p-11F, 1 + 0x3p-11F, 65519, 65520, 0x1p-25F, 0x1.8p-25F});
  EXPECT_EQ(t.memory<std::uint16_t>(),
            (std::vector<std::uint16_t>{0x3c00, 0x3c00, 0x3c02, 0x7bff, 0x7c00, 0, 1}));
  EXPECT_EQ(t.values(), (Floats{1, 1, 1 + 0x1p-9F, 65504, inf, 0, 0x1p-24F}));
  HostTensor b(kBFloat16, {5});
  b.set_values(Floats{1.00390625F, 1.0039064F, std::nanf(""), 3.4e38F, -0.0F});
  EXPECT_EQ(b.memory<std::uint16_t>(),
            (std::vector<std::uint16_t>{0x3f80, 0x3f81, 0x7fc0, 0x7f80, 0x8000}));
}

TEST(HostTensor, ValuesAreInRowMajorOrderWhateverTheStrides) {
  HostTensor t(kInt32, {2, 3}, {1, 2});
  t.set_values(std::vector<int>{1, 2, 3, 4, 5, 6});
  EXPECT_EQ(t.memory<std::int32_t>(), (std::vector<std::int32_t>{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(t.values<int>(), (std::vector<int>{1, 2, 3, 4, 5, 6}));
}

}  // namespace
}  // namespace backplane::sdk::testing
