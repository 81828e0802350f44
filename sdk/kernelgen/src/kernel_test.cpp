// Kernels printed as C11, compiled by the host's compiler and run as programs of their own.
#include <gtest/gtest.h>
#include <backplane/kernelgen/kernel.hpp>

#include <array>
#include <limits>

#include "c_program.hpp"

namespace backplane::kernelgen {
namespace {

// Calls the kernel for each of its items; `main_body` declares the tensors and prints.
std::string program(const Printed& k, const std::string& arrays, const std::string& arguments,
                    const std::string& print) {
  return print_library(Dialect::kC11, 1) + k.text + "#include <stdio.h>\n" + arrays +
         "int main(void) {\n  for (size_t item[3] = {0}; item[0] < " + std::to_string(k.items) +
         "; ++item[0]) " + k.entry + "(item, " + arguments + ");\n" + print + "  return 0;\n}\n";
}
Kernel two_axes(std::int64_t rows, std::int64_t columns, std::size_t outer) {
  Kernel k;
  k.outer_count = outer;
  k.expressions = Expressions({rows, columns});
  return k;
}

TEST(Kernel, PointwiseWithBroadcastAndOffset) {
  Kernel k = two_axes(2, 3, 2);
  Expressions& e = k.expressions;
  const Expr at = e.offset(std::array{e.axis(0), e.axis(1)}, std::array<std::int64_t, 2>{3, 1});
  const Expr a = e.load(0, Storage::kF32, at), b = e.load(1, Storage::kI32, e.axis(1));
  k.tensors = {Storage::kF32, Storage::kI32, Storage::kF32};
  k.stores = {{2, Storage::kF32, at, e.add(e.mul(a, e.constant(Type::kF32, 2)), b)}};
  const Printed p = print(k, Dialect::kC11, {});
  EXPECT_EQ(numbers(run_c(program(
                p, "float a[] = {9, 1, 2, 3, 4, 5, 6}; int b[] = {10, 20, 30}; float c[6];\n",
                "(uchar*)a, 4, (uchar*)b, 0, (uchar*)c, 0",
                "  for (int i = 0; i < 6; ++i) printf(\"%g \", c[i]);\n"))),
            (std::vector<double>{12, 24, 36, 18, 30, 42}));
}

// Of the least number by -1, which processors trap, and of any by zero.
TEST(Kernel, EveryQuotientOfWholeNumbersIsOne) {
  Kernel k;
  k.outer_count = 1;
  k.expressions = Expressions({4});
  Expressions& e = k.expressions;
  const Expr at = e.axis(0), a = e.load(0, Storage::kI64, at), b = e.load(1, Storage::kI64, at);
  const Expr minus = e.integer(Type::kI64, -1), least = e.integer(Type::kI64, INT64_MIN);
  k.tensors = std::vector<Storage>(4, Storage::kI64);
  k.stores = {{2, Storage::kI64, at, e.div(a, b)},
              {3, Storage::kI64, at, e.binary(Op::kMod, a, b)}};
  EXPECT_EQ(e.node(e.div(least, minus)).integer, INT64_MIN);
  EXPECT_EQ(e.node(e.binary(Op::kMod, a, minus)).integer, 0);
  EXPECT_EQ(
      run_c(program(print(k, Dialect::kC11, {}),
                    "long a[] = {-9223372036854775807L - 1, 7, -7, 7}; long b[] = {-1, -1, 2, 0};\n"
                    "long c[4], d[4];\n",
                    "(uchar*)a, 0, (uchar*)b, 0, (uchar*)c, 0, (uchar*)d, 0",
                    "  for (int i = 0; i < 3; ++i) printf(\"%ld %ld \", c[i], d[i]);\n"
                    "  printf(\"%ld\", c[3]);\n")),
      "-9223372036854775808 0 -7 0 -3 -1 0");
}

TEST(Kernel, SoftmaxOfRows) {
  Kernel k = two_axes(2, 3, 1);
  Expressions& e = k.expressions;
  const Expr at = e.offset(std::array{e.axis(0), e.axis(1)}, std::array<std::int64_t, 2>{3, 1});
  const Expr x = e.load(0, Storage::kF32, at);
  const Expr power = e.unary(Op::kExp, e.sub(x, e.reduce(Reduction::kMax, x)));
  k.tensors = {Storage::kF32, Storage::kF32};
  k.stores = {{1, Storage::kF32, at, e.div(power, e.reduce(Reduction::kSum, power))}};
  const auto y = numbers(run_c(program(
      print(k, Dialect::kC11, {}), "float a[] = {0, 0, 0, 1, 2, 1000}; float c[6];\n",
      "(uchar*)a, 0, (uchar*)c, 0", "  for (int i = 0; i < 6; ++i) printf(\"%.9g \", c[i]);\n")));
  ASSERT_EQ(y.size(), 6U);
  EXPECT_NEAR(y[1], 1.0 / 3, 1e-7);
  EXPECT_EQ(y[5], 1);
}

TEST(Kernel, HalvesAreRoundedWhenStored) {
  Kernel k;
  k.outer_count = 1;
  k.expressions = Expressions({4});
  Expressions& e = k.expressions;
  const Expr x = e.load(0, Storage::kF32, e.axis(0));
  k.tensors = {Storage::kF32, Storage::kBF16};
  k.stores = {{1, Storage::kBF16, e.axis(0), x}};
  // 1 + 2^-8 is a tie: to even. NaN stays NaN.
  EXPECT_EQ(run_c(program(print(k, Dialect::kC11, {}),
                          "float a[4]; unsigned short c[4];\n"
                          "__attribute__((constructor)) static void fill(void) { a[0] = 1; a[1] = "
                          "1.00390625f; a[2] = NAN; a[3] = -INFINITY; }\n",
                          "(uchar*)a, 0, (uchar*)c, 0",
                          "  for (int i = 0; i < 4; ++i) printf(\"%x \", c[i]);\n")),
            "3f80 3f80 7fc0 ff80 ");
}

// What a conversion gives, whatever it is stored as.
TEST(Kernel, NarrowedValuesAreWhatTheTypeHolds) {
  Kernel k;
  k.outer_count = 1;
  k.expressions = Expressions({5});
  Expressions& e = k.expressions;
  const Expr x = e.load(0, Storage::kF32, e.axis(0));
  k.tensors = {Storage::kF32, Storage::kF32, Storage::kF32, Storage::kF32};
  k.stores = {{1, Storage::kF32, e.axis(0), e.narrow(x, Storage::kF16)},
              {2, Storage::kF32, e.axis(0), e.narrow(x, Storage::kBF16)},
              {3, Storage::kF32, e.axis(0), e.cast(e.narrow(x, Storage::kI8), Type::kF32)}};
  EXPECT_EQ(
      run_c(program(print(k, Dialect::kC11, {}),
                    "float a[] = {2049, 70000, 0x1.8p-25, -65520, 1.00390625}, c[5], d[5], b[5];\n",
                    "(uchar*)a, 0, (uchar*)c, 0, (uchar*)d, 0, (uchar*)b, 0",
                    "  for (int i = 0; i < 5; ++i) printf(\"%a %a %g, \", c[i], d[i], b[i]);\n")),
      "0x1p+11 0x1p+11 1, inf 0x1.12p+16 112, 0x1p-24 0x1.8p-25 0, -inf -0x1p+16 16, "
      "0x1.01p+0 0x1p+0 1, ");
}

TEST(Kernel, SignsOfWhatIsNoNumber) {
  Kernel k;
  k.outer_count = 1;
  k.expressions = Expressions({4});
  Expressions& e = k.expressions;
  k.tensors = {Storage::kF32, Storage::kF64, Storage::kBool, Storage::kBool};
  for (std::size_t i = 0; i < 2; ++i)
    k.stores.push_back({i + 2, Storage::kBool, e.axis(0),
                        e.unary(Op::kSignbit, e.load(i, k.tensors[i], e.axis(0)))});
  EXPECT_EQ(run_c(program(print(k, Dialect::kC11, {}),
                          "float a[4]; double b[4]; uchar c[4], d[4];\n"
                          "__attribute__((constructor)) static void fill(void) { a[0] = NAN; a[1] "
                          "= -NAN; a[2] = -0.0f; a[3] = 1;\n"
                          "for (int i = 0; i < 4; ++i) b[i] = a[i]; }\n",
                          "(uchar*)a, 0, (uchar*)b, 0, (uchar*)c, 0, (uchar*)d, 0",
                          "  for (int i = 0; i < 4; ++i) printf(\"%d%d \", c[i], d[i]);\n")),
            "00 11 11 00 ");
}

TEST(Kernel, NothingToDo) {
  Kernel k = two_axes(0, 3, 2);
  EXPECT_EQ(print(k, Dialect::kC11, {}).items, 0U);
}

TEST(Kernel, NothingIsStoredAlongALoopOfNothing) {
  Kernel k;
  k.outer_count = 1;
  k.expressions = Expressions({1, 0});
  Expressions& e = k.expressions;
  k.tensors = {Storage::kF32, Storage::kF32};
  k.stores = {{1, Storage::kF32, e.index(0), e.load(0, Storage::kF32, e.axis(1)), Store::kAdd}};
  EXPECT_EQ(print(k, Dialect::kOpenCL, {}).text.find("t1["), std::string::npos);
}

// Three times one half: neither place nor value moves along the loop.
TEST(Kernel, WhatIsTheSameEverywhereIsAddedAtEachPoint) {
  Kernel k = two_axes(2, 3, 1);
  Expressions& e = k.expressions;
  k.tensors = {Storage::kF32, Storage::kF32};
  k.stores = {{1, Storage::kF32, e.axis(0), e.load(0, Storage::kF32, e.axis(0)), Store::kAdd}};
  EXPECT_EQ(run_c(program(print(k, Dialect::kC11, {}), "float a[2] = {0.5, 1}, c[2] = {1, 0};\n",
                          "(uchar*)a, 0, (uchar*)c, 0",
                          "  for (int i = 0; i < 2; ++i) printf(\"%g \", c[i]);\n")),
            "2.5 3 ");
}

// The tensor has no memory at all.
TEST(Kernel, RowsWithoutElementsReadNothing) {
  Kernel k = two_axes(2, 0, 1);
  Expressions& e = k.expressions;
  const Expr x = e.load(0, Storage::kF32, e.mul(e.axis(0), e.index(3)));  // the same along the row
  k.tensors = {Storage::kF32, Storage::kF32};
  k.stores = {{1, Storage::kF32, e.axis(0), e.reduce(Reduction::kSum, x)}};
  EXPECT_EQ(run_c(program(print(k, Dialect::kC11, {}), "float c[2] = {9, 9};\n",
                          "(uchar*)0, 0, (uchar*)c, 0",
                          "  for (int i = 0; i < 2; ++i) printf(\"%g \", c[i]);\n")),
            "0 0 ");
}

// In loops, and as statements one after the other.
TEST(Kernel, ShortRowsAreUnrolledUnlessTheirLengthMayChange) {
  Kernel k = two_axes(4, 64, 1);
  Expressions& e = k.expressions;
  const Expr at = e.offset(std::array{e.axis(0), e.axis(1)}, std::array<std::int64_t, 2>{64, 1});
  const Expr power = e.unary(Op::kExp, e.load(0, Storage::kF32, at));
  k.tensors = {Storage::kF32, Storage::kF32};
  k.stores = {{1, Storage::kF32, at, e.div(power, e.reduce(Reduction::kSum, power))}};
  Schedule schedule;
  const std::string text = print(k, Dialect::kOpenCL, schedule).text;
  EXPECT_EQ(text.find("for (; a1"), std::string::npos) << text;
  EXPECT_NE(text.find("_3 = "), std::string::npos) << text;  // the fourth vector's powers
  schedule.unroll = false;
  EXPECT_NE(print(k, Dialect::kOpenCL, schedule).text.find("for (; a1"), std::string::npos);
}

TEST(Kernel, PrintsTheSameTextEveryTime) {
  const auto text = [] {
    Kernel k = two_axes(64, 64, 1);
    Expressions& e = k.expressions;
    const Expr at = e.offset(std::array{e.axis(0), e.axis(1)}, std::array<std::int64_t, 2>{64, 1});
    k.tensors = {Storage::kF32, Storage::kF32};
    k.stores = {
        {1, Storage::kF32, e.axis(0), e.reduce(Reduction::kSum, e.load(0, Storage::kF32, at))}};
    return print(k, Dialect::kOpenCL, {}).text;
  };
  EXPECT_EQ(text(), text());
  EXPECT_NE(text().find("BP_LOAD_F32_16"), std::string::npos);  // along the row
}

// A vector is no number to cast: half of one is taken for a vector without signs.
TEST(Kernel, LanesOfWholeNumbersWrapAsVectors) {
  for (const Reduction how : {Reduction::kSum, Reduction::kProduct}) {
    Kernel k = two_axes(4, 64, 1);
    Expressions& e = k.expressions;
    const Expr at = e.offset(std::array{e.axis(0), e.axis(1)}, std::array<std::int64_t, 2>{64, 1});
    k.tensors = {Storage::kI32, Storage::kI32};
    k.stores = {{1, Storage::kI32, e.axis(0), e.reduce(how, e.load(0, Storage::kI32, at))}};
    const std::string text = print(k, Dialect::kOpenCL, {}).text;
    for (const char* half : {"8 = (as_", "as_uint8(q", "as_uint4(q", "as_uint2(q", "(uint)(q"})
      EXPECT_NE(text.find(half), std::string::npos) << half << text;
    EXPECT_EQ(text.find("(uint)(q2.lo"), std::string::npos) << text;
  }
}

TEST(Kernel, LargeResultsGoPastTheCaches) {
  Kernel k = two_axes(8, 1024, 2);
  Expressions& e = k.expressions;
  const Expr at = e.offset(std::array{e.axis(0), e.axis(1)}, std::array<std::int64_t, 2>{1024, 1});
  k.tensors = {Storage::kF32, Storage::kF32};
  k.stores = {{1, Storage::kF32, at, e.load(0, Storage::kF32, at)}};
  const std::int64_t bytes = 8 * 1024 * 4;
  const auto streams = [&](std::int64_t from, bool gpu) {
    Schedule schedule;
    schedule.stream_bytes = from;
    schedule.gpu = gpu;
    const std::string text = print(k, Dialect::kOpenCL, schedule).text;
    EXPECT_EQ(text.find("BP_STREAM_") == std::string::npos,
              text.find("BP_STREAMED") == std::string::npos);
    return text.find("BP_STREAM_F32_16(") != std::string::npos;
  };
  EXPECT_TRUE(streams(bytes, false));
  EXPECT_FALSE(streams(bytes + 1, false));
  EXPECT_FALSE(streams(0, false));
  EXPECT_FALSE(streams(bytes, true));
}

// Where a row is read more than once, and by vectors.
TEST(Kernel, TheLastPassOverARowAsksForTheNext) {
  const auto asks = [](bool passes, const Schedule& schedule) {
    Kernel k = two_axes(8, 1024, 1);
    Expressions& e = k.expressions;
    const Expr at =
        e.offset(std::array{e.axis(0), e.axis(1)}, std::array<std::int64_t, 2>{1024, 1});
    const Expr x = e.load(0, Storage::kF32, at), weight = e.load(1, Storage::kF32, e.axis(1));
    const Expr row = e.mul(x, weight);
    k.tensors = {Storage::kF32, Storage::kF32, Storage::kF32};
    k.stores = {{2, Storage::kF32, at, passes ? e.sub(row, e.reduce(Reduction::kSum, row)) : row}};
    return print(k, Dialect::kOpenCL, schedule).text;
  };
  const std::string text = asks(true, {});
  const std::size_t found = text.find("BP_PREFETCH(t0 + ");
  ASSERT_NE(found, std::string::npos) << text;
  EXPECT_NE(text.find(" + 1024);", found), std::string::npos) << text;
  EXPECT_EQ(text.find("BP_PREFETCH", found + 1), std::string::npos)
      << "of what is the same for all rows";
  EXPECT_EQ(asks(false, {}).find("BP_PREFETCH"), std::string::npos);
  Schedule gpu;
  gpu.gpu = true;
  EXPECT_EQ(asks(true, gpu).find("BP_PREFETCH"), std::string::npos);
}

TEST(Kernel, GpuScheduleSharesARow) {
  Kernel k = two_axes(8, 1024, 1);
  Expressions& e = k.expressions;
  const Expr at = e.offset(std::array{e.axis(0), e.axis(1)}, std::array<std::int64_t, 2>{1024, 1});
  k.tensors = {Storage::kF32, Storage::kF32};
  k.stores = {
      {1, Storage::kF32, e.axis(0), e.reduce(Reduction::kSum, e.load(0, Storage::kF32, at))}};
  Schedule gpu;
  gpu.gpu = true;
  const Printed p = print(k, Dialect::kOpenCL, gpu);
  EXPECT_EQ(p.items, 8 * p.group);
  EXPECT_NE(p.text.find("BP_LOCAL long"), std::string::npos);
}

TEST(Expressions, IndexArithmeticFolds) {
  Expressions e({4, 8});
  const Expr flat = e.add(e.mul(e.axis(0), e.index(8)), e.axis(1));
  EXPECT_EQ(e.bound(flat), 31);
  EXPECT_EQ(e.div(e.axis(1), e.index(8)), e.index(0));
  EXPECT_EQ(e.binary(Op::kMod, e.axis(1), e.index(8)), e.axis(1));
  EXPECT_EQ(e.inside(flat, 32), e.integer(Type::kBool, 1));
  std::int64_t stride = 0;
  EXPECT_TRUE(e.stride(flat, 0, stride));
  EXPECT_EQ(stride, 8);
  EXPECT_EQ(e.axis(1), e.axis(1));  // one node
}

TEST(Expressions, IndicesThatInt32DoesNotHoldAreWide) {
  Expressions e({4, 8});
  const std::int64_t far = std::int64_t{1} << 32;
  EXPECT_EQ(e.type(e.index(INT32_MAX)), Type::kI32);
  EXPECT_EQ(e.index(far), e.integer(Type::kI64, far));
  EXPECT_EQ(e.type(e.add(e.axis(0), e.index(-far))), Type::kI64);
  EXPECT_EQ(e.type(e.offset(std::array{e.binary(Op::kMod, e.axis(0), e.index(far))},
                            std::array<std::int64_t, 1>{3})),
            Type::kI32);
}

TEST(Expressions, ConstantsAreWhatTheirTypeHolds) {
  Expressions e;
  const Expr x = e.constant(Type::kF32, 0.1);
  EXPECT_EQ(e.cast(x, Type::kF64), e.constant(Type::kF64, double{0.1F}));
  const auto half = [&](double v) {
    return e.node(e.narrow(e.constant(Type::kF32, v), Storage::kF16)).real;
  };
  EXPECT_EQ(half(65519), 65504);
  EXPECT_EQ(half(-65520), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(half(0x1p-25), 0);  // a tie: to even
  EXPECT_EQ(half(0x1.8p-25), 0x1p-24);
  EXPECT_EQ(e.node(e.narrow(x, Storage::kBF16)).real, 0.10009765625);
  const Expr loaded = e.load(0, Storage::kBF16, e.index(0));
  EXPECT_EQ(e.narrow(loaded, Storage::kBF16), loaded);
  const Expr once = e.narrow(loaded, Storage::kF16);
  EXPECT_EQ(e.narrow(once, Storage::kF16), once);
}

}  // namespace
}  // namespace backplane::kernelgen
