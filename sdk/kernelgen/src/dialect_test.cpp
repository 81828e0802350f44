// Kernels in CUDA C, run by the host's compiler with a thread for each of a block's, and the same
// kernels in C: what a dialect says must not change what is computed.
#include <gtest/gtest.h>
#include <backplane/kernelgen/kernel.hpp>

#include <cmath>
#include <tuple>
#include <utility>

#include "c_program.hpp"
#include "cuda_program.hpp"

namespace backplane::kernelgen {
namespace {

Schedule gpu_schedule() {
  Schedule schedule;
  schedule.gpu = true;
  schedule.group_size = 64;
  return schedule;
}

std::vector<double> run_cuda(const Kernel& kernel, const std::string& arrays,
                             const std::string& arguments, const std::string& print_results) {
  const Printed p = print(kernel, Dialect::kCuda, gpu_schedule());
  const std::string out = run_program("c++ -std=c++20 -O1 -pthread -ffp-contract=off", "k.cpp",
                                      kDevice + print_library(Dialect::kCuda, 1) + p.text + arrays +
                                          "int main() {\n  launch(" + std::to_string(p.items) +
                                          ", " + std::to_string(p.group) + ", [] { " + p.entry +
                                          "(" + arguments + "); });\n" + print_results + "}\n");
  EXPECT_EQ(out.find("error"), std::string::npos) << out;
  return numbers(out);
}

TEST(CudaDialect, PointsOfShortTypesAndOwnFunctions) {
  Kernel k;
  k.outer_count = 1;
  k.expressions = Expressions({100});
  Expressions& e = k.expressions;
  const Expr x = e.load(0, Storage::kF16, e.axis(0));
  const Expr y =
      e.add(e.unary(Op::kTanh, x), e.cast(e.load(1, Storage::kI8, e.axis(0)), Type::kF32));
  k.tensors = {Storage::kF16, Storage::kI8, Storage::kBF16};
  k.stores = {{2, Storage::kBF16, e.axis(0), y}};
  const auto out =
      run_cuda(k,
               "static bp_half a[100]; static signed char b[100]; static ushort c[100];\n"
               "static const bool filled = [] { for (int i = 0; i < 100; ++i) { a[i] = (bp_half)(i "
               "* 0.125f); "
               "b[i] = (signed char)(i % 3); } return true; }();\n",
               "(uchar*)a, 0, (uchar*)b, 0, (uchar*)c, 0",
               "  for (int i = 0; i < 100; i += 33) printf(\"%g \", bp_from_bf16_1(c[i]));\n");
  ASSERT_EQ(out.size(), 4U);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double n = static_cast<double>(i) * 33, exact = std::tanh(n * 0.125) + std::fmod(n, 3);
    EXPECT_NEAR(out[i], exact, 0.01) << i;
  }
}

TEST(CudaDialect, NarrowedValuesAreWhatTheTypeHolds) {
  Kernel k;
  k.outer_count = 1;
  k.expressions = Expressions({3});
  Expressions& e = k.expressions;
  const Expr x = e.load(0, Storage::kF64, e.axis(0));
  k.tensors = {Storage::kF64, Storage::kF32, Storage::kF32, Storage::kI32};
  k.stores = {{1, Storage::kF32, e.axis(0), e.narrow(x, Storage::kF16)},
              {2, Storage::kF32, e.axis(0), e.narrow(x, Storage::kBF16)},
              {3, Storage::kI32, e.axis(0), e.unary(Op::kSignbit, x)}};
  const auto out = run_cuda(
      k,
      "static double a[] = {2049, 1.00390625, -0.0}; static float b[3], c[3]; static int d[3];\n",
      "(uchar*)a, 0, (uchar*)b, 0, (uchar*)c, 0, (uchar*)d, 0",
      "  for (int i = 0; i < 3; ++i) printf(\"%.9g %.9g %d \", b[i], c[i], d[i]);\n");
  EXPECT_EQ(out, (std::vector<double>{2048, 2048, 0, 1.00390625, 1, 0, 0, 0, 1}));
}

// Rows are shared by a block: partial sums meet in its memory.
TEST(CudaDialect, RowsAreSharedByABlock) {
  Kernel k;
  k.outer_count = 1;
  k.expressions = Expressions({3, 200});
  Expressions& e = k.expressions;
  const Expr at = e.add(e.mul(e.axis(0), e.index(200)), e.axis(1));
  const Expr x = e.load(0, Storage::kF32, at);
  const Expr power = e.unary(Op::kExp, e.sub(x, e.reduce(Reduction::kMax, x)));
  k.tensors = {Storage::kF32, Storage::kF32, Storage::kF32};
  k.stores = {{1, Storage::kF32, at, e.div(power, e.reduce(Reduction::kSum, power))},
              {2, Storage::kF32, e.axis(0), e.reduce(Reduction::kSum, x)}};
  ASSERT_NE(print(k, Dialect::kCuda, gpu_schedule()).text.find("BP_BARRIER"), std::string::npos);
  const auto out = run_cuda(
      k,
      "static float a[600], c[600], d[3];\n"
      "static const bool filled = [] { for (int i = 0; i < 600; ++i) a[i] = (i % 7) * 0.25f; "
      "return true; }();\n",
      "(uchar*)a, 0, (uchar*)c, 0, (uchar*)d, 0",
      "  for (int r = 0; r < 3; ++r) { double s = 0; for (int i = 0; i < 200; ++i) s += c[r * 200 "
      "+ "
      "i]; printf(\"%.6f %.6f \", s, d[r]); }\n");
  ASSERT_EQ(out.size(), 6U);
  for (int r = 0; r < 3; ++r) {
    double sum = 0;
    for (int i = 0; i < 200; ++i) sum += (r * 200 + i) % 7 * 0.25;
    EXPECT_NEAR(out[static_cast<std::size_t>(r) * 2], 1, 1e-5);
    EXPECT_NEAR(out[static_cast<std::size_t>(r) * 2 + 1], sum, 1e-3);
  }
}

Printed print_sums(std::int64_t points, std::int64_t row, bool along_rows) {
  Kernel k;
  k.outer_count = 1;
  k.expressions = Expressions({points, row});
  Expressions& e = k.expressions;
  const Expr at = along_rows ? e.add(e.mul(e.axis(0), e.index(row)), e.axis(1))
                             : e.add(e.mul(e.axis(1), e.index(points)), e.axis(0));
  k.tensors = {Storage::kF32, Storage::kF32};
  k.stores = {
      {1, Storage::kF32, e.axis(0), e.reduce(Reduction::kSum, e.load(0, Storage::kF32, at))}};
  Schedule schedule = gpu_schedule();
  schedule.group_size = 256;
  return print(k, Dialect::kCuda, schedule);
}

// However many rows there are: what a group reads side by side one work-item would read with gaps.
// Short rows take a warp or less, and registers alone.
TEST(GpuSchedule, GroupsShareRowsThatLieInMemory) {
  for (const std::int64_t points : {2100, 70000}) {
    for (const auto& [row, items] : {std::pair(64, 16), {300, 32}, {512, 32}, {4096, 256}}) {
      const Printed shared = print_sums(points, row, true);
      EXPECT_EQ(shared.text.find("BP_BARRIER") != std::string::npos, items > 32) << row;
      EXPECT_NE(shared.text.find("BP_SHUFFLE"), std::string::npos) << points << " " << row;
      const std::uint64_t rows = shared.group / static_cast<std::uint64_t>(items);
      EXPECT_EQ(shared.items,
                (static_cast<std::uint64_t>(points) + rows - 1) / rows * shared.group);
    }
    EXPECT_EQ(print_sums(points, 8, true).text.find("BP_LOCAL"), std::string::npos);
  }
  // Columns that lie side by side.
  EXPECT_NE(print_sums(70000, 512, false).text.find("BP_BARRIER"), std::string::npos);
  EXPECT_EQ(print_sums(70000, 8, false).text.find("BP_BARRIER"), std::string::npos);
}

// Sixteen bytes at a time, where rows are whole chunks.
TEST(GpuSchedule, PointsAreComputedInChunks) {
  for (const auto& [length, storage, chunk] :
       {std::tuple(64, Storage::kF32, 4), {64, Storage::kBF16, 8}, {66, Storage::kBF16, 1}}) {
    Kernel k;
    k.outer_count = 1;
    k.expressions = Expressions({length});
    Expressions& e = k.expressions;
    k.tensors = {storage, storage};
    k.stores = {{1, storage, e.axis(0), e.unary(Op::kNeg, e.load(0, storage, e.axis(0)))}};
    const std::string text = print(k, Dialect::kCuda, gpu_schedule()).text;
    EXPECT_EQ(text.find("uint4") != std::string::npos, chunk > 1) << text;
    EXPECT_NE(text.find(">= " + std::to_string(length / chunk) + ") return"), std::string::npos)
        << text;
  }
}

TEST(Dialects, TextsNameNothingOfALanguage) {
  Kernel k;
  k.outer_count = 1;
  k.expressions = Expressions({8, 1024});
  Expressions& e = k.expressions;
  const Expr at = e.add(e.mul(e.axis(0), e.index(1024)), e.axis(1));
  k.tensors = {Storage::kF32, Storage::kF32};
  k.stores = {
      {1, Storage::kF32, e.axis(0), e.reduce(Reduction::kSum, e.load(0, Storage::kF32, at))}};
  for (const Dialect dialect : {Dialect::kOpenCL, Dialect::kCuda, Dialect::kC11}) {
    for (Schedule schedule : {Schedule(), gpu_schedule()}) {
      if (dialect == Dialect::kC11) schedule.gpu = false;
      const std::string text = print(k, dialect, schedule).text;
      for (const char* word : {"__global", "__local", "get_", "barrier(", "threadIdx", "blockIdx"})
        EXPECT_EQ(text.find(word), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace backplane::kernelgen
