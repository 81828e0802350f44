#include "sdk/conformance/src/oracle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/ir/text.h"
#include "sdk/conformance/src/elements.h"
#include "sdk/conformance/src/filling.h"

namespace backplane::conformance {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

ir::Graph parsed(std::string_view text) {
  auto graph = ir::parse(text);
  EXPECT_TRUE(graph.ok()) << graph.status().message();
  return std::move(*graph);
}
ir::Graph pointwise() {
  return parsed(
      "graph @g(%0: f32[4]) -> (f32[4]) {\n  %1 = aten.exp(%0) : f32[4]\n  return %1\n}\n");
}
ir::Graph sum() {
  return parsed(
      "graph @g(%0: f32[4, 4], %1: f32[4, 4]) -> (f32[4, 4]) {\n"
      "  %2 = aten.mm(%0, %1) : f32[4, 4]\n  return %2\n}\n");
}

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes out(values.size() * sizeof(T));
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}
Judgement judged(const ir::Graph& graph, const std::vector<float>& actual,
                 const std::vector<float>& expected, const std::vector<double>& exact,
                 const Strictness& strictness = {}) {
  Expected all;
  all.results.push_back(bytes_of(expected));
  all.exact = std::vector<Bytes>{bytes_of(exact)};
  return judge(graph, all, {bytes_of(actual)}, strictness);
}

TEST(Oracle, AllowsRoundingAndNoMore) {
  const std::vector<float> right = {1, 2, 3, 4};
  const std::vector<double> exact = {1, 2, 3, 4};
  EXPECT_EQ(judged(pointwise(), right, right, exact).wrong, "");
  EXPECT_EQ(judged(pointwise(), {1 + 2e-6F, 2, 3, 4}, right, exact).wrong, "");
  const Judgement wrong = judged(pointwise(), {1, 2, 3.0001F, 4}, right, exact);
  EXPECT_THAT(wrong.wrong, HasSubstr("output 0: element 2 is 3.0000999"));
  EXPECT_GT(wrong.share_of_bound, 1);
}

TEST(Oracle, MissesNoSpecialNumber) {
  const std::vector<double> exact = {kNan, kInfinity, -kInfinity, 0};
  const std::vector<float> right = {kNan, kInfinity, -kInfinity, 0};
  EXPECT_EQ(judged(pointwise(), right, right, exact).wrong, "");
  EXPECT_NE(judged(pointwise(), {0, kInfinity, -kInfinity, 0}, right, exact).wrong, "");
  EXPECT_NE(judged(pointwise(), {kNan, 1, -kInfinity, 0}, right, exact).wrong, "");
  EXPECT_NE(judged(pointwise(), {kNan, kInfinity, kInfinity, 0}, right, exact).wrong, "");
  EXPECT_NE(judged(pointwise(), {kNan, kInfinity, -kInfinity, kNan}, right, exact).wrong, "");
}

TEST(Oracle, TermsOfSumsMayBeLargerThanTheSum) {
  std::vector<float> right(16, 0.5F);
  right[3] = 800;
  const std::vector<double> exact(right.begin(), right.end());
  std::vector<float> actual = right;
  actual[0] += 2e-4F;  // of terms of about 200
  EXPECT_EQ(judged(sum(), actual, right, exact).wrong, "");
  actual[0] += 2e-3F;
  EXPECT_NE(judged(sum(), actual, right, exact).wrong, "");
}

TEST(Oracle, IsExactWhereSinglePrecisionIs) {
  Strictness exactly;
  exactly.exact = true;
  const std::vector<float> right = {1, 2, 3, 0.1F};
  const std::vector<double> exact = {1, 2, 3, 0.1};
  EXPECT_EQ(judged(pointwise(), right, right, exact, exactly).wrong, "");
  EXPECT_NE(judged(pointwise(), {1, 2, 3.0000002F, 0.1F}, right, exact, exactly).wrong, "");
  EXPECT_EQ(judged(pointwise(), {1, 2, 3, 0.10000001F}, right, exact, exactly).wrong, "");
}

TEST(Oracle, CountsUnitsInTheLastPlace) {
  Strictness units;
  units.units = 2;
  const std::vector<float> right = {1, 1e-3F, 1e30F, 1e-40F};
  const std::vector<double> exact(right.begin(), right.end());
  std::vector<float> actual = right;
  actual[1] = std::nextafter(right[1], 1.F);
  actual[3] = 0;  // below the normal numbers
  EXPECT_EQ(judged(pointwise(), actual, right, exact, units).wrong, "");
  for (int i = 0; i < 3; ++i) actual[1] = std::nextafter(actual[1], 1.F);
  EXPECT_NE(judged(pointwise(), actual, right, exact, units).wrong, "");
}

TEST(Oracle, NothingButNanSaysNothing) {
  Expected nothing;
  nothing.results.push_back(bytes_of<float>({kNan, kNan, kNan, kNan}));
  EXPECT_FALSE(says_something(pointwise(), nothing));
  nothing.results[0] = bytes_of<float>({kNan, kNan, 1, kNan});
  EXPECT_TRUE(says_something(pointwise(), nothing));
}

TEST(Oracle, WidensEveryFloat) {
  const auto wide =
      widened(parsed("graph @g(%0: bf16[4], %1: i64[4]) -> (f32[4]) {\n"
                     "  %2 = aten._to_copy(%0, dtype=f32) : f32[4]\n"
                     "  %3 = aten.add.Tensor(%2, %1) : f32[4]\n  return %3\n}\n"));
  ASSERT_TRUE(wide);
  EXPECT_EQ(wide->values[wide->inputs[0]].type.dtype, ir::DType::kFloat64);
  EXPECT_EQ(wide->values[wide->inputs[1]].type.dtype, ir::DType::kInt64);
  EXPECT_EQ(std::get<ir::DType>(wide->nodes[0].find_attribute("dtype")->value),
            ir::DType::kFloat64);
}

TEST(Filling, KeepsToTheRecipe) {
  const ir::Graph graph = parsed(
      "graph @g(%0: f32[2, 3] strides(1, 4), %1: i64[2, 2]) -> (f32[2, 3]) {\n"
      "  %2 = aten.exp(%0) : f32[2, 3]\n  return %2\n}\n");
  Recipe floats, numbers;
  floats.low = 2, floats.high = 6;
  numbers.values = {3, 1, 4, 1};
  const auto memory = fill(graph, {floats, numbers}, {}, Filling::kIntegers, 5);
  ASSERT_EQ(memory.size(), 2u);
  ASSERT_EQ(memory[0].size(), 10 * sizeof(float));  // two columns, two elements between them
  std::vector<float> values(10);
  std::memcpy(values.data(), memory[0].data(), memory[0].size());
  for (const int at : {0, 1, 4, 5, 8, 9}) {
    EXPECT_GE(values[static_cast<std::size_t>(at)], 2);
    EXPECT_LE(values[static_cast<std::size_t>(at)], 6);
    EXPECT_EQ(std::round(values[static_cast<std::size_t>(at)]),
              values[static_cast<std::size_t>(at)]);
  }
  for (const int at : {2, 3, 6, 7}) EXPECT_TRUE(std::isnan(values[static_cast<std::size_t>(at)]));
  std::vector<std::int64_t> whole(4);
  std::memcpy(whole.data(), memory[1].data(), memory[1].size());
  EXPECT_THAT(whole, ::testing::ElementsAre(3, 1, 4, 1));
  EXPECT_EQ(fill(graph, {floats, numbers}, {}, Filling::kIntegers, 5), memory);
  EXPECT_NE(fill(graph, {floats, numbers}, {}, Filling::kIntegers, 6), memory);
}

}  // namespace
}  // namespace backplane::conformance
