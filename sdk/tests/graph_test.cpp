#include <backplane/sdk/device.hpp>

#include <gtest/gtest.h>
#include <backplane/sdk/testing/graph_builder.hpp>

#include <array>

namespace backplane::sdk {
namespace {

// x + alpha * x, where alpha is a number of the call's sizes.
class NumberOfTheSizes : public ::testing::Test {
 protected:
  NumberOfTheSizes() {
    const std::uint32_t x = builder_.input(kFloat32, {4});
    const std::uint32_t out = builder_.value(kFloat32, {4});
    const std::uint32_t rows = builder_.dim_class(1, 100, 5);
    bp_attribute& alpha = builder_.attribute("alpha", BP_ATTRIBUTE_INT);
    alpha.integer = -1 - static_cast<std::int64_t>(rows);
    alpha.is_class = 1;
    builder_.node("aten.add.Tensor", {x, x}, {out});
    raw_ = builder_.graph();
  }

  testing::GraphBuilder builder_;
  bp_graph raw_{};
};

TEST_F(NumberOfTheSizes, IsKnownAtSizesOnly) {
  const NodeView node = GraphView(raw_)[0];
  EXPECT_TRUE(node.is_dim_class("alpha"));
  EXPECT_THROW(static_cast<void>(node.int_or("alpha", 1)), UnknownNumber);
  EXPECT_THROW(static_cast<void>(node.real_or("alpha", 1)), UnknownNumber);
  const std::array<std::int64_t, 1> sizes{7};
  EXPECT_EQ(node.at(sizes).int_or("alpha", 1), 7);
  EXPECT_EQ(node.at(sizes).real_or("alpha", 1), 7.0);
  EXPECT_EQ(node.int_or("beta", 3), 3);
}

TEST_F(NumberOfTheSizes, RefusesTheNodeWhoseClaimAsksForIt) {
  const Claims claims = claim_where(GraphView(raw_), [](const NodeView& node) {
    return node.real_or("alpha", 1) == 1 ? std::nullopt : std::optional<Refusal>(Refusal{});
  });
  EXPECT_TRUE(claims.sets.empty());
  ASSERT_EQ(claims.refused.size(), 1U);
  EXPECT_EQ(claims.refused[0].text, "'alpha' differs with the sizes");
}

}  // namespace
}  // namespace backplane::sdk
