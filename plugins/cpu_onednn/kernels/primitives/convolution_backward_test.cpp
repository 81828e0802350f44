// Convolution and pooling gradients against plain loops.
#include <gtest/gtest.h>

#include "kernels/testing/run_kernel.h"

namespace backplane::onednn {
namespace {

using testing::difference;
using testing::Floats;
using testing::OneNode;
using testing::random_floats;
using Doubles = std::vector<double>;

struct Case {
  std::int64_t in_channels = 4, out_channels = 6, size = 7, kernel = 3, stride = 1, padding = 0,
               dilation = 1, groups = 1;
  bool transposed = false, last = false, expanded = false;
  bp_dtype type = sdk::kFloat32;
  bool input = true, weight = true, bias = true;
};

void check(const Case& k) {
  const std::int64_t n = 2, reach = (k.kernel - 1) * k.dilation;
  const std::int64_t result = k.transposed ? (k.size - 1) * k.stride - 2 * k.padding + reach + 1
                                           : (k.size + 2 * k.padding - reach - 1) / k.stride + 1;
  const Shape x_dims{n, k.in_channels, k.size, k.size}, y_dims{n, k.out_channels, result, result};
  const Shape w_dims = k.transposed
                           ? Shape{k.in_channels, k.out_channels / k.groups, k.kernel, k.kernel}
                           : Shape{k.out_channels, k.in_channels / k.groups, k.kernel, k.kernel};
  Floats x = testing::rounded(random_floats(product(x_dims), 1)),
         w = testing::rounded(random_floats(product(w_dims), 2)),
         g = testing::rounded(random_floats(product(y_dims), 3));
  if (k.expanded) std::fill(g.begin(), g.end(), g[0]);
  OneNode node("aten.convolution_backward");
  node.in(y_dims, g,
          k.expanded ? Shape{0, 0, 0, 0}
          : k.last   ? testing::channels_last(y_dims)
                     : Shape{},
          k.type);
  node.in(x_dims, x, k.last ? testing::channels_last(x_dims) : Shape{}, k.type)
      .in(w_dims, w, {}, k.type);
  node.ints("stride", {k.stride, k.stride}).ints("padding", {k.padding, k.padding});
  node.ints("dilation", {k.dilation, k.dilation}).ints("output_padding", {0, 0});
  node.flag("transposed", k.transposed).number("groups", k.groups);
  node.ints("output_mask", {k.input, k.weight, k.bias}, BP_ATTRIBUTE_BOOLS);
  node.out(k.input ? x_dims : Shape{0},
           k.input && k.last ? testing::channels_last(x_dims) : Shape{}, k.type);
  node.out(k.weight ? w_dims : Shape{0}, {}, k.type)
      .out(k.bias ? Shape{k.out_channels} : Shape{0}, {}, k.type);
  node.run(testing::kernel);

  // As a convolution from `a` to `b`; transposed, b is the input and a the result.
  const Shape& a_dims = k.transposed ? y_dims : x_dims;
  const Shape& b_dims = k.transposed ? x_dims : y_dims;
  Doubles gx(x.size()), gw(w.size()), gb(static_cast<std::size_t>(k.out_channels));
  const std::int64_t a_group = a_dims[1] / k.groups, b_group = b_dims[1] / k.groups;
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t o = 0; o < b_dims[1]; ++o)
      for (std::int64_t r = 0; r < b_dims[2]; ++r)
        for (std::int64_t s = 0; s < b_dims[3]; ++s)
          for (std::int64_t c = 0; c < a_group; ++c)
            for (std::int64_t u = 0; u < k.kernel; ++u)
              for (std::int64_t v = 0; v < k.kernel; ++v) {
                const std::int64_t ar = r * k.stride - k.padding + u * k.dilation,
                                   as = s * k.stride - k.padding + v * k.dilation;
                if (ar < 0 || as < 0 || ar >= a_dims[2] || as >= a_dims[3]) continue;
                const auto at_a = static_cast<std::size_t>(
                    ((i * a_dims[1] + o / b_group * a_group + c) * a_dims[2] + ar) * a_dims[3] +
                    as);
                const auto at_b =
                    static_cast<std::size_t>(((i * b_dims[1] + o) * b_dims[2] + r) * b_dims[3] + s);
                const auto at_w =
                    static_cast<std::size_t>(((o * a_group + c) * k.kernel + u) * k.kernel + v);
                const std::size_t at_x = k.transposed ? at_b : at_a,
                                  at_g = k.transposed ? at_a : at_b;
                gx[at_x] += double{g[at_g]} * w[at_w];
                gw[at_w] += double{g[at_g]} * x[at_x];
              }
  for (std::size_t i = 0; i < g.size(); ++i)
    gb[i / static_cast<std::size_t>(result * result) % gb.size()] += g[i];
  const double limit = k.type.bits == 32 ? 1e-5 : 1e-2;
  if (k.input) {
    EXPECT_LT(difference(node.result(0), gx), limit);
  }
  if (k.weight) {
    EXPECT_LT(difference(node.result(1), gw), limit);
  }
  if (k.bias) {
    EXPECT_LT(difference(node.result(2), gb), limit);
  }
}

TEST(ConvolutionBackward, Plain) { check({}); }
TEST(ConvolutionBackward, StridePaddingDilation) {
  check({.stride = 2, .padding = 1});
  check({.size = 9, .padding = 2, .dilation = 2});
}
TEST(ConvolutionBackward, Groups) {
  check({.out_channels = 8, .groups = 2});
  check({.in_channels = 16, .out_channels = 16, .padding = 1, .groups = 16});
}
TEST(ConvolutionBackward, Transposed) {
  check({.stride = 2, .padding = 1, .transposed = true});
  check({.out_channels = 8, .groups = 2, .transposed = true});
}
TEST(ConvolutionBackward, ChannelsLast) {
  check({.padding = 1, .last = true});
  check({.stride = 2, .transposed = true, .last = true});
}
TEST(ConvolutionBackward, Bfloat16) {
  check({.type = sdk::kBFloat16});
  check({.last = true, .type = sdk::kBFloat16});
}
TEST(ConvolutionBackward, ExpandedGradient) { check({.expanded = true}); }
TEST(ConvolutionBackward, OutputMask) {
  check({.weight = false, .bias = false});
  check({.input = false, .bias = false});
  check({.input = false, .weight = false});
  check({.last = true, .input = false, .weight = false});
}

// ---- Pooling ----

TEST(MaxPoolBackward, PlanesAndChannelsLast) {
  for (const bool last : {false, true})
    for (const bp_dtype type : {sdk::kFloat32, sdk::kBFloat16}) {
      const Shape in{2, 20, 6, 5}, out{2, 20, 3, 2};
      const Floats g = testing::rounded(random_floats(product(out), 1));
      std::vector<std::int64_t> index(g.size());
      Doubles want(static_cast<std::size_t>(product(in)));
      for (std::size_t i = 0; i < g.size(); ++i) {
        index[i] = static_cast<std::int64_t>(i * 7 % 30);
        want[i / 6 * 30 + static_cast<std::size_t>(index[i])] += g[i];
      }
      OneNode node("aten.max_pool2d_with_indices_backward");
      node.in(out, g, last ? testing::channels_last(out) : Shape{}, type);
      node.in(in, {0}, last ? testing::channels_last(in) : Shape{}, type).index(out, index);
      node.out(in, last ? testing::channels_last(in) : Shape{}, type).run(testing::kernel);
      EXPECT_LT(difference(node.result(0), want), type.bits == 32 ? 1e-6 : 1e-2);
    }
}

TEST(AveragePoolBackward, WindowsAndDivisors) {
  for (const bool last : {false, true})
    for (const bool count : {false, true})
      for (const std::int64_t divisor : {0, 5}) {
        const std::int64_t size = 7, kernel = 3, stride = 2, padding = 1, result = 4;
        const Shape in{2, 18, size, size}, out{2, 18, result, result};
        const Floats g = random_floats(product(out), 1);
        OneNode node("aten.avg_pool2d_backward");
        node.in(out, g, last ? testing::channels_last(out) : Shape{})
            .in(in, {0}, last ? testing::channels_last(in) : Shape{});
        node.ints("kernel_size", {kernel, kernel})
            .ints("stride", {stride})
            .ints("padding", {padding, padding});
        node.flag("count_include_pad", count);
        if (divisor != 0) node.number("divisor_override", divisor);
        node.out(in, last ? testing::channels_last(in) : Shape{}).run(testing::kernel);
        Doubles want(static_cast<std::size_t>(product(in)));
        for (std::int64_t p = 0; p < 36; ++p)
          for (std::int64_t i = 0; i < result * result; ++i) {
            std::vector<std::size_t> inside;
            for (std::int64_t u = 0; u < kernel * kernel; ++u) {
              const std::int64_t r = i / result * stride - padding + u / kernel,
                                 c = i % result * stride - padding + u % kernel;
              if (r >= 0 && c >= 0 && r < size && c < size)
                inside.push_back(static_cast<std::size_t>((p * size + r) * size + c));
            }
            const double by = divisor != 0 ? static_cast<double>(divisor)
                              : count      ? static_cast<double>(kernel * kernel)
                                           : static_cast<double>(inside.size());
            for (const std::size_t at : inside)
              want[at] += g[static_cast<std::size_t>(p * result * result + i)] / by;
          }
        EXPECT_LT(difference(node.result(0), want), 1e-6);
      }
}

}  // namespace
}  // namespace backplane::onednn
