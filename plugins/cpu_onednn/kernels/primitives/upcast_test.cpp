#include "kernels/primitives/upcast.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/primitives/convolution.h"
#include "kernels/primitives/matmul.h"
#include "kernels/simd/instruction_set.h"
#include "kernels/simd/vector_table.h"
#include "kernels/testing/run_kernel.h"

namespace backplane::onednn {
namespace {

using testing::difference;
using testing::Floats;
using testing::OneNode;
using testing::random_floats;
using testing::rounded;

constexpr double kBFloat16Error = 1.0 / 128;

// Products of rounded values in double.
std::vector<double> matrix_product(const Floats& a, const Floats& b, std::int64_t m, std::int64_t n,
                                   std::int64_t k) {
  std::vector<double> out;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t p = 0; p < k; ++p)
        sum += static_cast<double>(a[static_cast<std::size_t>(i * k + p)]) *
               b[static_cast<std::size_t>(p * n + j)];
      out.push_back(sum);
    }
  return out;
}

MadeKernel matmul(const sdk::StepContext& context) { return make_matmul_kernel(context, BP_NONE); }
MadeKernel upcast_matmul(const sdk::StepContext& context) {
  return make_upcast_kernel(context, matmul);
}
MadeKernel convolution(const sdk::StepContext& context) {
  return make_convolution_kernel(context, BP_NONE);
}
MadeKernel upcast_convolution(const sdk::StepContext& context) {
  return make_upcast_kernel(context, convolution);
}

// Row-major, transposed, with gaps, and repeated: through the converting copies and as it is at the
// instruction set in use.
TEST(Upcast, MatrixProducts) {
  const Floats a = rounded(random_floats(5 * 7, 1)), b = rounded(random_floats(7 * 9, 2));
  for (const auto make : {matmul, upcast_matmul})
    for (const Shape& left : {Shape{7, 1}, Shape{1, 5}, Shape{20, 2}})
      for (const Shape& out : {Shape{9, 1}, Shape{1, 5}, Shape{30, 3}}) {
        OneNode node("aten.mm");
        node.in({5, 7}, a, left, sdk::kBFloat16).in({7, 9}, b, {}, sdk::kBFloat16);
        node.out({5, 9}, out, sdk::kBFloat16);
        node.run(testing::made_by(make));
        EXPECT_LT(difference(node.result(0), matrix_product(a, b, 5, 9, 7)), kBFloat16Error);
      }
}

TEST(Upcast, RepeatedRows) {
  const Floats row = rounded(random_floats(7, 1)), b = rounded(random_floats(7 * 9, 2));
  Floats a;
  for (int i = 0; i < 5; ++i) a.insert(a.end(), row.begin(), row.end());
  OneNode node("aten.mm");
  node.in({5, 7}, a, {0, 1}, sdk::kBFloat16).in({7, 9}, b, {}, sdk::kBFloat16);
  node.out({5, 9}, {}, sdk::kBFloat16);
  node.run(testing::made_by(upcast_matmul));
  EXPECT_LT(difference(node.result(0), matrix_product(a, b, 5, 9, 7)), kBFloat16Error);
}

TEST(Upcast, ConvolutionsOfChannelsLastImages) {
  const Shape image{2, 16, 6, 6};
  const Floats x = rounded(random_floats(2 * 16 * 36, 1)), w = rounded(random_floats(8 * 16, 2));
  // A product over channels at each point.
  std::vector<double> want;
  for (std::size_t n = 0; n < 2; ++n)
    for (std::size_t o = 0; o < 8; ++o)
      for (std::size_t p = 0; p < 36; ++p) {
        double sum = 0;
        for (std::size_t c = 0; c < 16; ++c)
          sum += static_cast<double>(x[(n * 16 + c) * 36 + p]) * w[o * 16 + c];
        want.push_back(sum);
      }
  for (const auto make : {convolution, upcast_convolution})
    for (const bool last : {false, true}) {
      OneNode node("aten.convolution");
      node.in(image, x, last ? testing::channels_last(image) : Shape{}, sdk::kBFloat16);
      node.in({8, 16, 1, 1}, w, {}, sdk::kBFloat16).none();
      node.ints("stride", {1, 1}).ints("padding", {0, 0}).ints("dilation", {1, 1});
      node.flag("transposed", false).number("groups", 1);
      node.out({2, 8, 6, 6}, last ? testing::channels_last({2, 8, 6, 6}) : Shape{}, sdk::kBFloat16);
      node.run(testing::made_by(make));
      EXPECT_LT(difference(node.result(0), want), kBFloat16Error) << "channels last: " << last;
    }
}

// What a product adds may be expanded, strided, or overlap: oneDNN describes none of it.
TEST(Matmul, AddedMatricesOfAnyStrides) {
  const Floats b = random_floats(3 * 4 * 5, 1), c = random_floats(3 * 5 * 6, 2),
               d = random_floats(72, 3);
  struct Case {
    Shape dims, strides;
  };
  for (const Case& added :
       {Case{{3, 1, 6}, {0, 6, 1}}, Case{{3, 4, 6}, {0, 0, 1}}, Case{{3, 4, 6}, {0, 6, 1}},
        Case{{3, 4, 6}, {2, 1, 3}}, Case{{3, 4, 6}, {4, 1, 12}}, Case{{1, 4, 1}, {7, 2, 3}},
        Case{{6}, {0}}, Case{{6}, {3}}}) {
    std::vector<double> want;
    const std::size_t lead = 3 - added.dims.size();
    Floats values(1, 0.0F);  // by place in memory, so that repeated elements agree
    for (std::size_t n = 0; n < 3; ++n)
      for (std::size_t i = 0; i < 4; ++i)
        for (std::size_t j = 0; j < 6; ++j) {
          const std::size_t index[3] = {n, i, j};
          std::int64_t at = 0;
          for (std::size_t k = lead; k < 3; ++k)
            if (added.dims[k - lead] > 1)
              at += static_cast<std::int64_t>(index[k]) * added.strides[k - lead];
          double sum = d[static_cast<std::size_t>(at)];
          for (std::size_t p = 0; p < 5; ++p)
            sum += static_cast<double>(b[(n * 4 + i) * 5 + p]) * c[(n * 5 + p) * 6 + j];
          want.push_back(sum);
        }
    OneNode node("aten.baddbmm");
    node.memory(added.dims, d, added.strides).in({3, 4, 5}, b).in({3, 5, 6}, c).out({3, 4, 6});
    node.run(testing::made_by(matmul));
    EXPECT_LT(difference(node.result(0), want), 1e-5);
  }
}

TEST(Matmul, OverlappingWindowsAreFactors) {
  const Floats d = random_floats(64, 3), w = random_floats(4 * 5, 2);
  Floats windows;
  for (std::size_t i = 0; i < 6; ++i)
    for (std::size_t j = 0; j < 4; ++j) windows.push_back(d[2 * i + j]);
  OneNode node("aten.mm");
  node.memory({6, 4}, d, {2, 1}).in({4, 5}, w).out({6, 5});
  node.run(testing::made_by(matmul));
  EXPECT_LT(difference(node.result(0), matrix_product(windows, w, 6, 5, 4)), 1e-5);
}

TEST(Convolution, BiasOfAnyStride) {
  const Floats x = random_floats(4 * 9, 1), w = random_floats(3 * 4, 2), d = random_floats(8, 3);
  for (const std::int64_t step : {0, 1, 2}) {
    std::vector<double> want;
    for (std::size_t o = 0; o < 3; ++o)
      for (std::size_t p = 0; p < 9; ++p) {
        double sum = d[o * static_cast<std::size_t>(step)];
        for (std::size_t c = 0; c < 4; ++c) sum += static_cast<double>(x[c * 9 + p]) * w[o * 4 + c];
        want.push_back(sum);
      }
    OneNode node("aten.convolution");
    node.in({1, 4, 3, 3}, x).in({3, 4, 1, 1}, w).memory({3}, d, {step});
    node.ints("stride", {1, 1}).ints("padding", {0, 0}).ints("dilation", {1, 1});
    node.flag("transposed", false).number("groups", 1).out({1, 3, 3, 3});
    node.run(testing::made_by(convolution));
    EXPECT_LT(difference(node.result(0), want), 1e-5) << "step " << step;
  }
}

TEST(InstructionSet, OfTheVariable) {
  const char* const wanted = std::getenv("BACKPLANE_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') {
    EXPECT_LE(instruction_set(), best_instruction_set());
    return;
  }
  const std::string name = wanted;
  EXPECT_EQ(instruction_set(), name == "sse41"  ? InstructionSet::kSse41
                               : name == "avx2" ? InstructionSet::kAvx2
                                                : InstructionSet::kAvx512);
  EXPECT_EQ(std::string(vector_table().name), name == "sse41" ? "baseline" : name);
}

}  // namespace
}  // namespace backplane::onednn
