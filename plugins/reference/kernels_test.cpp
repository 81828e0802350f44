#include <backplane/sdk/testing/googletest.hpp>

#include <cmath>
#include <limits>

#include "kernel_registry.h"
namespace backplane::reference {
namespace {

using namespace sdk::testing;
using Ints = std::vector<std::int64_t>;

TEST(Kernels, AddBroadcastsAndScales) {
  GraphBuilder g;
  const auto a = g.input(sdk::kFloat32, {2, 3}), b = g.input(sdk::kFloat32, {3});
  const auto out = g.value(sdk::kFloat32, {2, 3});
  g.integer("alpha", 2);
  g.node("aten.add.Tensor", {a, b}, {out});
  g.output(out);
  EXPECT_EQ((run_graph<float, float>(g, {{1, 2, 3, 4, 5, 6}, {10, 20, 30}})),
            (Floats{21, 42, 63, 24, 45, 66}));
}

TEST(Kernels, NumberInPlaceOfATensor) {
  GraphBuilder g;
  const auto a = g.input(sdk::kFloat32, {2});
  const auto out = g.value(sdk::kFloat32, {2});
  g.real("other", 0.5);
  g.node("aten.mul.Tensor", {a, BP_NONE}, {out});
  g.output(out);
  EXPECT_EQ((run_graph<float, float>(g, {{2, 4}})), (Floats{1, 2}));
}

TEST(Kernels, WritesThroughTheGraphsStrides) {
  GraphBuilder g;
  const auto a = g.input(sdk::kFloat32, {2, 3});
  const auto out = g.value(sdk::kFloat32, {2, 3}, {1, 2});  // column-major
  g.node("aten.neg", {a}, {out});
  g.output(out);
  EXPECT_EQ((run_graph<float, float>(g, {{1, 2, 3, 4, 5, 6}})), (Floats{-1, -4, -2, -5, -3, -6}));
}

TEST(Kernels, ComparesLargeIntegersExactly) {
  GraphBuilder g;
  const auto a = g.input(sdk::kInt64, {2}), b = g.input(sdk::kInt64, {2});
  const auto out = g.value(sdk::kBool, {2});
  g.node("aten.lt.Tensor", {a, b}, {out});
  g.output(out);
  const std::int64_t big = (std::int64_t{1} << 53);
  EXPECT_EQ((run_graph<std::uint8_t, std::int64_t>(g, {{big, big + 1}, {big + 1, big}})),
            (std::vector<std::uint8_t>{1, 0}));
}

TEST(Kernels, IntegerArithmeticWraps) {
  GraphBuilder g;
  const auto a = g.input(sdk::kInt64, {1}), b = g.input(sdk::kInt64, {1});
  const auto out = g.value(sdk::kInt64, {1});
  g.node("aten.add.Tensor", {a, b}, {out});
  g.output(out);
  const std::int64_t max = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ((run_graph<std::int64_t, std::int64_t>(g, {{max}, {1}})),
            (Ints{std::numeric_limits<std::int64_t>::min()}));
}

TEST(Kernels, HalvesRoundOnceToNearestEven) {
  GraphBuilder g;
  const auto a = g.input(sdk::kFloat32, {4});
  const auto out = g.value(sdk::kBFloat16, {4});
  g.node("aten._to_copy", {a}, {out});
  g.output(out);
  // 1 + 2^-8 lies between two halves: to even; a little more goes up.
  EXPECT_EQ(
      (run_graph<std::uint16_t, float>(g, {{1.00390625f, 1.0039064f, std::nanf(""), 3.4e38f}})),
      (std::vector<std::uint16_t>{0x3f80, 0x3f81, 0x7fc0, 0x7f80}));
}

TEST(Kernels, MatrixProductOfATransposedView) {
  GraphBuilder g;
  const auto a = g.input(sdk::kFloat32, {2, 3}), b = g.input(sdk::kFloat32, {2, 3});
  const auto t = g.value(sdk::kFloat32, {3, 2}, {1, 3}), out = g.value(sdk::kFloat32, {2, 2});
  g.view("aten.t", b, t);
  g.node("aten.mm", {a, t}, {out});
  g.output(out);
  EXPECT_EQ((run_graph<float, float>(g, {{1, 2, 3, 4, 5, 6}, {1, 0, 1, 0, 1, 0}})),
            (Floats{4, 2, 10, 5}));
}

TEST(Kernels, SoftmaxOfARowOfMinusInfinityIsNotANumber) {
  GraphBuilder g;
  const auto a = g.input(sdk::kFloat32, {2, 2});
  const auto out = g.value(sdk::kFloat32, {2, 2});
  g.integer("dim", -1);
  g.boolean("half_to_float", false);
  g.node("aten._softmax", {a}, {out});
  g.output(out);
  const float inf = std::numeric_limits<float>::infinity();
  const auto y = run_graph<float, float>(g, {{0, 0, -inf, -inf}});
  EXPECT_EQ(y[0], 0.5f);
  EXPECT_TRUE(std::isnan(y[2]));
}

TEST(Kernels, SumOverNoElementsAndZeroDimensions) {
  GraphBuilder g;
  const auto a = g.input(sdk::kFloat32, {0, 3});
  const auto out = g.value(sdk::kFloat32, {});
  g.node("aten.sum", {a}, {out});
  g.output(out);
  Session session;
  bp_executable* x = session.compile(g.graph());
  bp_buffer* to = session.upload<float>({7});
  require_ok(session.execute(x, {bp_range{}}, {Session::range(to, 4)}));
  EXPECT_EQ(session.download<float>(to, 1), (Floats{0}));
}

TEST(Kernels, IndexOutOfBoundsIsAnError) {
  GraphBuilder g;
  const auto w = g.input(sdk::kFloat32, {2, 1}), i = g.input(sdk::kInt64, {1});
  const auto out = g.value(sdk::kFloat32, {1, 1});
  g.node("aten.embedding", {w, i}, {out});
  g.output(out);
  Session session;
  bp_executable* x = session.compile(g.graph());
  bp_buffer *weight = session.upload<float>({1, 2}), *index = session.upload<std::int64_t>({2});
  bp_buffer* to = session.buffer(4);
  bp_error* error = session.execute(x, {Session::range(weight, 8), Session::range(index, 8)},
                                    {Session::range(to, 4)});
  EXPECT_TRUE(fails_with(BP_INVALID_ARGUMENT, error));
}

TEST(Kernels, SizesFollowTheDimClasses) {
  GraphBuilder g;
  g.dim_class(2, 64, 8);
  const auto a = g.input(sdk::kFloat32, {-1, 2}, {2, 1});
  const auto t = g.value(sdk::kFloat32, {-1, 2}, {2, 1}), out = g.value(sdk::kFloat32, {2});
  g.node("aten.relu", {a}, {t});
  g.integers("dim", {0});
  g.node("aten.sum.dim_IntList", {t}, {out});
  g.output(out);
  Session session;
  bp_executable* x = session.compile(g.graph());
  bp_buffer *from = session.upload<float>({1, -2, 3, 4, -5, 6}), *to = session.buffer(8);
  require_ok(session.execute(x, {Session::range(from, 24)}, {Session::range(to, 8)}, {}, {3}));
  EXPECT_EQ(session.download<float>(to, 2), (Floats{4, 10}));
}

TEST(Registry, NamesAreUniqueAndFound) {
  const auto names = kernel_names();
  EXPECT_GT(names.size(), 500u);
  for (std::size_t i = 0; i < names.size(); ++i) {
    ASSERT_NE(find_kernel(names[i]), nullptr);
    if (i != 0) {
      EXPECT_LT(names[i - 1], names[i]);
    }
  }
  EXPECT_EQ(find_kernel("aten.no_such_op"), nullptr);
}

}  // namespace
}  // namespace backplane::reference
