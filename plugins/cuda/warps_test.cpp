// The words of kernelgen::matrix_words on the device: what fragments hold, and what the emulated
// device does not forgive.
#include <array>
#include <bit>
#include <cmath>

#include "testing/context_fixture.h"

namespace backplane::cuda {
namespace {

constexpr int kSide = 16;  // of matrices

class WarpsTest : public ContextTest {
 protected:
  using Words = std::array<std::uint16_t, kSide * kSide>;

  // One warp runs `body` on two matrices of halves, `a` and `b` in shared memory, and floats `out`.
  std::array<float, kSide * kSide> run_warp(const std::string& body, const Words& a,
                                            const Words& b) {
    const kernelgen::Printed named = kernelgen::name_entry(
        std::string(kernelgen::matrix_words()) +
        "BP_KERNEL BP_ENTRY(BP_ITEM BP_GLOBAL uchar* pa, ulong oa, BP_GLOBAL uchar* pb, ulong ob, "
        "BP_GLOBAL uchar* po, ulong oo) {\n  BP_BEGIN BP_COLLECTIVE\n"
        "  BP_LOCAL uint4 tiles[64];\n  const bp_shared a = bp_shared_at(tiles), b = a + 512;\n"
        "  const int lane = (int)BP_LOCAL_ID;\n"
        "  BP_GLOBAL float* out = (BP_GLOBAL float*)(po + oo);\n"
        "  bp_put_16(a + lane * 16, ((BP_GLOBAL const uint4*)(pb + ob))[lane]);  // overwritten\n"
        "  bp_copy_16(a + lane * 16, pa + oa + lane * 16, false);\n"
        "  bp_copy_16(b + lane * 16, pb + ob + lane * 16, false);\n  bp_close_copies();\n" +
        body + "}\n");
    auto program = std::static_pointer_cast<const CudaProgram>(
        context_->program(named.text, named.entry, "a test"));
    Status status = context_->build_pending();
    EXPECT_TRUE(status.ok()) << status.message();
    std::array<float, kSide * kSide> out{};
    auto left = context_->constant(a.data(), sizeof a),
         right = context_->constant(b.data(), sizeof b),
         result = context_->constant(out.data(), sizeof out);
    if (!status.ok() || !left.ok() || !right.ok() || !result.ok()) return out;
    const std::array<kernels::Bound, 3> arguments = {kernels::Bound{left->get(), 0, true},
                                                     kernels::Bound{right->get(), 0, true},
                                                     kernels::Bound{result->get(), 0, true}};
    Recorder recorder(*context_, sdk::Order());
    status = recorder.launch(*program, arguments, {32, 1, 1}, {32, 1, 1},
                             std::make_shared<const Work>(Work{"a test", {0}}));
    status = recorder.finish(sdk::Order(), std::move(status));
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(read(result->get(), out.data(), sizeof out).ok());
    return out;
  }
};

// Small integers, as halves of either kind.
int element(int which, int row, int column) { return (which * 5 + row * 3 + column * 7) % 11 - 5; }
std::uint16_t half_of(int value, bool is_bf16) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  if (is_bf16) return static_cast<std::uint16_t>(bits >> 16);
  if (value == 0) return 0;
  const std::uint32_t exponent = (bits >> 23 & 0xff) - 127 + 15;
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000) | exponent << 10 | (bits >> 13 & 0x3ff));
}

constexpr const char* kReady = "  bp_wait_for_copies();\n  BP_BARRIER;\n";

// The right factor once by its columns, as it is multiplied, and once by its rows, turned as it is
// read.
TEST_F(WarpsTest, FragmentsMultiply) {
  for (const bool is_bf16 : {true, false}) {
    for (const bool by_rows : {false, true}) {
      Words a{}, b{};
      for (int i = 0; i < kSide; ++i)
        for (int j = 0; j < kSide; ++j) {
          const auto at = static_cast<std::size_t>(i) * kSide + static_cast<std::size_t>(j);
          a[at] = half_of(element(0, i, j), is_bf16);
          b[at] = half_of(by_rows ? element(1, i, j) : element(1, j, i), is_bf16);
        }
      const std::string type = is_bf16 ? "bp_bf16()" : "bp_f16()";
      // Rows of 32 bytes: matrices 0 and 1 are rows 0 to 7 and 8 to 15 of the left factor.
      const std::string body =
          std::string(kReady) +
          "  const int row = lane % 8, middle = lane / 8 % 2, high = lane / 16;\n"
          "  uint left[4], right[4];\n"
          "  bp_matrices(left, a + (middle * 8 + row) * 32 + high * 16);\n" +
          (by_rows ? "  bp_matrices_transposed(right, b + (middle * 8 + row) * 32 + high * 16);\n"
                   : "  bp_matrices(right, b + (high * 8 + row) * 32 + middle * 16);\n") +
          "  for (int n = 0; n < 2; ++n) {\n    float c[4] = {1.0f, 1.0f, 1.0f, 1.0f};\n"
          "    bp_multiply(" +
          type +
          ", c, left, right[n * 2], right[n * 2 + 1]);\n"
          "    for (int e = 0; e < 4; ++e)\n"
          "      out[(lane / 4 + e / 2 * 8) * 16 + n * 8 + lane % 4 * 2 + e % 2] = c[e];\n  }\n";
      const auto out = run_warp(body, a, b);
      for (int i = 0; i < kSide; ++i)
        for (int j = 0; j < kSide; ++j) {
          int sum = 1;
          for (int k = 0; k < kSide; ++k) sum += element(0, i, k) * element(1, k, j);
          EXPECT_EQ(out[static_cast<std::size_t>(i * kSide + j)], static_cast<float>(sum))
              << i << " " << j << " " << is_bf16 << by_rows;
        }
    }
  }
}

TEST_F(WarpsTest, LanesExchangeAndPack) {
  const std::string body =
      std::string(kReady) +
      "  out[lane] = bp_of_lane_xor((float)lane, 5);\n"
      "  const uint p = bp_pack(bp_bf16(), 1.0f, -2.0f), q = bp_pack(bp_f16(), "
      "0.5f, 65536.0f);\n  out[32 + lane] = (float)(p & 0xffff);\n"
      "  out[64 + lane] = (float)(p >> 16);\n  out[96 + lane] = (float)(q & "
      "0xffff);\n  out[128 + lane] = (float)(q >> 16);\n"
      "  out[160 + lane] = bp_exp2((float)lane - 150.0f);\n";
  const auto out = run_warp(body, {}, {});
  for (std::size_t lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(out[lane], static_cast<float>(lane ^ 5));
    EXPECT_EQ(out[32 + lane], 0x3f80);
    EXPECT_EQ(out[64 + lane], 0xc000);
    EXPECT_EQ(out[96 + lane], 0x3800);
    EXPECT_EQ(out[128 + lane], 0x7c00);
    const double exact =
        lane < 24 ? 0 : std::exp2(static_cast<double>(lane) - 150);  // no subnormals
    EXPECT_NEAR(out[160 + lane], exact, exact * 1e-6) << lane;
  }
}

class EmulatedWarpsTest : public WarpsTest {
 protected:
  void SetUp() override {
    if (std::getenv("BACKPLANE_TEST_GPU") != nullptr) GTEST_SKIP() << "of the emulated device";
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
    WarpsTest::SetUp();
  }
};

TEST_F(EmulatedWarpsTest, CopiesThatNobodyWaitsForAreNotThere) {
  Words a{}, b{};
  a.fill(half_of(1, true));
  b.fill(half_of(2, true));
  const std::string body =
      "  BP_BARRIER;\n  uint r[4];\n  bp_matrices(r, a + lane % 16 * 32);\n"
      "  out[lane] = BP_AF_1((int)(r[0] << 16));\n";
  EXPECT_EQ(run_warp(body, a, b)[0], 2);
  EXPECT_EQ(run_warp(kReady + body, a, b)[0], 1);
}
TEST_F(EmulatedWarpsTest, AThreadThatDoesNotComeEndsTheProcess) {
  EXPECT_DEATH(run_warp("  if (lane < 31) out[lane] = bp_of_lane_xor(1.0f, 1);\n", {}, {}),
               "not all threads of the warp are here");
  EXPECT_DEATH(run_warp("  if (lane < 16) BP_BARRIER; else bp_of_lane_xor(1.0f, 1);\n", {}, {}),
               "wait for others that do not come");
}

}  // namespace
}  // namespace backplane::cuda
