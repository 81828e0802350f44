#include "sdk/conformance/src/elements.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace backplane::conformance {
namespace {

using ir::DType;

TEST(Elements, RandomNumbersReadBack) {
  for (int i = 0; i < ir::kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    std::vector<std::uint8_t> memory(static_cast<std::size_t>(ir::dtype_bytes(dtype)) * 64);
    std::mt19937 generator(3);
    fill_random(dtype, memory, generator);
    double largest = 0;
    for (std::size_t at = 0; at < memory.size();
         at += static_cast<std::size_t>(ir::dtype_bytes(dtype))) {
      const Number number = read_number(dtype, memory.data() + at);
      EXPECT_EQ(number.real * 8, std::round(number.real * 8)) << ir::dtype_name(dtype);
      largest = std::max(largest, std::fabs(number.real));
    }
    EXPECT_GE(largest, 0.5) << ir::dtype_name(dtype);
    EXPECT_LE(largest, 3) << ir::dtype_name(dtype);
  }
}

TEST(Elements, DenseFollowsStrides) {
  const float data[] = {0, 1, 2, 3, 4, 5};
  const std::int64_t dims[] = {3, 2}, strides[] = {1, 3};
  const auto bytes =
      make_dense(DType::kFloat32, reinterpret_cast<const std::uint8_t*>(data), dims, strides);
  float dense[6];
  ASSERT_EQ(bytes.size(), sizeof dense);
  std::memcpy(dense, bytes.data(), sizeof dense);
  EXPECT_EQ(dense[1], 3);
  EXPECT_EQ(dense[2], 1);
  EXPECT_EQ(dense[5], 5);
}

TEST(Elements, Comparison) {
  const auto differ = [](float a, float b) {
    std::uint8_t x[4], y[4];
    std::memcpy(x, &a, 4);
    std::memcpy(y, &b, 4);
    return compare(DType::kFloat32, x, y);
  };
  EXPECT_TRUE(differ(1, 1).within);
  EXPECT_TRUE(differ(1000, 1000.05f).within);
  EXPECT_FALSE(differ(1, 1.01f).within);
  EXPECT_NEAR(differ(1, 1.01f).relative, 0.0099, 1e-4);
  EXPECT_TRUE(differ(NAN, NAN).within);
  EXPECT_FALSE(differ(NAN, 1).within);
  EXPECT_TRUE(differ(INFINITY, INFINITY).within);
  EXPECT_FALSE(differ(INFINITY, 1).within);
}

TEST(Elements, WritesWhatItReads) {
  for (int i = 0; i < ir::kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    for (const double value : {0.0, 1.0, 3.0, 100.0}) {
      std::uint8_t element[16] = {};
      write_number(dtype, element, {value, ir::is_complex(dtype) ? value : 0});
      const double want = dtype == DType::kBool ? static_cast<double>(value != 0) : value;
      EXPECT_EQ(read_number(dtype, element).real, want) << ir::dtype_name(dtype);
    }
  }
  std::uint8_t half[2];
  write_number(DType::kBFloat16, half, {1.00390625, 0});  // halfway: to even
  EXPECT_EQ(read_number(DType::kBFloat16, half).real, 1);
  write_number(DType::kFloat16, half, {1e6, 0});
  EXPECT_TRUE(std::isinf(read_number(DType::kFloat16, half).real));
}

}  // namespace
}  // namespace backplane::conformance
