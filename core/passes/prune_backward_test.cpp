#include "core/passes/prune_backward.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "core/ir/text.h"
#include "core/ir/verifier.h"

namespace backplane::passes {
namespace {

// Two tangents: one behind a factor that may be infinite, one plain. They meet in a sum and in a
// list.
constexpr const char* kBackward =
    R"(graph @g(%saved: f32[3], %t: f32[3], %u: f32[3]) -> (f32[3], f32[6], f32[3]) {
  %a = aten.mul.Tensor(%t, %saved) : f32[3]
  %b = aten.neg(%u) : f32[3]
  %c = aten.add.Tensor(%a, %b) : f32[3]
  %d = aten.cat([%a, %b], dim=0) : f32[6]
  return %c, %d, %a
}
)";

// All gradients of some tangents.
Asked absent(const ir::Graph& backward, std::vector<bool> tangents) {
  return {std::move(tangents), std::vector<bool>(backward.outputs.size(), false)};
}

TEST(PruneBackward, WhatOnlyAbsentOnesReachIsNotComputed) {
  const auto whole = ir::parse(kBackward);
  ASSERT_TRUE(whole.ok()) << whole.status().to_string();
  const auto pruned = prune_backward(*whole, absent(*whole, {true, false}));
  ASSERT_TRUE(pruned.ok()) << pruned.status().to_string();
  EXPECT_EQ(pruned->is_given, (std::vector<bool>{true, true, false}));
  EXPECT_TRUE(ir::verify(pruned->graph).ok()) << ir::verify(pruned->graph).to_string();
  EXPECT_EQ(ir::print(pruned->graph), R"(graph @g(%u: f32[3]) -> (f32[3], f32[6]) {
  constant %zero: f32[] = [0.0]
  %b = aten.neg(%u) : f32[3]
  %zeros = aten.expand(%zero, size=[3]) : f32[3] strides(0)
  %d = aten.cat([%zeros, %b], dim=0) : f32[6]
  return %b, %d
}
)");
}

TEST(PruneBackward, AGradientLiesAsWhatIsGivenOfIt) {
  const auto whole = ir::parse(
      R"(graph @g(%t: f32[2, 3], %u: f32[3, 2]) -> (f32[2, 3], f32[2, 3]) {
  %a = aten.neg(%t) : f32[2, 3]
  %b = aten.t(%u) : f32[2, 3] strides(1, 2)
  %c = aten.add.Tensor(%a, %b) : f32[2, 3]
  %d = aten.add.Tensor(%a, %b) : f32[2, 3]
  %e = aten.neg(%d) : f32[2, 3]
  return %c, %e
}
)");
  ASSERT_TRUE(whole.ok()) << whole.status().to_string();
  const auto pruned = prune_backward(*whole, absent(*whole, {true, false}));
  ASSERT_TRUE(pruned.ok()) << pruned.status().to_string();
  EXPECT_TRUE(ir::verify(pruned->graph).ok()) << ir::verify(pruned->graph).to_string();
  const ir::Graph& graph = pruned->graph;
  const auto strides_of = [&](std::size_t output) {
    return graph.values[graph.outputs[output]].type.strides;
  };
  EXPECT_EQ(strides_of(0), (std::vector<ir::Dim>{1, 2})) << "nobody else reads it";
  EXPECT_EQ(strides_of(1), (std::vector<ir::Dim>{3, 1}));
}

TEST(PruneBackward, WhatIsSavedForAbsentOnesIsNotRead) {
  const auto whole = ir::parse(kBackward);
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(inputs_read(*whole, absent(*whole, {true, false})),
            (std::vector<bool>{false, false, true}));
  EXPECT_EQ(inputs_read(*whole, absent(*whole, {false, true})),
            (std::vector<bool>{true, true, false}));
}

TEST(PruneBackward, WhatOnlyUnwantedGradientsNeedIsNotComputed) {
  const auto whole = ir::parse(
      R"(graph @g(%saved: f32[3], %other: f32[3], %t: f32[3]) -> (f32[3], f32[3]) {
  %e = aten.exp(%other) : f32[3]
  %a = aten.mul.Tensor(%t, %e) : f32[3]
  %b = aten.mul.Tensor(%a, %saved) : f32[3]
  return %a, %b
}
)");
  ASSERT_TRUE(whole.ok()) << whole.status().to_string();
  const Asked asked{{false}, {false, true}};
  EXPECT_EQ(inputs_read(*whole, asked), (std::vector<bool>{false, true, true}));
  const auto pruned = prune_backward(*whole, asked);
  ASSERT_TRUE(pruned.ok()) << pruned.status().to_string();
  EXPECT_EQ(pruned->is_given, (std::vector<bool>{true, false}));
  EXPECT_EQ(ir::print(pruned->graph),
            R"(graph @g(%other: f32[3], %t: f32[3]) -> (f32[3]) {
  %e = aten.exp(%other) : f32[3]
  %a = aten.mul.Tensor(%t, %e) : f32[3]
  return %a
}
)");
}

TEST(PruneBackward, AGradientOfNoTangentIsComputedForAll) {
  const auto whole =
      ir::parse(R"(graph @g(%saved: f32[3], %t: f32[3], %u: f32[3]) -> (f32[3], f32[3]) {
  %z = aten.zeros_like(%saved) : f32[3]
  %a = aten.add.Tensor(%t, %u) : f32[3]
  return %z, %a
}
)");
  ASSERT_TRUE(whole.ok()) << whole.status().to_string();
  EXPECT_TRUE(inputs_read(*whole, absent(*whole, {true, false}))[0]);
  EXPECT_FALSE(inputs_read(*whole, {{true, false}, {true, false}})[0]) << "it is not wanted";
}

TEST(PruneBackward, AllGivenIsTheWhole) {
  const auto whole = ir::parse(kBackward);
  ASSERT_TRUE(whole.ok());
  const auto pruned = prune_backward(*whole, absent(*whole, {false, false}));
  ASSERT_TRUE(pruned.ok());
  EXPECT_EQ(ir::print(pruned->graph), kBackward);
}

}  // namespace
}  // namespace backplane::passes
