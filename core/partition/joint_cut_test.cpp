#include "core/partition/joint_cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ir/text.h"
#include "core/ir/verifier.h"

namespace backplane::partition {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ir::Graph parse(std::string_view text) {
  Result<ir::Graph> graph = ir::parse(text);
  EXPECT_TRUE(graph.ok()) << graph.status().to_string();
  return std::move(*graph);
}

std::vector<std::string> saved_names(const ir::Graph& joint, const JointCut& cut) {
  std::vector<std::string> names;
  for (const SavedValue& saved : cut.saved) names.push_back(joint.values[saved.value].name);
  return names;
}

JointCut cut(const ir::Graph& joint, const JointBorder& border, double budget = 1) {
  JointCutOptions options;
  options.memory_budget = budget;
  Result<JointCut> result = cut_joint(joint, border, options);
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_TRUE(ir::verify(result->forward).ok()) << ir::verify(result->forward).to_string();
  EXPECT_TRUE(ir::verify(result->backward).ok()) << ir::verify(result->backward).to_string();
  return std::move(*result);
}

// The published example: y = cos(cos(x)) saves x alone and computes the inner cosine twice.
constexpr std::string_view kTwoCosines =
    R"(graph @joint(%x: f32[1000], %g: f32[1000]) -> (f32[1000], f32[1000]) {
  %cos = aten.cos(%x) : f32[1000]
  %cos_1 = aten.cos(%cos) : f32[1000]
  %sin = aten.sin(%cos) : f32[1000]
  %neg = aten.neg(%sin) : f32[1000]
  %mul = aten.mul.Tensor(%g, %neg) : f32[1000]
  %sin_1 = aten.sin(%x) : f32[1000]
  %neg_1 = aten.neg(%sin_1) : f32[1000]
  %mul_1 = aten.mul.Tensor(%mul, %neg_1) : f32[1000]
  return %cos_1, %mul_1
}
)";

// An operator that must not run twice, for the backward alone: the forward has all that it reads.
TEST(JointCut, WhatTheForwardComputesForTheBackward) {
  const ir::Graph joint = parse(R"(graph @joint(%x: f32[8], %g: f32[8]) -> (f32[8], f32[8]) {
  %y = aten.cos(%x) : f32[8]
  %s = aten.sin(%x) : f32[8]
  %u = custom.op(%s) : f32[8]
  %m = aten.mul.Tensor(%g, %u) : f32[8]
  return %y, %m
}
)");
  const JointCut made = cut(joint, {1, 1});
  EXPECT_THAT(saved_names(joint, made), ElementsAre("u"));
  EXPECT_EQ(made.forward.nodes.size(), 3u);
}

TEST(JointCut, TwoCosines) {
  const ir::Graph joint = parse(kTwoCosines);
  const JointCut made = cut(joint, {1, 1});
  EXPECT_THAT(saved_names(joint, made), ElementsAre("x"));
  EXPECT_TRUE(made.saved[0].is_argument);
  EXPECT_EQ(made.saved_bytes, 4000);
  ASSERT_EQ(made.recomputed.size(), 1u);
  EXPECT_EQ(made.recomputed[0], 0u);
  EXPECT_EQ(ir::print(made.forward), R"(graph @joint_forward(%x: f32[1000]) -> (f32[1000]) {
  %cos = aten.cos(%x) : f32[1000]
  %cos_1 = aten.cos(%cos) : f32[1000]
  return %cos_1
}
)");
  EXPECT_EQ(made.backward.nodes.size(), 7u);
  EXPECT_THAT(explain(joint, made), HasSubstr("%x: 4000 bytes, an argument"));
}

constexpr std::string_view kLayers =
    R"(graph @joint(%x: f32[64, 32], %w: f32[32, 32] static, %g: f32[64, 32]) -> (f32[64, 32], f32[32, 32]) {
  %mm = aten.mm(%x, %w) : f32[64, 32]
  %relu = aten.relu(%mm) : f32[64, 32]
  %mm_1 = aten.mm(%relu, %w) : f32[64, 32]
  %t = aten.t(%relu) : f32[32, 64] strides(1, 32)
  %mm_2 = aten.mm(%t, %g) : f32[32, 32]
  %t_1 = aten.t(%w) : f32[32, 32] strides(1, 32)
  %mm_3 = aten.mm(%g, %t_1) : f32[64, 32]
  %threshold_backward = aten.threshold_backward(%mm_3, %relu, threshold=0) : f32[64, 32]
  %t_2 = aten.t(%x) : f32[32, 64] strides(1, 32)
  %mm_4 = aten.mm(%t_2, %threshold_backward) : f32[32, 32]
  %add = aten.add.Tensor(%mm_2, %mm_4) : f32[32, 32]
  return %mm_1, %add
}
)";

TEST(JointCut, SavesRootsAndComputesNothingExpensiveTwice) {
  const ir::Graph joint = parse(kLayers);
  const JointCut made = cut(joint, {2, 1});
  EXPECT_THAT(saved_names(joint, made), ElementsAre("x", "w", "relu"));
  EXPECT_THAT(made.recomputed, IsEmpty());
  EXPECT_EQ(made.saved_bytes, 2 * 64 * 32 * 4);
  EXPECT_EQ(made.forward.outputs.size(), 2u);
  EXPECT_EQ(made.saved[2].forward_position, 1u);
}

TEST(JointCut, BudgetTradesTimeForMemory) {
  const ir::Graph joint = parse(kLayers);
  const JointCut made = cut(joint, {2, 1}, 0.5);
  EXPECT_THAT(saved_names(joint, made), ElementsAre("x", "w"));
  EXPECT_EQ(made.recomputed.size(), 2u);
}

TEST(JointCut, NeverDrawsTwice) {
  const ir::Graph joint =
      parse(R"(graph @joint(%x: f32[100], %g: f32[100]) -> (f32[100], f32[100]) {
  %bernoulli = aten.bernoulli.p(%x, p=0.5) : f32[100]
  %mul = aten.mul.Tensor(%x, %bernoulli) : f32[100]
  %mul_1 = aten.mul.Tensor(%g, %bernoulli) : f32[100]
  return %mul, %mul_1
}
)");
  for (const double budget : {1.0, 0.0}) {
    const JointCut made = cut(joint, {1, 1}, budget);
    EXPECT_THAT(saved_names(joint, made), ElementsAre("bernoulli"));
    EXPECT_THAT(made.recomputed, IsEmpty());
  }
}

std::vector<std::string> node_names(const ir::Graph& graph) {
  std::vector<std::string> names;
  for (const ir::Node& node : graph.nodes) names.push_back(graph.values[node.results[0]].name);
  return names;
}

// Else all that is computed twice would be alive from the start of the backward.
TEST(JointCut, WhatIsComputedTwiceComesJustBeforeItsReader) {
  const ir::Graph joint = parse(R"(graph @joint(%x: f32[64], %g: f32[64]) -> (f32[64], f32[64]) {
  %a = aten.cos(%x) : f32[64]
  %b = aten.sin(%a) : f32[64]
  %c = aten.cos(%b) : f32[64]
  %m = aten.mul.Tensor(%g, %b) : f32[64]
  %n = aten.mul.Tensor(%m, %a) : f32[64]
  %s = aten.sin(%x) : f32[64]
  %o = aten.mul.Tensor(%n, %s) : f32[64]
  return %c, %o
}
)");
  const JointCut made = cut(joint, {1, 1});
  EXPECT_THAT(saved_names(joint, made), ElementsAre("x"));
  EXPECT_THAT(node_names(made.backward), ElementsAre("a", "b", "m", "n", "s", "o"));
}

// What the forward computes for the backward alone does not keep its operands to the end.
TEST(JointCut, WhatOnlyTheBackwardReadsIsComputedEarly) {
  const ir::Graph joint = parse(
      R"(graph @joint(%x: f32[8, 64], %w: f32[64, 1] static, %g: f32[8, 1]) -> (f32[8, 64], f32[8, 1]) {
  %s = aten.sin(%x) : f32[8, 64]
  %y = aten.cos(%s) : f32[8, 64]
  %z = aten.cos(%y) : f32[8, 64]
  %u = aten.mm(%s, %w) : f32[8, 1]
  %m = aten.mul.Tensor(%g, %u) : f32[8, 1]
  return %z, %m
}
)");
  const JointCut made = cut(joint, {2, 1});
  EXPECT_THAT(saved_names(joint, made), ElementsAre("u"));
  EXPECT_THAT(node_names(made.forward), ElementsAre("s", "u", "y", "z"));
}

TEST(JointCut, ConstantsAreInBothGraphs) {
  const ir::Graph joint = parse(R"(graph @joint(%x: f32[4], %g: f32[4]) -> (f32[4], f32[4]) {
  constant %two: f32[] = [2.0]
  %mul = aten.mul.Tensor(%x, %two) : f32[4]
  %mul_1 = aten.mul.Tensor(%g, %two) : f32[4]
  return %mul, %mul_1
}
)");
  const JointCut made = cut(joint, {1, 1});
  EXPECT_THAT(made.saved, IsEmpty());
  EXPECT_THAT(ir::print(made.backward), HasSubstr("constant %two"));
}

TEST(JointCut, RefusesAForwardThatNeedsTangents) {
  const ir::Graph joint = parse(kTwoCosines);
  const Result<JointCut> made = cut_joint(joint, {1, 2}, {});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().message(), "A forward output depends on a tangent.");
}

// What is computed of it is no more to save, and needs no copy.
TEST(JointCut, AnArgumentThatOthersMayWriteIsNotSavedForWhatIsComputedOfIt) {
  const ir::Graph joint =
      parse(R"(graph @joint(%x: f32[8], %w: f32[8], %g: f32[8]) -> (f32[8], f32[8]) {
  %c = aten.cos(%x) : f32[8]
  %y = aten.mul.Tensor(%c, %w) : f32[8]
  %gw = aten.mul.Tensor(%g, %c) : f32[8]
  return %y, %gw
}
)");
  JointCutOptions options;
  options.copied_arguments = {true, false};
  const auto made = cut_joint(joint, {2, 1}, options);
  ASSERT_TRUE(made.ok());
  EXPECT_THAT(saved_names(joint, *made), ElementsAre("c"));
}

}  // namespace
}  // namespace backplane::partition
