// The vector functions of every instruction set that this processor has, against double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/simd/vector_table.h"

namespace backplane::onednn {
namespace {

using Exact = std::function<double(double)>;

struct Bound {
  const char* name;
  Opcode op;
  Exact exact;
  double low, high;
  double relative, absolute;  // either holds
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double gelu(double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }

const Bound kBounds[] = {
    {"exp", Opcode::kExp, [](double x) { return std::exp(x); }, -104, 88.7, 3e-7, 1e-44},
    {"expm1", Opcode::kExpm1, [](double x) { return std::expm1(x); }, -30, 80, 1e-6, 1e-9},
    {"log", Opcode::kLog, [](double x) { return std::log(x); }, 1e-38, 1e30, 3e-7, 1e-7},
    {"log near one", Opcode::kLog, [](double x) { return std::log(x); }, 0.5, 2, 3e-7, 1e-7},
    {"log1p", Opcode::kLog1p, [](double x) { return std::log1p(x); }, -0.99, 100, 1e-6, 1e-7},
    {"tanh", Opcode::kTanh, [](double x) { return std::tanh(x); }, -12, 12, 4e-7, 1e-9},
    {"erf", Opcode::kErf, [](double x) { return std::erf(x); }, -5, 5, 1e-6, 2e-7},
    {"sigmoid", Opcode::kSigmoid, sigmoid, -80, 80, 1e-6, 1e-9},
    {"silu", Opcode::kSilu, [](double x) { return x * sigmoid(x); }, -80, 80, 1e-6, 1e-9},
    {"gelu", Opcode::kGelu, gelu, -6, 6, 1e-6, 1e-6},
    {"erfc", Opcode::kErfc, [](double x) { return std::erfc(x); }, -5, 9, 1e-6, 1e-38},
    {"exp2", Opcode::kExp2, [](double x) { return std::exp2(x); }, -120, 120, 1e-6, 1e-38},
    {"log2", Opcode::kLog2, [](double x) { return std::log2(x); }, 1e-38, 1e30, 1e-6, 1e-7},
    {"log10", Opcode::kLog10, [](double x) { return std::log10(x); }, 1e-38, 1e30, 1e-6, 1e-7},
    {"tan", Opcode::kTan, [](double x) { return std::tan(x); }, -100, 100, 1e-6, 1e-9},
    {"tan of much", Opcode::kTan, [](double x) { return std::tan(x); }, -1e7, 1e7, 1e-6, 1e-9},
    {"asin", Opcode::kAsin, [](double x) { return std::asin(x); }, -1, 1, 1e-6, 1e-9},
    {"acos", Opcode::kAcos, [](double x) { return std::acos(x); }, -1, 1, 1e-6, 1e-7},
    {"atan", Opcode::kAtan, [](double x) { return std::atan(x); }, -30, 30, 1e-6, 1e-9},
    {"sinh", Opcode::kSinh, [](double x) { return std::sinh(x); }, -80, 80, 1e-6, 1e-9},
    {"cosh", Opcode::kCosh, [](double x) { return std::cosh(x); }, -80, 80, 1e-6, 1e-9},
    {"asinh", Opcode::kAsinh, [](double x) { return std::asinh(x); }, -1e6, 1e6, 1e-6, 1e-9},
    {"acosh", Opcode::kAcosh, [](double x) { return std::acosh(x); }, 1, 1e6, 1e-6, 1e-7},
    {"atanh", Opcode::kAtanh, [](double x) { return std::atanh(x); }, -1, 1, 1e-6, 1e-9},
    {"sin", Opcode::kSin, [](double x) { return std::sin(x); }, -100, 100, 1e-6, 5e-7},
    {"cos", Opcode::kCos, [](double x) { return std::cos(x); }, -100, 100, 1e-6, 5e-7},
    {"sqrt", Opcode::kSqrt, [](double x) { return std::sqrt(x); }, 0, 1e30, 1e-7, 0},
    {"rsqrt", Opcode::kRsqrt, [](double x) { return 1 / std::sqrt(x); }, 1e-30, 1e30, 2e-7, 0},
    {"floor", Opcode::kFloor, [](double x) { return std::floor(x); }, -1e7, 1e7, 0, 0},
    {"ceil", Opcode::kCeil, [](double x) { return std::ceil(x); }, -1e7, 1e7, 0, 0},
    {"round", Opcode::kRound, [](double x) { return std::nearbyint(x); }, -1e7, 1e7, 0, 0},
};

// What blocks of T are computed by on a processor that has this table's instructions.
template <class T>
BlockFunction function_of(const VectorTable& table, Opcode op) {
  BlockFunction found = nullptr;
  if constexpr (std::is_same_v<T, float>) {
    found = table.find(op);
    if (found == nullptr) found = table.find_in_library(op);
  } else {
    found = table.find_doubles_in_library(op);
  }
  return found != nullptr
             ? found
             : detail::scalar_function(op, std::is_same_v<T, float> ? Domain::kF32 : Domain::kF64);
}

template <class T>
std::vector<T> run(const VectorTable& table, Opcode op, const std::vector<T>& in,
                   const std::vector<T>& second = {}) {
  std::vector<T> out(in.size());
  const BlockFunction function = function_of<T>(table, op);
  EXPECT_NE(function, nullptr);
  function({out.data(),
            nullptr,
            {in.data(), second.data()},
            {1, 1},
            static_cast<std::int64_t>(in.size())});
  return out;
}

TEST(VectorMath, ErrorBounds) {
  std::mt19937 generator(1);
  for (std::size_t t = 0; const VectorTable* table = runnable_table(t); ++t)
    for (const Bound& b : kBounds) {
      std::uniform_real_distribution<double> values(b.low, b.high);
      std::vector<float> in(16 * 512);
      for (float& v : in) v = static_cast<float>(values(generator));
      if (b.low > 0 && b.high > 1e6)  // over the exponents, too
        for (std::size_t i = 0; i < in.size(); i += 2)
          in[i] = static_cast<float>(std::exp(
              std::log(b.low) + (std::log(b.high) - std::log(b.low)) * static_cast<double>(i) /
                                    static_cast<double>(in.size())));
      const std::vector<float> out = run(*table, b.op, in);
      for (std::size_t i = 0; i < in.size(); ++i) {
        const double want = b.exact(double{in[i]}), error = std::abs(double{out[i]} - want);
        ASSERT_TRUE(error <= b.absolute || error <= b.relative * std::abs(want))
            << table->name << " " << b.name << "(" << in[i] << ") = " << out[i] << ", not " << want;
      }
    }
}

// erfinv has no counterpart in the standard library: its inverse is looked at.
TEST(VectorMath, InverseErrorFunction) {
  std::mt19937 generator(3);
  std::uniform_real_distribution<float> values(-1, 1);
  std::vector<float> in(16 * 512);
  for (float& v : in) v = values(generator);
  for (std::size_t t = 0; const VectorTable* table = runnable_table(t); ++t) {
    const std::vector<float> out = run(*table, Opcode::kErfinv, in);
    for (std::size_t i = 0; i < in.size(); ++i) {
      const double y = out[i], slope = 2 / std::sqrt(M_PI) * std::exp(-y * y);
      const double error = (std::erf(y) - double{in[i]}) / slope;
      ASSERT_LE(std::abs(error), 8e-7 * std::abs(y) + 1e-9) << table->name << " " << in[i];
    }
  }
}

TEST(VectorMath, ErrorBoundsOfDoubles) {
  std::mt19937 generator(4);
  for (std::size_t t = 0; const VectorTable* table = runnable_table(t); ++t)
    for (const Bound& b : kBounds) {
      std::uniform_real_distribution<double> values(b.low, b.high);
      std::vector<double> in(16 * 64);
      for (double& v : in) v = values(generator);
      const std::vector<double> out = run(*table, b.op, in);
      for (std::size_t i = 0; i < in.size(); ++i) {
        const double want = b.exact(in[i]);
        ASSERT_LE(std::abs(out[i] - want), 1e-14 * std::abs(want) + 1e-15)
            << table->name << " " << b.name << "(" << in[i] << ") = " << out[i];
      }
    }
}

// Where a plain loop and a vector function are, they agree on what is no usual number.
template <class T>
void expect_special_values_as_plain_loops() {
  using Limits = std::numeric_limits<T>;
  const T values[] = {0,
                      1,
                      -1,
                      T(0.5),
                      T(-0.5),
                      2,
                      -2,
                      3,
                      T(1e30),
                      T(-1e30),
                      T(2.5),
                      T(-2.5),
                      17,
                      T(1e-30),
                      T(-17),
                      T(100),
                      Limits::infinity(),
                      Limits::quiet_NaN(),
                      Limits::denorm_min(),
                      Limits::max(),
                      Limits::min()};
  std::vector<T> a, b;
  for (const T x : values)
    for (const T y : values)
      for (const T sx : {T{1}, T{-1}})
        for (const T sy : {T{1}, T{-1}}) {
          a.push_back(std::copysign(x, sx));
          b.push_back(std::copysign(y, sy));
        }
  while (a.size() % 16 != 0) {
    a.push_back(0);
    b.push_back(0);
  }
  const Domain domain = std::is_same_v<T, float> ? Domain::kF32 : Domain::kF64;
#define BP_NAME(name) #name,
  const char* const names[] = {BP_UNARY_OPCODES(BP_NAME) BP_BINARY_OPCODES(BP_NAME)};
#undef BP_NAME
  for (std::size_t t = 0; const VectorTable* table = runnable_table(t); ++t)
    for (int i = 0; i <= static_cast<int>(Opcode::kHeaviside); ++i) {
      const auto op = static_cast<Opcode>(i);
      const BlockFunction plain = detail::scalar_function(op, domain);
      if (plain == nullptr) continue;
      const std::vector<T> found = run(*table, op, a, b);
      std::vector<T> want(a.size());
      plain({want.data(),
             nullptr,
             {a.data(), b.data()},
             {1, 1},
             static_cast<std::int64_t>(a.size())});
      // What is left of a difference of numbers near one.
      const bool cancels = std::string_view(names[i]).starts_with("Gelu");
      const T absolute = cancels ? T(1e-6) : T(1e-37), relative = cancels ? T(2e-5) : T(4e-6);
      for (std::size_t k = 0; k < a.size(); ++k) {
        const T x = found[k], y = want[k];
        const bool is_near = std::abs(x - y) <= relative * std::abs(y) + absolute;
        const bool same = (x == y && std::signbit(x) == std::signbit(y)) || (x != x && y != y) ||
                          (is_near && (cancels || x != 0 || y != 0));
        EXPECT_TRUE(same) << table->name << " " << names[i] << "(" << a[k] << ", " << b[k]
                          << ") = " << x << ", not " << y;
      }
    }
}
TEST(VectorMath, SpecialFloatsAsPlainLoops) { expect_special_values_as_plain_loops<float>(); }
TEST(VectorMath, SpecialDoublesAsPlainLoops) { expect_special_values_as_plain_loops<double>(); }

TEST(VectorMath, SpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> in(16, 0);
  const float values[] = {infinity, -infinity, nan, 0, -0.0F, 1e30F, -1e30F, 1e-40F};
  std::memcpy(in.data(), values, sizeof values);
  for (std::size_t t = 0; const VectorTable* table = runnable_table(t); ++t) {
    const auto exp = run(*table, Opcode::kExp, in), log = run(*table, Opcode::kLog, in),
               tanh = run(*table, Opcode::kTanh, in), relu = run(*table, Opcode::kRelu, in);
    EXPECT_EQ(exp[0], infinity);
    EXPECT_EQ(exp[1], 0);
    EXPECT_EQ(exp[3], 1);
    EXPECT_EQ(exp[5], infinity);
    EXPECT_EQ(exp[6], 0);
    EXPECT_EQ(log[0], infinity);
    EXPECT_TRUE(std::isnan(log[1]));
    EXPECT_EQ(log[3], -infinity);
    EXPECT_NEAR(log[7], std::log(1e-40), 1e-4);
    EXPECT_EQ(tanh[0], 1);
    EXPECT_EQ(tanh[1], -1);
    for (const auto& out : {exp, log, tanh, relu}) EXPECT_TRUE(std::isnan(out[2])) << table->name;
  }
}

TEST(VectorMath, Bfloat16RoundsToEven) {
  std::mt19937 generator(2);
  std::vector<float> in(16 * 64);
  for (float& v : in) {
    const auto bits = static_cast<std::uint32_t>(generator()) & 0xbfffffffU;
    std::memcpy(&v, &bits, sizeof v);
  }
  for (std::size_t t = 0; const VectorTable* table = runnable_table(t); ++t)
    for (const std::int64_t n : {std::int64_t{1024}, std::int64_t{37}}) {
      std::vector<std::uint16_t> out(in.size());
      std::vector<float> back(in.size());
      table->store_bf16(out.data(), 1, in.data(), n);
      table->load_bf16(back.data(), out.data(), 1, n);
      for (std::int64_t i = 0; i < n; ++i) {
        const float v = in[static_cast<std::size_t>(i)];
        EXPECT_EQ(out[static_cast<std::size_t>(i)], to_bfloat16(v).bits);
        EXPECT_EQ(back[static_cast<std::size_t>(i)], to_float(to_bfloat16(v)));
      }
    }
}

template <class T>
void expect_all_tile_shapes(void (*VectorTable::*gemm)(const GemmArgs<T>&)) {
  for (std::size_t t = 0; const VectorTable* table = runnable_table(t); ++t)
    for (std::int64_t m = 1; m <= 13; ++m)
      for (const std::int64_t n : {1, 16, 17, 63, 64, 100})
        for (const std::int64_t k : {1, 5, 32}) {
          const std::int64_t width = (n + kLanes - 1) / kLanes * kLanes;
          std::vector<T> a(static_cast<std::size_t>(m * k)), b(static_cast<std::size_t>(k * width)),
              c(static_cast<std::size_t>(m * width), 1);
          for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<T>(i % 7) - 3;
          for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<T>(i % 5) - 2;
          (table->*gemm)({c.data(), width, a.data(), 1, m, b.data(), width, m, n, k, true});
          for (std::int64_t i = 0; i < m; ++i)
            for (std::int64_t j = 0; j < n; ++j) {
              T sum = 1;
              for (std::int64_t p = 0; p < k; ++p)
                sum += a[static_cast<std::size_t>(p * m + i)] *
                       b[static_cast<std::size_t>(p * width + j)];
              ASSERT_EQ(c[static_cast<std::size_t>(i * width + j)], sum) << table->name;
            }
        }
}
TEST(VectorGemm, AllTileShapesOfFloats) { expect_all_tile_shapes(&VectorTable::gemm); }
TEST(VectorGemm, AllTileShapesOfDoubles) { expect_all_tile_shapes(&VectorTable::gemm_f64); }
TEST(VectorGemm, AllTileShapesOfIntegers) { expect_all_tile_shapes(&VectorTable::gemm_i64); }

}  // namespace
}  // namespace backplane::onednn
