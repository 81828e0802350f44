// Layer, batch and group norm against plain loops.
#include <gtest/gtest.h>

#include <tuple>

#include "kernels/simd/row_loops.h"
#include "kernels/simd/vector_table.h"
#include "kernels/testing/run_kernel.h"

namespace backplane::onednn {
namespace {

using testing::difference;
using testing::Floats;
using testing::OneNode;
using testing::random_floats;
using Doubles = std::vector<double>;

struct Gradients {
  Doubles input, weight, bias;
};
// `group(i)` and `channel(i)` of element i; statistics per group, weights per channel.
template <class G, class C>
Gradients reference(const Floats& g, const Floats& x, const Floats& mean, const Floats& rstd,
                    const Floats& w, bool training, G group, C channel) {
  const std::size_t n = x.size(), groups = mean.size();
  Doubles sum(groups), product(groups), count(groups);
  Gradients out{Doubles(n), Doubles(w.size()), Doubles(w.size())};
  const auto normal = [&](std::size_t i) { return double{x[i] - mean[group(i)]} * rstd[group(i)]; };
  for (std::size_t i = 0; i < n; ++i) {
    const double scaled = double{g[i]} * w[channel(i)];
    sum[group(i)] += scaled;
    product[group(i)] += scaled * normal(i);
    count[group(i)] += 1;
    out.weight[channel(i)] += g[i] * normal(i);
    out.bias[channel(i)] += g[i];
  }
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t k = group(i);
    const double scaled = double{g[i]} * w[channel(i)];
    out.input[i] =
        rstd[k] * (training ? scaled - (sum[k] + normal(i) * product[k]) / count[k] : scaled);
  }
  return out;
}

TEST(LayerNormBackward, RowsOfAnyLength) {
  for (const std::int64_t n : {1, 7, 16, 33, 768}) {
    const std::int64_t rows = 6;
    const Floats g = random_floats(rows * n, 1), x = random_floats(rows * n, 2),
                 w = random_floats(n, 3), mean = random_floats(rows, 4),
                 rstd = random_floats(rows, 5);
    OneNode node("aten.native_layer_norm_backward");
    node.in({2, 3, n}, g)
        .in({2, 3, n}, x)
        .in({2, 3, 1}, mean)
        .in({2, 3, 1}, rstd)
        .in({n}, w)
        .none();
    node.ints("normalized_shape", {n}).mask(true, true, true);
    node.out({2, 3, n}).out({n}).out({n}).run(testing::kernel);
    const auto width = static_cast<std::size_t>(n);
    const Gradients want = reference(
        g, x, mean, rstd, w, true, [&](std::size_t i) { return i / width; },
        [&](std::size_t i) { return i % width; });
    EXPECT_LT(difference(node.result(0), want.input), 1e-4) << n;
    EXPECT_LT(difference(node.result(1), want.weight), 1e-5) << n;
    EXPECT_LT(difference(node.result(2), want.bias), 1e-5) << n;
  }
}
TEST(LayerNormBackward, StridedBfloat16WithoutWeight) {
  const std::int64_t rows = 5, n = 40;
  const Floats g = testing::rounded(random_floats(rows * n, 1)),
               x = testing::rounded(random_floats(rows * n, 2)), mean = random_floats(rows, 4),
               rstd = random_floats(rows, 5);
  OneNode node("aten.native_layer_norm_backward");
  node.in({rows, n}, g, {1, rows}, sdk::kBFloat16).in({rows, n}, x, {n + 3, 1}, sdk::kBFloat16);
  node.in({rows, 1}, mean).in({rows, 1}, rstd).none().none();
  node.ints("normalized_shape", {n}).mask(true, false, false);
  node.out({rows, n}, {1, rows}, sdk::kBFloat16).out({0}).out({0}).run(testing::kernel);
  const Gradients want = reference(
      g, x, mean, rstd, Floats(n, 1.0F), true, [&](std::size_t i) { return i / n; },
      [&](std::size_t i) { return i % n; });
  EXPECT_LT(difference(node.result(0), want.input), 1e-2);
}

TEST(BatchNormBackward, PlanesAndRowsOfChannels) {
  for (const auto& [dims, last, training, type] :
       {std::tuple{Shape{3, 5, 4, 6}, false, true, sdk::kFloat32},
        {Shape{3, 5, 4, 6}, true, true, sdk::kFloat32},
        {Shape{3, 5, 4, 6}, false, false, sdk::kFloat32},
        {Shape{9, 21, 1, 1}, false, true, sdk::kFloat32},
        {Shape{3, 37, 5, 9}, false, true, sdk::kBFloat16},
        {Shape{3, 37, 5, 9}, true, true, sdk::kBFloat16}}) {
    const std::int64_t c = dims[1], count = product(dims);
    const Floats g = testing::rounded(random_floats(count, 1)),
                 x = testing::rounded(random_floats(count, 2)), w = random_floats(c, 3),
                 mean = random_floats(c, 4);
    Floats rstd = random_floats(c, 5), variance(rstd.size());
    for (std::size_t i = 0; i < rstd.size(); ++i) {
      rstd[i] = 1.5F + rstd[i];
      variance[i] = 1 / (rstd[i] * rstd[i]) - 1e-3F;
    }
    const Shape strides = last ? testing::channels_last(dims) : Shape{};
    OneNode node("aten.native_batch_norm_backward");
    node.in(dims, g, strides, type).in(dims, x, strides, type).in({c}, w);
    if (training)
      node.none().none().in({c}, mean).in({c}, rstd);
    else
      node.in({c}, mean).in({c}, variance).none().none();
    node.flag("train", training).real("eps", 1e-3).mask(true, true, true);
    node.out(dims, strides, type).out({c}).out({c}).run(testing::kernel);
    const auto area = static_cast<std::size_t>(dims[2] * dims[3]),
               channels = static_cast<std::size_t>(c);
    const auto channel = [&](std::size_t i) { return i / area % channels; };
    const Gradients want = reference(g, x, mean, rstd, w, training, channel, channel);
    EXPECT_LT(difference(node.result(0), want.input), type.bits == 32 ? 1e-4 : 1e-2);
    EXPECT_LT(difference(node.result(1), want.weight), 1e-4);
    EXPECT_LT(difference(node.result(2), want.bias), 1e-4);
  }
}

// Their gradient does not depend on the input.
TEST(BatchNormBackward, GivenStatisticsBesideWhatIsNoNumber) {
  for (const bool last : {false, true})
    for (const bp_dtype type : {sdk::kFloat32, sdk::kBFloat16}) {
      const Shape dims{2, 19, 3, 7}, strides = last ? testing::channels_last(dims) : Shape{};
      const std::int64_t c = dims[1], count = product(dims);
      OneNode node("aten.native_batch_norm_backward");
      node.in(dims, Floats(static_cast<std::size_t>(count), 2), strides, type)
          .in(dims, Floats(static_cast<std::size_t>(count), NAN), strides)
          .in({c}, Floats(static_cast<std::size_t>(c), 3))
          .in({c}, random_floats(c, 4))
          .in({c}, Floats(static_cast<std::size_t>(c), 4))
          .none()
          .none();
      node.flag("train", false).real("eps", 0).mask(true, false, false);
      node.out(dims, strides, type).out({0}).out({0}).run(testing::kernel);
      EXPECT_EQ(node.result(0), Floats(static_cast<std::size_t>(count), 3)) << last;
    }
}

TEST(GroupNormBackward, GroupsOfChannels) {
  const std::int64_t n = 2, c = 6, area = 35, groups = 3;
  const Floats g = random_floats(n * c * area, 1), x = random_floats(n * c * area, 2),
               w = random_floats(c, 3), mean = random_floats(n * groups, 4),
               rstd = random_floats(n * groups, 5);
  OneNode node("aten.native_group_norm_backward");
  node.in({n, c, 5, 7}, g)
      .in({n, c, 5, 7}, x)
      .in({n, groups}, mean)
      .in({n, groups}, rstd)
      .in({c}, w);
  node.number("N", n)
      .number("C", c)
      .number("HxW", area)
      .number("group", groups)
      .mask(true, true, true);
  node.out({n, c, 5, 7}).out({c}).out({c}).run(testing::kernel);
  const Gradients want = reference(
      g, x, mean, rstd, w, true, [](std::size_t i) { return i / (2 * 35); },
      [](std::size_t i) { return i / 35 % 6; });
  EXPECT_LT(difference(node.result(0), want.input), 1e-4);
  EXPECT_LT(difference(node.result(1), want.weight), 1e-5);
  EXPECT_LT(difference(node.result(2), want.bias), 1e-5);
}

TEST(RowLoops, InstructionSetsAgree) {
  const std::int64_t n = 77;
  const Floats g = random_floats(n, 1), x = random_floats(n, 2), w = random_floats(n, 3);
  for (std::size_t i = 0; const VectorTable* can = runnable_table(i); ++i) {
    const RowLoops& t = can == &kVectorAvx512 ? kBackwardAvx512
                        : can == &kVectorAvx2 ? kBackwardAvx2
                                              : kBackwardBaseline;
    const RowSums a = t.norm_sums({g.data(), x.data(), w.data(), 0.25F, 2, n, nullptr, nullptr});
    Floats row = g, slope = g, sums(static_cast<std::size_t>(n)), products = sums, target = sums;
    t.shifted_exp(row.data(), 0.5F, n);
    t.softmax_slope(slope.data(), x.data(), 0.5F, n);
    t.column_sums[0](sums.data(), products.data(), g.data(), x.data(), w.data(), n);
    t.column_apply[0](target.data(), g.data(), x.data(), w.data(), x.data(), g.data(), w.data(), n);
    double grad = 0, product = 0, dot = 0;
    for (std::size_t k = 0; k < g.size(); ++k) {
      grad += double{g[k]} * w[k];
      product += double{g[k]} * w[k] * (x[k] - 0.25);
      dot += double{g[k]} * x[k];
      EXPECT_NEAR(row[k], std::exp(g[k] - 0.5F), 1e-6) << can->name;
      EXPECT_NEAR(slope[k], x[k] * (g[k] - 0.5F), 1e-6) << can->name;
      EXPECT_NEAR(products[k], g[k] * (x[k] - w[k]), 1e-6) << can->name;
      EXPECT_NEAR(target[k], g[k] * x[k] + (x[k] - w[k]) * g[k] + w[k], 1e-6) << can->name;
    }
    EXPECT_NEAR(a.grad, grad, 1e-5) << can->name;
    EXPECT_NEAR(a.product, product, 1e-5) << can->name;
    EXPECT_NEAR(t.dot(g.data(), x.data(), n), dot, 1e-5) << can->name;
  }
}

}  // namespace
}  // namespace backplane::onednn
