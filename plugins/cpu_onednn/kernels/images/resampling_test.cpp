// Resampling and its gradients against loops over single elements.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/testing/run_kernel.h"

namespace backplane::onednn {
namespace {

using testing::difference;
using testing::Floats;
using testing::OneNode;
using testing::random_floats;
using Doubles = std::vector<double>;

struct Case {
  std::string op;  // without aten., forward
  Shape in, out;   // of four dims
  bool align = false;
  double scale_h = 0, scale_w = 0;
  bool last = false;
  bp_dtype type = sdk::kFloat32;
};

// The share of point `p` in result `i` of one dim.
double share(const Case& c, std::size_t dim, std::int64_t i, std::int64_t p) {
  const std::int64_t in = c.in[dim], out = c.out[dim];
  const double given = dim == 2 ? c.scale_h : c.scale_w;
  const double step = given > 0 ? 1 / given : static_cast<double>(in) / static_cast<double>(out);
  const auto at = static_cast<double>(i);
  if (c.op == "upsample_nearest2d")
    return std::min(static_cast<std::int64_t>(at * step), in - 1) == p ? 1 : 0;
  if (c.op == "_upsample_nearest_exact2d")
    return std::min(static_cast<std::int64_t>((at + 0.5) * step), in - 1) == p ? 1 : 0;
  double x = std::max((at + 0.5) * step - 0.5, 0.0);
  if (c.align) x = out > 1 ? at * static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0;
  x = std::min(x, static_cast<double>(in - 1));
  return std::max(0.0, 1 - std::abs(x - static_cast<double>(p)));
}
// Of x resampled, or backward of x as the gradient.
Doubles reference(const Case& c, const Floats& x, bool backward) {
  const Shape& to = backward ? c.in : c.out;
  const std::int64_t planes = c.in[0] * c.in[1];
  Doubles y(static_cast<std::size_t>(product(to)));
  for (std::int64_t n = 0; n < planes; ++n)
    for (std::int64_t i = 0; i < c.out[2]; ++i)
      for (std::int64_t p = 0; p < c.in[2]; ++p) {
        const double row = share(c, 2, i, p);
        if (row == 0) continue;
        for (std::int64_t j = 0; j < c.out[3]; ++j)
          for (std::int64_t q = 0; q < c.in[3]; ++q) {
            const auto large = static_cast<std::size_t>((n * c.out[2] + i) * c.out[3] + j);
            const auto small = static_cast<std::size_t>((n * c.in[2] + p) * c.in[3] + q);
            y[backward ? small : large] += row * share(c, 3, j, q) * x[backward ? large : small];
          }
      }
  return y;
}

Floats run(const Case& c, const Floats& x, bool backward) {
  const Shape &from = backward ? c.out : c.in, &to = backward ? c.in : c.out;
  const auto strides = [&](const Shape& dims) {
    return c.last ? testing::channels_last(dims) : Shape{};
  };
  OneNode node("aten." + c.op + (backward ? "_backward" : ""));
  node.in(from, x, strides(from), c.type).flag("align_corners", c.align);
  if (c.scale_h > 0) node.real("scales_h", c.scale_h);
  if (c.scale_w > 0) node.real("scales_w", c.scale_w);
  node.out(to, strides(to), c.type).run(testing::kernel);
  return node.result(0);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* op : {"upsample_bilinear2d", "upsample_nearest2d", "_upsample_nearest_exact2d"})
    for (const bool last : {false, true})
      for (const bp_dtype type : {sdk::kFloat32, sdk::kBFloat16}) {
        all.push_back({op, {2, 3, 5, 7}, {2, 3, 10, 14}, false, 0, 0, last, type});
        all.push_back({op, {1, 37, 9, 8}, {1, 37, 4, 19}, false, 0, 0, last, type});
        all.push_back({op, {1, 70, 6, 1}, {1, 70, 1, 9}, false, 0, 0, last, type});
        all.push_back({op, {2, 3, 4, 6}, {2, 3, 9, 13}, false, 2.25, 2.2, last, type});
        all.push_back({op, {1, 2, 33, 3}, {1, 2, 33, 3}, false, 0, 0, last, type});
      }
  for (const bool last : {false, true}) {
    all.push_back({"upsample_bilinear2d", {2, 5, 6, 5}, {2, 5, 12, 9}, true, 0, 0, last});
    all.push_back({"upsample_bilinear2d", {1, 4, 6, 5}, {1, 4, 1, 2}, true, 0, 0, last});
    all.push_back({"upsample_bilinear2d", {2, 40, 20, 20}, {2, 40, 40, 40}, true, 0, 0, last});
  }
  return all;
}
std::string name(const Case& c) {
  std::string text = c.op + (c.last ? " last " : " ") + std::to_string(c.type.bits);
  for (const Shape* s : {&c.in, &c.out})
    for (const std::int64_t d : *s) text += " " + std::to_string(d);
  return text;
}

TEST(Resampling, ResultsAreWeightedSums) {
  for (const Case& c : cases()) {
    const Floats x = testing::rounded(random_floats(product(c.in)));
    EXPECT_LT(difference(run(c, x, false), reference(c, x, false)), c.type.bits == 32 ? 1e-5 : 5e-3)
        << name(c);
  }
}
TEST(Resampling, GradientsAreTransposedSums) {
  for (const Case& c : cases()) {
    const Floats g = testing::rounded(random_floats(product(c.out)));
    EXPECT_LT(difference(run(c, g, true), reference(c, g, true)), c.type.bits == 32 ? 1e-5 : 5e-3)
        << name(c);
  }
}
TEST(Resampling, OneDim) {
  OneNode node("aten.upsample_linear1d");
  node.in({1, 2, 2}, {1, 3, 5, 9}).real("scales", 2).out({1, 2, 4}).run(testing::kernel);
  EXPECT_EQ(node.result(0), (Floats{1, 1.5, 2.5, 3, 5, 6, 8, 9}));
  OneNode back("aten.upsample_linear1d_backward");
  back.in({1, 1, 4}, {1, 2, 3, 4}).out({1, 1, 2}).run(testing::kernel);
  EXPECT_EQ(back.result(0), (Floats{1 + 1.5F + 0.75F, 0.5F + 2.25F + 4}));
}
TEST(Resampling, OneDimHasNoRowsToMix) {
  const float most = INFINITY;
  OneNode node("aten.upsample_linear1d");
  node.in({1, 1, 5}, {1, 1, most, 2, 2}).out({1, 1, 10}).run(testing::kernel);
  EXPECT_EQ(node.result(0), (Floats{1, 1, 1, most, most, most, most, 2, 2, 2}));
}
TEST(Resampling, ResultsInTheOtherOrderOfMemory) {
  const Case c{"upsample_bilinear2d", {2, 3, 4, 5}, {2, 3, 7, 6}};
  const Floats x = random_floats(product(c.in));
  OneNode node("aten.upsample_bilinear2d");
  node.in(c.in, x).out(c.out, testing::channels_last(c.out)).run(testing::kernel);
  EXPECT_LT(difference(node.result(0), reference(c, x, false)), 1e-5);
}
TEST(Resampling, NearestMovesElementsOfAnyType) {
  OneNode node("aten.upsample_nearest1d");
  node.index({1, 1, 2}, {7, -9}).out({1, 1, 4}, {}, sdk::kInt64).run(testing::kernel);
  EXPECT_EQ(node.result(0), (Floats{7, 7, -9, -9}));
}
// Scales that have nothing to do with the sizes: all results read the last point, or the first.
TEST(Resampling, ScalesThatContradictTheSizes) {
  for (const auto& [scale, at] : {std::pair{1e-30, 2}, {1e30, 0}}) {
    OneNode node("aten.upsample_nearest1d");
    node.in({1, 1, 3}, {1, 2, 3}).real("scales", scale).out({1, 1, 4}).run(testing::kernel);
    EXPECT_EQ(node.result(0)[3], static_cast<float>(at + 1));
    OneNode back("aten.upsample_nearest1d_backward");
    back.in({1, 1, 4}, {1, 2, 3, 4}).real("scales", scale).out({1, 1, 3}).run(testing::kernel);
    EXPECT_EQ(back.result(0)[1], 0);
    EXPECT_GE(back.result(0)[static_cast<std::size_t>(at)], 9);
  }
}

}  // namespace
}  // namespace backplane::onednn
