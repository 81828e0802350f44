// Programs over spaces of many shapes against plain loops.
#include "kernels/rows/row_program.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace backplane::onednn {
namespace {

using Floats = std::vector<float>;

Floats ramp(std::int64_t n, float step) {
  Floats out(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::sin(static_cast<float>(i) * step);
  return out;
}

void run(RowProgram program, RowSpace space, const std::vector<const void*>& operands,
         const std::vector<void*>& results) {
  const RowExecutor executor(std::move(program), std::move(space));
  std::vector<std::byte> scratch(executor.scratch_bytes() + 64, std::byte{0xff});
  auto* aligned = reinterpret_cast<std::byte*>(
      (reinterpret_cast<std::uintptr_t>(scratch.data()) + 63) / 64 * 64);
  std::vector<std::byte*> in, out;
  for (const void* p : operands) in.push_back(static_cast<std::byte*>(const_cast<void*>(p)));
  for (void* p : results) out.push_back(static_cast<std::byte*>(p));
  executor.run(in.data(), out.data(), aligned);
}

// out = tanh(a * b + 2) with b broadcast over rows, for rows short and long.
TEST(RowProgram, PointwiseBroadcast) {
  for (const std::int64_t rows : {1, 3, 100})
    for (const std::int64_t inner : {1, 7, 16, 100, 256, 1000, 5000}) {
      const Floats a = ramp(rows * inner, 0.1F), b = ramp(inner, 0.3F);
      Floats out(a.size(), -7);
      RowProgram p;
      const Register x = p.load(0, Type::kF32, Domain::kF32, false),
                     y = p.load(1, Type::kF32, Domain::kF32, false);
      const Register sum =
          p.apply(Opcode::kAdd, p.apply(Opcode::kMul, x, y), p.constant(Domain::kF32, 2, 2));
      p.store(p.apply(Opcode::kTanh, sum), 0, Type::kF32);
      RowSpace s;
      s.rows = rows;
      s.inner = inner;
      s.operands = {{{}, inner, 1, {}}, {{}, 0, 1, {}}};
      s.results = {{{}, inner, 1, {}}};
      run(p, s, {a.data(), b.data()}, {out.data()});
      for (std::size_t i = 0; i < a.size(); ++i)
        ASSERT_NEAR(out[i], std::tanh(a[i] * b[i % b.size()] + 2), 1e-6);
    }
}

TEST(RowProgram, TransposedOperandAndTypes) {
  const std::int64_t rows = 33, columns = 50;
  const Floats a = ramp(rows * columns, 0.2F);  // [columns, rows] in memory
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(rows * columns));
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 == 0;
  std::vector<BFloat16> out(mask.size());
  RowProgram p;
  const Register x = p.load(0, Type::kF32, Domain::kF32, false),
                 m = p.load(1, Type::kBool, Domain::kF32, false);
  p.store(p.apply(Opcode::kWhere, m, x, p.constant(Domain::kF32, -1, -1)), 0, Type::kBF16);
  RowSpace s;
  s.rows = rows;
  s.inner = columns;
  s.operands = {{{}, 1, rows, {}}, {{}, columns, 1, {}}};
  s.results = {{{}, columns, 1, {}}};
  run(p, s, {a.data(), mask.data()}, {out.data()});
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c) {
      const auto i = static_cast<std::size_t>(r * columns + c);
      const float want = mask[i] ? a[static_cast<std::size_t>(c * rows + r)] : -1;
      EXPECT_EQ(out[i].bits, to_bfloat16(want).bits);
    }
}

TEST(RowProgram, SoftmaxAndMoments) {
  for (const std::int64_t n : {1, 2, 15, 16, 17, 64, 100, 1000}) {
    const std::int64_t rows = 5;
    const Floats a = ramp(rows * n, 0.7F);
    Floats soft(a.size()), mean(5), rstd(5), affine(a.size());
    RowProgram p;
    const Register x = p.load(0, Type::kF32, Domain::kF32, false);
    const auto [m, r] = p.moments(x, 1e-5);
    p.store(p.softmax(x), 0, Type::kF32);
    p.store(m, 1, Type::kF32);
    p.store(r, 2, Type::kF32);
    const Register two = p.constant(Domain::kF32, 2, 2);
    p.store(p.apply(Opcode::kAffine, x, m, r, two, two), 3, Type::kF32);
    RowSpace s;
    s.whole_rows = true;
    s.outer = {rows};
    s.inner = n;
    s.operands = {{{n}, 0, 1, {}}};
    s.results = {{{n}, 0, 1, {}}, {{1}, 0, 0, {}}, {{1}, 0, 0, {}}, {{n}, 0, 1, {}}};
    run(p, s, {a.data()}, {soft.data(), mean.data(), rstd.data(), affine.data()});
    for (std::int64_t i = 0; i < rows; ++i) {
      const float* line = a.data() + i * n;
      double sum = 0, squares = 0, powers = 0;
      for (std::int64_t k = 0; k < n; ++k)
        sum += double{line[k]}, powers += std::exp(double{line[k]});
      const double average = sum / static_cast<double>(n);
      for (std::int64_t k = 0; k < n; ++k) squares += (line[k] - average) * (line[k] - average);
      const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
      const auto at = static_cast<std::size_t>(i);
      EXPECT_NEAR(mean[at], average, 1e-6);
      EXPECT_NEAR(rstd[at] / scale, 1, 1e-5);
      for (std::int64_t k = 0; k < n; ++k) {
        const auto e = static_cast<std::size_t>(i * n + k);
        EXPECT_NEAR(soft[e], std::exp(double{line[k]}) / powers, 1e-6);
        EXPECT_NEAR(affine[e], (line[k] - average) * scale * 2 + 2, 1e-4);
      }
    }
  }
}

// What is equal to its mean differs from it by nothing: no rounding of the mean is left over.
TEST(RowProgram, TheMeanOfEqualValuesIsTheValue) {
  for (const std::int64_t n : {1, 3, 5, 17, 33, 100, 1000}) {
    const Floats a(static_cast<std::size_t>(n), 0.1F);
    Floats out(a.size(), 1);
    RowProgram p;
    const Register x = p.load(0, Type::kF32, Domain::kF32, false);
    const auto [m, r] = p.moments(x, 1e-5);
    p.store(p.apply(Opcode::kNormalize, x, m, r), 0, Type::kF32);
    RowSpace s;
    s.whole_rows = true;
    s.inner = n;
    s.operands = {{{}, 0, 1, {}}};
    s.results = {{{}, 0, 1, {}}};
    run(p, s, {a.data()}, {out.data()});
    for (const float v : out) EXPECT_EQ(v, 0) << n;
  }
}

TEST(RowProgram, IntegersAndConversions) {
  std::vector<std::int64_t> a(40);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<std::int64_t>(i) - 20;
  std::vector<std::uint8_t> out(a.size());
  Floats half(a.size());
  RowProgram p;
  const Register x = p.load(0, Type::kI64, Domain::kI64, false);
  p.store(p.apply(Opcode::kLt, x, p.constant(Domain::kI64, 3, 3)), 0, Type::kBool);
  const Register f = p.convert(x, Domain::kF32);
  p.store(p.apply(Opcode::kMul, f, p.constant(Domain::kF32, 0.5, 0)), 1, Type::kF32);
  RowSpace s;
  s.inner = 40;
  s.operands = {{{}, 0, 1, {}}};
  s.results = {{{}, 0, 1, {}}, {{}, 0, 1, {}}};
  run(p, s, {a.data()}, {out.data(), half.data()});
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(out[i], a[i] < 3 ? 1 : 0);
    EXPECT_EQ(half[i], static_cast<float>(a[i]) * 0.5F);
  }
}

// The sum of an empty row is zero, and is written.
TEST(RowProgram, EmptyRows) {
  Floats out(3, 9);
  RowProgram p;
  const Register x = p.load(0, Type::kF32, Domain::kF32, false);
  p.store(p.apply(Opcode::kRowSum, x), 0, Type::kF32);
  RowSpace s;
  s.whole_rows = true;
  s.outer = {3};
  s.inner = 0;
  s.operands = {{{0}, 0, 1, {}}};
  s.results = {{{1}, 0, 0, {}}};
  const float none = 0;
  run(p, s, {&none}, {out.data()});
  EXPECT_EQ(out, (Floats{0, 0, 0}));
}

}  // namespace
}  // namespace backplane::onednn
