#include <backplane/sdk/groups.hpp>

#include <gtest/gtest.h>
#include <backplane/sdk/indexing.hpp>
#include <backplane/sdk/points.hpp>
#include <backplane/sdk/testing/graph_builder.hpp>

#include <random>

namespace backplane::sdk {
namespace {

using Nodes = std::vector<std::uint32_t>;

class GroupsTest : public ::testing::Test {
 protected:
  std::uint32_t value(std::vector<std::int64_t> dims = {4, 8}) {
    return builder_.value(kFloat32, std::move(dims));
  }
  std::uint32_t input() { return builder_.input(kFloat32, {4, 8}); }
  std::uint32_t node(const std::string& op, const std::vector<std::uint32_t>& operands) {
    const std::uint32_t out = value();
    if (op == "aten.view")
      builder_.view(op, operands[0], out);
    else
      builder_.node(op, operands, {out});
    return out;
  }
  NodeGroups groups() {
    raw_ = builder_.graph();
    view_.emplace(raw_);
    return NodeGroups(*view_);
  }

  testing::GraphBuilder builder_;
  bp_graph raw_{};
  std::optional<GraphView> view_;
};

TEST_F(GroupsTest, KnowsWhoReadsWhat) {
  const auto x = input();
  const auto a = node("aten.exp", {x}), b = node("aten.mul.Tensor", {a, x});
  builder_.output(b);
  const NodeGroups g = groups();
  EXPECT_EQ(g.size(), 2U);
  EXPECT_EQ(g.users(x), (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(g.producer(x), NodeGroups::kNone);
  EXPECT_EQ(g.producer(b), 1U);
  EXPECT_EQ(g.only_user(a), 1U);
  EXPECT_EQ(g.only_user(x), NodeGroups::kNone);  // two
  EXPECT_EQ(g.only_user(b), NodeGroups::kNone);  // the caller
  EXPECT_TRUE(g.is_read_outside(a, g.group_of(0)));
  EXPECT_TRUE(g.is_read_outside(b, g.group_of(1)));
}

TEST_F(GroupsTest, AWayOutAndBackInForbidsJoining) {
  const auto x = input();
  const auto a = node("aten.exp", {x}), between = node("aten.mm", {a, x}),
             c = node("aten.add.Tensor", {a, between});
  builder_.output(c);
  NodeGroups g = groups();
  EXPECT_FALSE(g.may_join(0, 2));
  EXPECT_TRUE(g.may_join(0, 1));
  EXPECT_TRUE(g.may_join(1, 2));
  g.join(0, 1);
  EXPECT_TRUE(g.may_join(0, 2));  // what lay between is inside
}

TEST_F(GroupsTest, AGroupOutsideRunsAsAWhole) {
  // a → p and q → b, where p and q are one group: no node leads from a to b, but the group does.
  const auto x = input();
  const auto a = node("aten.exp", {x}), p = node("aten.mm", {a, x}), q = node("aten.mm", {x, x}),
             b = node("aten.neg", {q});
  builder_.output(p);
  builder_.output(b);
  NodeGroups g = groups();
  EXPECT_TRUE(g.may_join(0, 3));
  g.join(1, 2);
  EXPECT_FALSE(g.may_join(0, 3));
}

TEST_F(GroupsTest, AGroupThatEndsBehindBothLeadsBack) {
  const auto x = input();
  const auto a = node("aten.exp", {x}), q = node("aten.mm", {x, x}), b = node("aten.neg", {q}),
             p = node("aten.mm", {a, x});
  builder_.output(p);
  builder_.output(b);
  NodeGroups g = groups();
  EXPECT_TRUE(g.may_join(0, 2));
  g.join(1, 3);
  EXPECT_FALSE(g.may_join(0, 2));
}

// Every pair of groups of random graphs, beside a search that leaves nothing out.
TEST_F(GroupsTest, JoinsNeverCloseACircle) {
  std::mt19937 random(7);
  constexpr std::size_t kNodes = 24;
  std::vector<std::vector<std::size_t>> readers(kNodes);
  std::vector<std::uint32_t> values;
  const auto x = input();
  for (std::size_t n = 0; n < kNodes; ++n) {
    std::vector<std::uint32_t> operands;
    for (int i = 0; i < 2; ++i) {
      const std::size_t from = random() % (n + 2);
      if (from < n) readers[from].push_back(n);
      operands.push_back(from < n ? values[from] : x);
    }
    values.push_back(node("aten.add.Tensor", operands));
  }
  builder_.output(values.back());
  NodeGroups g = groups();
  const auto leads_back = [&](std::size_t a, std::size_t b) {
    std::vector<bool> seen(kNodes);
    std::vector<std::size_t> stack;
    const auto visit_readers = [&](std::size_t n, bool is_start) {
      for (const std::size_t u : readers[n]) {
        const std::size_t group = g.group_of(u);
        if (group == a || group == b) {
          if (!is_start) return true;
          continue;
        }
        for (const std::uint32_t m : g.nodes(group))
          if (!seen[m]) {
            seen[m] = true;
            stack.push_back(m);
          }
      }
      return false;
    };
    for (const std::size_t group : {a, b})
      for (const std::uint32_t n : g.nodes(group)) visit_readers(n, true);
    while (!stack.empty()) {
      const std::size_t n = stack.back();
      stack.pop_back();
      if (visit_readers(n, false)) return true;
    }
    return false;
  };
  for (int round = 0; round < 2000; ++round) {
    const std::size_t a = random() % kNodes, b = random() % kNodes;
    if (a == b || g.nodes(a).empty() || g.nodes(b).empty()) continue;
    const bool may = g.may_join(a, b);
    ASSERT_EQ(may, !leads_back(a, b)) << "round " << round;
    if (may && g.nodes(a).size() + g.nodes(b).size() <= 5) g.join(a, b);
  }
}

TEST_F(GroupsTest, ViewsAreInNoGroupButOrderThem) {
  const auto x = input();
  const auto a = node("aten.exp", {x}), v = node("aten.view", {a}), b = node("aten.neg", {v}),
             c = node("aten.abs", {x});
  builder_.output(b);
  builder_.output(c);
  NodeGroups g = groups();
  EXPECT_EQ(g.size(), 3U);
  EXPECT_EQ(g.group_of(1), NodeGroups::kNone);
  EXPECT_FALSE(g.may_join(0, 1));  // the view between them is no part of either
  EXPECT_EQ(g.order(), (std::vector<std::size_t>{0, 1, 2}));
  // exp joins abs: neg waits for the view of what both give.
  ASSERT_TRUE(g.may_join(2, 0));
  g.join(2, 0);
  EXPECT_EQ(g.order(), (std::vector<std::size_t>{2, 1}));
  EXPECT_EQ(g.nodes(2), (Nodes{3, 0}));
  g.sort_nodes(2);
  EXPECT_EQ(g.nodes(2), (Nodes{0, 3}));
}

TEST_F(GroupsTest, AStepBindsWhatCrossesItsBorderOnce) {
  const auto x = input(), y = input();
  const auto a = node("aten.mul.Tensor", {x, x}), b = node("aten.add.Tensor", {a, y}),
             c = node("aten.neg", {b}), d = node("aten.abs", {b});
  builder_.output(c);
  builder_.output(d);
  NodeGroups g = groups();
  g.join(0, 1);
  Step step;
  g.add_operands(0, step);
  g.add_results(0, step);
  EXPECT_EQ(step.operands, (Nodes{x, y}));
  EXPECT_EQ(step.results, (Nodes{b}));
  Step without;
  g.add_operands(0, without, x);
  g.add_results(0, without, [](std::uint32_t) { return false; });
  EXPECT_EQ(without.operands, (Nodes{y}));
  EXPECT_TRUE(without.results.empty());
  Step listed;
  NodeGroups::list_operands((*view_)[0], listed);
  EXPECT_EQ(listed.operands, (Nodes{x, x}));
}

TEST(PointSpaceTest, RowsAcceptOneElementARow) {
  const PointSpace rows{{4, 8, 16}, {2}, true}, points{{4, 8, 16}, {}, false},
      narrow{{4, 8, 1}, {}, false}, other{{4, 16}, {}, false};
  EXPECT_TRUE(PointSpace::join(rows, points)->has_rows);
  EXPECT_TRUE(PointSpace::join(narrow, rows)->has_rows);
  EXPECT_FALSE(PointSpace::join(points, narrow));
  EXPECT_FALSE(PointSpace::join(rows, other));
  EXPECT_FALSE(PointSpace::join(rows, PointSpace{{4, 8, 16}, {1, 2}, true}));
  EXPECT_FALSE(points.fits(narrow.wide));
  EXPECT_TRUE(rows.fits(narrow.wide));
  EXPECT_FALSE(rows.fits(std::vector<bp_dim>{4, 8}));
}

// self [2, 3, 4, 5]: the shared dims of indices at dims 1 and 2 stand between the others, of
// indices at dims 0 and 2 in front.
TEST(IndexedDimsTest, NeighboursKeepTheirPlace) {
  for (const bool neighbours : {true, false}) {
    testing::GraphBuilder builder;
    const auto self = builder.input(kFloat32, {2, 3, 4, 5}), rows = builder.input(kInt64, {7, 1}),
               columns = builder.input(kInt64, {6});
    const auto out = builder.value(kFloat32, {2, 7, 6, 5});
    const std::vector<std::uint32_t> operands =
        neighbours ? std::vector<std::uint32_t>{self, BP_NONE, rows, columns}
                   : std::vector<std::uint32_t>{self, rows, BP_NONE, columns};
    builder.node("aten.index.Tensor", operands, {out}, 1, 3);
    const bp_graph raw = builder.graph();
    const GraphView graph(raw);
    std::vector<TensorSpec> specs;
    for (std::uint32_t v = 0; v < graph.value_count(); ++v)
      specs.push_back({kFloat32, graph.value(v).hint_dims(), {}, {}});
    const Step step = step_per_node(graph)[0];
    const IndexedDims indexed(StepContext(graph, step, specs, Dims({})));
    EXPECT_EQ(indexed.shared, (std::vector<std::int64_t>{7, 6}));
    EXPECT_EQ(indexed.place, neighbours ? 1U : 0U);
    EXPECT_EQ(indexed.dims, (std::vector<std::size_t>{neighbours ? 1U : 0U, 2}));
    EXPECT_EQ(indexed.operands, (std::vector<std::size_t>{neighbours ? 2U : 1U, 3}));
    EXPECT_TRUE(indexed.has(2));
    EXPECT_FALSE(indexed.has(3));
  }
}

class RoundedValuesTest : public ::testing::Test {
 protected:
  std::uint32_t input(bp_dtype type) { return builder_.input(type, {4, 8}); }
  std::uint32_t node(const std::string& op, const std::vector<std::uint32_t>& operands,
                     bp_dtype type) {
    const std::uint32_t out = builder_.value(type, {4, 8});
    builder_.node(op, operands, {out});
    step_.nodes.push_back(static_cast<std::uint32_t>(step_.nodes.size()));
    return out;
  }
  std::set<std::uint32_t> rounded(Nodes operands, Nodes results) {
    step_.operands = std::move(operands);
    step_.results = std::move(results);
    const bp_graph raw = builder_.graph();
    return rounded_values(GraphView(raw), step_);
  }

  testing::GraphBuilder builder_;
  Step step_;
};
using Values = std::set<std::uint32_t>;

TEST_F(RoundedValuesTest, AreThoseThatLeadToAJump) {
  const auto x = input(kBFloat16);
  const auto a = node("aten.exp", {x}, kBFloat16), b = node("aten.sin", {a}, kBFloat16),
             wide = node("aten._to_copy", {b}, kFloat32), truth = node("aten.isinf", {wide}, kBool),
             round = node("aten.round.decimals", {a}, kBFloat16),
             c = node("aten.cos", {round}, kBFloat16), d = node("aten.tanh", {c}, kBFloat16),
             last = node("aten.tanh", {d}, kBFloat16);
  EXPECT_EQ(rounded({x}, {truth, last}), (Values{a, b, last}));
}

TEST_F(RoundedValuesTest, AreThoseThatBecomeAnotherTypeOrAreStored) {
  const auto x = input(kFloat16);
  const auto a = node("aten.exp", {x}, kFloat16), b = node("aten.sin", {a}, kFloat16),
             wide = node("aten._to_copy", {b}, kFloat32), c = node("aten.cos", {x}, kFloat16),
             d = node("aten.sin", {c}, kFloat16);
  EXPECT_EQ(rounded({x}, {wide, c}), (Values{b, c}));
  EXPECT_EQ(rounded({x}, {wide, d}), (Values{b, d}));
}

TEST_F(RoundedValuesTest, AreOf16Bits) {
  const auto x = input(kFloat32);
  const auto a = node("aten.exp", {x}, kFloat32), b = node("aten.round", {a}, kFloat32);
  EXPECT_EQ(rounded({x}, {b}), Values{});
}

}  // namespace
}  // namespace backplane::sdk
