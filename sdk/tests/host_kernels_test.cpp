// The SDK's plain kernels and the table that they stand in: claims, tensors that are not dense,
// views.
#include <gtest/gtest.h>
#include <backplane/sdk/host_kernels.hpp>
#include <backplane/sdk/testing/graph_builder.hpp>
#include <backplane/sdk/testing/host.hpp>

#include <cmath>
#include <limits>

namespace backplane::sdk {
namespace {

using Floats = std::vector<float>;

class HostKernelsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { detail::g_host = &testing::host_api(); }

  // One call of the graph at these sizes; inputs are bytes of any element type.
  Floats run(const std::vector<void*>& inputs, std::size_t result_size,
             const std::vector<std::int64_t>& dims = {}) {
    const bp_graph arrays = builder_.graph();
    const auto program = table_.compile(GraphView(arrays));
    auto instance = program->instance(dims);
    EXPECT_TRUE(instance.ok()) << instance.status().message();
    if (!instance.ok()) return {};
    std::vector<std::byte*> in;
    for (void* const input : inputs) in.push_back(static_cast<std::byte*>(input));
    Floats result(result_size, -1);
    std::byte* const out[] = {reinterpret_cast<std::byte*>(result.data())};
    const std::unique_ptr<std::max_align_t[]> workspace(
        new std::max_align_t[(*instance)->workspace_bytes() / sizeof(std::max_align_t) + 8]);
    auto at = reinterpret_cast<std::uintptr_t>(workspace.get());
    at = (at + 63) / 64 * 64;
    const Status status = (*instance)->run(in, out, reinterpret_cast<std::byte*>(at));
    EXPECT_TRUE(status.ok()) << status.message();
    return result;
  }

  testing::GraphBuilder builder_;
  KernelTable table_{host_kernels::rows()};
};

TEST_F(HostKernelsTest, BroadcastOperands) {
  const auto x = builder_.input(kFloat32, {2, 3}), row = builder_.input(kFloat32, {3});
  const auto y = builder_.value(kFloat32, {2, 3});
  builder_.real("alpha", 2);
  builder_.node("aten.add.Tensor", {x, row}, {y});
  builder_.output(y);
  Floats a{1, 2, 3, 4, 5, 6}, b{10, 20, 30};
  EXPECT_EQ(run({a.data(), b.data()}, 6), (Floats{21, 42, 63, 24, 45, 66}));
}

TEST_F(HostKernelsTest, TurnedOperandsAreMadeDense) {
  const auto x = builder_.input(kFloat32, {2, 2}), w = builder_.input(kFloat32, {3, 2});
  const auto t = builder_.value(kFloat32, {2, 3}, {1, 2}), y = builder_.value(kFloat32, {2, 3});
  builder_.view("aten.t", w, t);
  builder_.node("aten.mm", {x, t}, {y});
  builder_.output(y);
  Floats a{1, 2, 3, 4}, b{1, 0, 0, 1, 1, 1};
  EXPECT_EQ(run({a.data(), b.data()}, 6), (Floats{1, 2, 3, 3, 4, 7}));
}

TEST_F(HostKernelsTest, ResultsMayLieTurned) {
  const auto x = builder_.input(kFloat32, {2, 3});
  const auto y = builder_.value(kFloat32, {2, 3}, {1, 2});
  builder_.node("aten.neg", {x}, {y});
  builder_.output(y);
  Floats a{1, 2, 3, 4, 5, 6};
  EXPECT_EQ(run({a.data()}, 6), (Floats{-1, -4, -2, -5, -3, -6}));
}

TEST_F(HostKernelsTest, SizesComeWithTheCall) {
  const bp_dim n = -1 - static_cast<bp_dim>(builder_.dim_class(1, 9, 2));
  const auto x = builder_.input(kFloat32, {n, 2}, {2, 1}), y = builder_.value(kFloat32, {2});
  builder_.integers("dim", {0});
  builder_.node("aten.sum.dim_IntList", {x}, {y});
  builder_.output(y);
  Floats a{1, 2, 3, 4, 5, 6};
  EXPECT_EQ(run({a.data()}, 2, {3}), (Floats{9, 12}));
  EXPECT_EQ(run({a.data()}, 2, {2}), (Floats{4, 6}));
}

// One head, two rows of queries, three keys; the second row may look at the first two alone.
TEST_F(HostKernelsTest, AttentionLooksAtWhatIsNotMasked) {
  const auto q = builder_.input(kFloat32, {1, 1, 2, 2}), k = builder_.input(kFloat32, {1, 1, 3, 2});
  const auto v = builder_.input(kFloat32, {1, 1, 3, 1}), mask = builder_.input(kFloat32, {2, 3});
  const auto y = builder_.value(kFloat32, {1, 1, 2, 1}), sums = builder_.value(kFloat32, {1, 1, 2});
  builder_.real("scale", 1);
  builder_.node("aten._scaled_dot_product_flash_attention_for_cpu", {q, k, v, mask}, {y, sums});
  builder_.output(y);
  const float none = -std::numeric_limits<float>::infinity();
  Floats queries{0, 0, 1, 0}, keys{std::log(1.0F), 5, std::log(3.0F), 5, 100, 5};
  Floats values{2, 4, 6}, masks{0, 0, 0, 0, 0, none};
  const Floats got = run({queries.data(), keys.data(), values.data(), masks.data()}, 2);
  EXPECT_NEAR(got[0], 4, 1e-6);                      // all alike: the mean
  EXPECT_NEAR(got[1], (1 * 2 + 3 * 4) / 4.0, 1e-6);  // one to three
}

// Against differences of the forward.
TEST_F(HostKernelsTest, AttentionsGradientsAreItsSlopes) {
  constexpr std::size_t kSize = 6;  // [1, 2, 3, 1]
  const std::vector<bp_dim> dims{1, 2, 3, 1};
  Floats operands[] = {
      {.1F, -.4F, .7F, .3F, .9F, -.2F}, {.5F, .2F, -.6F, -.1F, .8F, .4F}, {1, -2, 3, .5F, 2, -1}};
  Floats weights{1, 2, -1, .5F, 1, 3};
  const auto forward = [&](std::size_t which) {
    builder_ = testing::GraphBuilder();
    const auto q = builder_.input(kFloat32, dims), k = builder_.input(kFloat32, dims);
    const auto v = builder_.input(kFloat32, dims);
    const auto y = builder_.value(kFloat32, dims), sums = builder_.value(kFloat32, {1, 2, 3});
    builder_.boolean("is_causal", true);
    builder_.node("aten._scaled_dot_product_flash_attention_for_cpu", {q, k, v}, {y, sums});
    builder_.output(which == 0 ? y : sums);
    return run({operands[0].data(), operands[1].data(), operands[2].data()}, kSize);
  };
  Floats output = forward(0), sums = forward(1);
  for (std::size_t which = 0; which < 3; ++which) {
    builder_ = testing::GraphBuilder();
    std::vector<std::uint32_t> in;
    for (int i = 0; i < 5; ++i) in.push_back(builder_.input(kFloat32, dims));
    in.push_back(builder_.input(kFloat32, {1, 2, 3}));
    std::vector<std::uint32_t> gradients;
    for (int i = 0; i < 3; ++i) gradients.push_back(builder_.value(kFloat32, dims));
    builder_.boolean("is_causal", true);
    builder_.node("aten._scaled_dot_product_flash_attention_for_cpu_backward", in, gradients);
    builder_.output(gradients[which]);
    const Floats got = run({weights.data(), operands[0].data(), operands[1].data(),
                            operands[2].data(), output.data(), sums.data()},
                           kSize);
    for (std::size_t e = 0; e < kSize; ++e) {
      const float kept = operands[which][e], step = 1e-2F;
      double slope = 0;
      for (const float sign : {1.0F, -1.0F}) {
        operands[which][e] = kept + sign * step;
        const Floats moved = forward(0);
        for (std::size_t i = 0; i < kSize; ++i)
          slope += static_cast<double>(sign * weights[i] * moved[i] / (2 * step));
      }
      operands[which][e] = kept;
      EXPECT_NEAR(got[e], slope, 2e-3) << "operand " << which << ", element " << e;
    }
  }
}

TEST_F(HostKernelsTest, TheTableSaysWhyItRefuses) {
  const auto x = builder_.input(kFloat64, {2}), i = builder_.input(kInt64, {2});
  const auto y = builder_.value(kFloat64, {2}), z = builder_.value(kFloat32, {2});
  const auto w = builder_.input(kFloat32, {4, 3}), e = builder_.value(kFloat32, {2, 3});
  builder_.node("aten.neg", {x}, {y});
  builder_.node("vendor.unknown", {w}, {z});
  builder_.node("aten.embedding", {w, i}, {e});
  builder_.output(e);
  const bp_graph arrays = builder_.graph();
  const Claims claims = table_.claims(GraphView(arrays));
  ASSERT_EQ(claims.refused.size(), 2u);
  EXPECT_EQ(claims.refused[0].text, "aten.neg of this element type");
  EXPECT_EQ(claims.refused[1].text, "no kernel for vendor.unknown");
  ASSERT_EQ(claims.sets.size(), 1u);
  EXPECT_EQ(claims.sets[0].nodes, (std::vector<std::uint32_t>{2}));
}

}  // namespace
}  // namespace backplane::sdk
