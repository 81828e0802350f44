// Largest errors of the own functions against the C library's in double: all bfloat16 and all
// float16 inputs, and every 1,009th float32; with multiplications and additions fused where the
// host can (as OpenCL compilers do), and without.
#include <gtest/gtest.h>
#include <backplane/kernelgen/kernel.hpp>

#include <iostream>

#include "c_program.hpp"

namespace backplane::kernelgen {
namespace {

struct Function {
  const char *name, *reference;
  double ulp;              // bound, in units of float32's last place
  double floor = 0;        // smaller results have the last place of this
  double subnormal = 1.5;  // bound below the smallest normal number, in units of its last place
};
constexpr Function kFunctions[] = {
    {"exp", "exp(x)", 1.5},
    {"expm1", "expm1(x)", 2},
    {"log", "log(x)", 1.5},
    {"log1p", "log1p(x)", 2.5},
    {"tanh", "tanh(x)", 3},
    {"sigmoid", "1 / (1 + exp(-x))", 3.5, 0, 0x1p23},
    {"exp_normal", "exp(x)", 1.5, 0, 0x1p23},
    {"erf", "erf(x)", 1.5},
    {"normal_cdf", "0.5 * erfc(-x * 0.70710678118654752440)", 2, 0.5}};

// Prints, per function, the largest error in ULP of float32, and in steps of the half that the
// result is stored in (0 for float32). What only one side says is infinite or no number is 1e9.
constexpr const char* kCheck = R"(
static double error(float got, double want, double least, double subnormal) {
  if (want != want) return got != got ? 0 : 1e9;
  float w = (float)want;
  if (isinf(w)) return got == w ? 0 : 1e9;
  if (got != got || isinf(got)) return 1e9;
  if (!least && fabs(want) < 0x1p-126) return fabs(got - want) > subnormal * 0x1p-149 ? 1e9 : 0;
  int exponent;
  frexp(fmax(fabs(want), least), &exponent);
  return fabs((double)got - want) / ldexp(1.0, exponent - 24);
}
static int order16(uint16_t bits) { return bits & 0x8000 ? -(int)(bits & 0x7fff) : (int)bits; }
static uint16_t as_f16(float v) { _Float16 h = (_Float16)v; uint16_t b; memcpy(&b, &h, 2); return b; }
static double steps(float got, double want, double least, int kind) {
  if (kind == 0 || want != want || fabs(want) > 6e4 || fabs(want) < fmax(least, 0x1p-120)) return 0;
  if (kind == 1) return abs(order16(bp_to_bf16_1(got)) - order16(bp_to_bf16_1((float)want)));
  return abs(order16(as_f16(got)) - order16(as_f16((float)want)));
}
static float input(uint64_t i, int kind) {
  uint32_t u = kind == 1 ? (uint32_t)i << 16 : (uint32_t)i;
  float f;
  if (kind == 2) { uint16_t b = (uint16_t)i; _Float16 h; memcpy(&h, &b, 2); return (float)h; }
  memcpy(&f, &u, 4);
  return f;
}
)";

// kind 0: float32, 1: bfloat16, 2: float16.
std::string sweep(const Function& f, int kind) {
  const std::string k = std::to_string(kind), least = std::to_string(f.floor),
                    subnormal = std::to_string(f.subnormal);
  return std::string("  { double worst = 0, far = 0;\n    for (uint64_t i = 0; i < ") +
         (kind == 0 ? "(1ULL << 32); i += 1009" : "65536; ++i") + ") {\n      float v = input(i, " +
         k + "); double x = v, want = " + f.reference + "; float got = bp_" + f.name +
         "_1(v);\n      worst = fmax(worst, error(got, want, " + least + ", " + subnormal +
         "));\n      far = fmax(far, steps(got, want, " + least + ", " + k +
         "));\n    }\n    printf(\"%g %g \", worst, far); }\n";
}

class MathTest : public ::testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(MathTest, ErrorsStayWithinTheirBounds) {
  std::string body =
      "#include <stdio.h>\n#include <stdlib.h>\n" + std::string(kCheck) + "int main(void) {\n";
  const auto [kind, flags] = GetParam();
  for (const Function& f : kFunctions) body += sweep(f, kind);
  const std::string out = run_c(print_library(Dialect::kC11, 1) + body + "  return 0;\n}\n", flags);
  const auto found = numbers(out);
  ASSERT_EQ(found.size(), 2 * std::size(kFunctions)) << out;
  for (std::size_t i = 0; i < std::size(kFunctions); ++i) {
    EXPECT_LE(found[2 * i], kFunctions[i].ulp) << kFunctions[i].name;
    EXPECT_LE(found[2 * i + 1], 1) << kFunctions[i].name << " stored in a half";
    std::cout << kFunctions[i].name << " " << found[2 * i] << " ULP, " << found[2 * i + 1]
              << " steps\n";
  }
}

constexpr const char *kApart = "-ffp-contract=off",
                     *kFused = "-O2 -march=native -ffp-contract=fast";
std::string name_of(const ::testing::TestParamInfo<std::tuple<int, const char*>>& info) {
  const char* const names[] = {"Float32", "BFloat16", "Float16"};
  const auto [kind, flags] = info.param;
  return names[kind] + std::string(flags == kApart ? "" : "Fused");
}
INSTANTIATE_TEST_SUITE_P(Inputs, MathTest,
                         ::testing::Combine(::testing::Values(0, 1, 2),
                                            ::testing::Values(kApart, kFused)),
                         name_of);

}  // namespace
}  // namespace backplane::kernelgen
