#include "core/torch/compiler/verification.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace backplane::compiler {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

at::Tensor numbers() { return at::arange(1, 1001, at::kFloat).div(1000); }

TEST(FindDifference, RoundingIsNone) {
  const at::Tensor x = numbers();
  EXPECT_EQ(find_difference(x * 1.00001, x), "");
  EXPECT_EQ(find_difference((x * 1.005).to(at::kBFloat16), x.to(at::kBFloat16)), "");
  EXPECT_EQ(find_difference(x - 1e-5, x), "") << "beside others that are much larger";
  EXPECT_EQ(find_difference(at::full({0}, 1.0), at::full({0}, 2.0)), "");
}

TEST(FindDifference, OneElementAmongManyIsTold) {
  const at::Tensor x = numbers();
  at::Tensor y = x.clone();
  y[700] = 5.0;
  EXPECT_EQ(find_difference(y, x),
            "(Float[1000]) differs in 1 of 1000 elements; the first, number 700, is 5 instead of "
            "0.700999975");
}

TEST(FindDifference, NanAndInfinitiesAreResultsToo) {
  const at::Tensor x = numbers();
  for (const double special : {kNan, kInf, -kInf}) {
    at::Tensor y = x.clone();
    y[3] = special;
    EXPECT_EQ(find_difference(y, y), "");
    EXPECT_NE(find_difference(x, y), "") << special << " is missing";
    EXPECT_NE(find_difference(y, x), "") << special << " came from nowhere";
  }
  at::Tensor minus = x.clone(), plus = x.clone();
  minus[3] = -kInf;
  plus[3] = kInf;
  EXPECT_NE(find_difference(minus, plus), "");
}

TEST(FindDifference, IntegersAreExact) {
  const at::Tensor x = at::arange(640);
  at::Tensor y = x.clone();
  y[600] = 0;
  EXPECT_EQ(find_difference(x, x), "");
  EXPECT_NE(find_difference(y, x), "");
  EXPECT_NE(find_difference(x.eq(3), x.ge(0)), "");
}

TEST(FindDifference, DisturbedRunsTellWhatStandsOnAnEdge) {
  // Sums that cancel: rounding alone. A comparison that rounding decides.
  const at::Tensor noise = at::full({8}, 1e-11), other = at::full({8}, -3e-11);
  const at::Tensor runs[] = {at::full({8}, 2e-11), at::full({8}, -1e-11)};
  EXPECT_NE(find_difference(other, noise), "");
  EXPECT_EQ(find_difference(other, noise, runs), "");
  EXPECT_NE(find_difference(at::full({8}, 1e-3), noise, runs), "");
  const at::Tensor first = at::arange(4), flipped[] = {at::arange(4).flip(0)};
  EXPECT_EQ(find_difference(first + 7, first, flipped), "");
  const at::Tensor stays[] = {first};
  EXPECT_NE(find_difference(first + 7, first, stays), "");
}

TEST(FindDifference, ComplexNumbersArePairs) {
  const at::Tensor x = at::randn({40}, at::kComplexFloat);
  EXPECT_EQ(find_difference(x, x), "");
  EXPECT_NE(find_difference(x.conj().resolve_conj(), x), "");
}

}  // namespace
}  // namespace backplane::compiler
