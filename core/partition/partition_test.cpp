#include "core/partition/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <utility>

#include "core/partition/model.h"

namespace backplane::partition {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

ir::TensorType square(std::int64_t size) { return {ir::DType::kFloat32, {size, size}, {size, 1}}; }

ir::ValueId add_op(ir::Graph& graph, std::string_view op, std::vector<ir::ValueId> operands,
                   std::int64_t size = 64) {
  const ir::NodeId node = graph.add_node(ir::find_op(op), std::move(operands), {}, {square(size)});
  return graph.nodes[node].results[0];
}

std::vector<TargetId> labels_of(const Cut& made) {
  std::vector<TargetId> labels;
  for (const std::uint32_t p : made.of_node) labels.push_back(made.partitions[p].target);
  return labels;
}

std::size_t count_of(const Cut& made, TargetId target) {
  return static_cast<std::size_t>(std::ranges::count_if(
      made.partitions, [&](const Partition& p) { return p.target == target; }));
}

Target target_with(std::vector<Claim> claims) {
  Target target;
  target.name = "toy";
  target.model = {1e13, 1e12, 1e10, 1e10, 5000, 10000};
  target.claims = std::move(claims);
  return target;
}

Options plain_options(bool prefer_plugin) {
  Options options;
  options.host = {1e11, 2e10, 0, 0, 0, 0};
  options.prefer_plugin = prefer_plugin;
  return options;
}

// Every node in one partition, partitions in an order that can be executed (hence convex too), of
// claimed targets, with times that add up.
void expect_sound(const ir::Graph& graph, const std::vector<Target>& targets,
                  const Options& options, const Cut& made) {
  ASSERT_EQ(made.of_node.size(), graph.nodes.size());
  std::size_t nodes = 0;
  double sum_ns = made.predicted_transfer_ns;
  for (std::uint32_t p = 0; p < made.partitions.size(); ++p) {
    const Partition& partition = made.partitions[p];
    EXPECT_FALSE(partition.nodes.empty());
    EXPECT_TRUE(std::ranges::is_sorted(partition.nodes));
    for (const ir::NodeId n : partition.nodes) EXPECT_EQ(made.of_node[n], p);
    nodes += partition.nodes.size();
    sum_ns += partition.predicted_ns;
  }
  EXPECT_EQ(nodes, graph.nodes.size());
  EXPECT_NEAR(made.predicted_ns, sum_ns, 1e-6 * sum_ns);
  for (ir::NodeId n = 0; n < graph.nodes.size(); ++n) {
    for (const ir::ValueId v : graph.nodes[n].operands) {
      if (v == ir::kNone || graph.values[v].producer == ir::kNone) continue;
      EXPECT_LE(made.of_node[graph.values[v].producer], made.of_node[n]);
    }
  }
  EXPECT_LT(assignment_cost_ns(graph, targets, options, labels_of(made)), kInfinite);
}

// No path between two nodes of a partition leaves it.
void expect_convex(const ir::Graph& graph, const Cut& made) {
  for (std::uint32_t p = 0; p < made.partitions.size(); ++p) {
    std::vector<bool> left(graph.nodes.size(), false);  // reached from p through another one
    for (ir::NodeId n = 0; n < graph.nodes.size(); ++n) {
      for (const ir::ValueId v : graph.nodes[n].operands) {
        if (v == ir::kNone || graph.values[v].producer == ir::kNone) continue;
        const ir::NodeId producer = graph.values[v].producer;
        const bool from_outside = left[producer];
        if (made.of_node[n] == p) {
          EXPECT_FALSE(from_outside) << "partition " << p << ", node " << n;
        } else if (from_outside || made.of_node[producer] == p) {
          left[n] = true;
        }
      }
    }
  }
}

class RandomProblem {
 public:
  explicit RandomProblem(unsigned seed) : random_(seed) {}

  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(random_() % bound); }
  bool chance(double share) { return below(1000) < share * 1000; }
  double between(double low, double high) { return low + (high - low) * below(1000) / 1000; }

  ir::Graph make_graph(std::uint32_t node_count) {
    ir::Graph graph;
    for (int i = 0; i < 3; ++i) {
      graph.add_input("in" + std::to_string(i), square(16 << below(5)));
      graph.values.back().is_static = i == 2;
    }
    std::vector<ir::ValueId> values = graph.inputs;
    const auto any_value = [&] {
      const auto count = static_cast<std::uint32_t>(values.size());
      return values[chance(0.6) ? count - 1 - below(std::min(count, 4u)) : below(count)];
    };
    for (std::uint32_t i = 0; i < node_count; ++i) {
      const std::int64_t size = 16 << below(5);
      if (chance(0.2)) {
        values.push_back(add_op(graph, "aten.view", {any_value()}, size));
      } else if (chance(0.1)) {
        const ir::NodeId node = graph.add_node(ir::find_op("aten.native_dropout"), {any_value()},
                                               {}, {square(size), square(size)});
        for (const ir::ValueId v : graph.nodes[node].results) values.push_back(v);
      } else {
        constexpr std::string_view kOps[] = {"aten.mm", "aten.add.Tensor", "aten.mul.Tensor"};
        values.push_back(add_op(graph, kOps[below(3)], {any_value(), any_value()}, size));
      }
      if (chance(0.1)) graph.outputs.push_back(values.back());
    }
    graph.outputs.push_back(values.back());
    return graph;
  }

  Target make_target(const ir::Graph& graph, double atomic_share, double launch_ns) {
    const auto count = static_cast<std::uint32_t>(graph.nodes.size());
    Target target;
    target.name = "random";
    target.model.flops_per_s = between(1e10, 1e13);
    target.model.memory_bytes_per_s = between(1e10, 1e12);
    if (!chance(0.2)) target.model.to_device_bytes_per_s = between(1e9, 5e10);
    if (!chance(0.2)) target.model.from_device_bytes_per_s = between(1e9, 5e10);
    target.model.copy_latency_ns = between(0, 10000);
    target.model.launch_latency_ns = launch_ns;
    const std::uint32_t claims = 1 + below(3);
    for (std::uint32_t i = 0; i < claims; ++i) {
      Claim claim;
      const double share = between(0.3, 1);
      for (ir::NodeId n = 0; n < count; ++n) {
        if (chance(share)) claim.nodes.push_back(n);
      }
      claim.estimated = chance(0.5);
      claim.launch_ns = launch_ns;
      claim.time_ns = launch_ns + between(0, 6000) * static_cast<double>(claim.nodes.size());
      target.claims.push_back(std::move(claim));
    }
    while (chance(atomic_share) && target.claims.size() < 8) {
      Claim claim;
      claim.divisible = false;
      const std::uint32_t first = below(count);
      for (ir::NodeId n = first; n < std::min(count, first + 2 + below(3)); ++n) {
        claim.nodes.push_back(n);
      }
      claim.estimated = true;
      claim.launch_ns = launch_ns;
      claim.time_ns = launch_ns + between(0, 5000);
      target.claims.push_back(std::move(claim));
    }
    return target;
  }

 private:
  std::mt19937 random_;
};

// The cheapest of all assignments, by trying each.
double brute_force_ns(const Model& model) {
  std::vector<std::vector<TargetId>> choices(model.node_count, {kHost});
  for (ir::NodeId n = 0; n < model.node_count; ++n) {
    for (TargetId t = 0; t < model.target_count(); ++t) {
      if (std::isfinite(model.target_ns[t][n])) choices[n].push_back(t);
    }
  }
  std::vector<std::size_t> at(model.node_count, 0);
  Labels labels(model.node_count, kHost);
  double best_ns = kInfinite;
  for (;;) {
    best_ns = std::min(best_ns, model.assignment_ns(labels));
    std::size_t n = 0;
    while (n < model.node_count && ++at[n] == choices[n].size()) {
      at[n] = 0;
      labels[n++] = kHost;
    }
    if (n == model.node_count) return best_ns;
    labels[n] = choices[n][at[n]];
  }
}

struct Ratios {
  double worst = 1;
  int count = 0, exact = 0;
};

Ratios compare_with_brute_force(int first_seed, int count, std::uint32_t target_count,
                                std::uint32_t max_nodes, double atomic_share) {
  Ratios ratios;
  for (int seed = first_seed; seed < first_seed + count; ++seed) {
    RandomProblem random(static_cast<unsigned>(seed));
    const ir::Graph graph = random.make_graph(2 + random.below(max_nodes - 1));
    std::vector<Target> targets;
    for (std::uint32_t t = 0; t < target_count; ++t) {
      targets.push_back(random.make_target(graph, atomic_share, 0));
    }
    const Options options = plain_options(random.chance(0.3));
    Result<Cut> made = cut(graph, targets, options);
    EXPECT_TRUE(made.ok());
    if (!made.ok()) continue;
    expect_sound(graph, targets, options, *made);
    const double got = assignment_cost_ns(graph, targets, options, labels_of(*made));
    const Model model = build_model(graph, targets, options, {});
    EXPECT_EQ(got, model.assignment_ns(labels_of(*made)));
    const double best = brute_force_ns(model);
    // Claimed nodes that no plugin can have count for themselves, not in the ratio.
    const double leaving =
        options.prefer_plugin ? std::floor(best / model.leave_ns) * model.leave_ns : 0;
    const double ratio =
        best - leaving > 1e-6 ? (got - leaving) / (best - leaving) : 1 + (got - leaving);
    EXPECT_GE(ratio, 1 - 1e-9) << "seed " << seed;
    EXPECT_LE(ratio, 1.05) << "seed " << seed;
    ratios.worst = std::max(ratios.worst, ratio);
    ratios.exact += ratio < 1 + 1e-9 ? 1 : 0;
    ++ratios.count;
  }
  std::printf("%u target(s), %g atomic: worst ratio %.6f, %d of %d exact\n", target_count,
              atomic_share, ratios.worst, ratios.exact, ratios.count);
  return ratios;
}

TEST(PartitionBruteForceTest, OneTargetIsOptimal) {
  EXPECT_LE(compare_with_brute_force(0, 200, 1, 12, 0).worst, 1 + 1e-9);
}

TEST(PartitionBruteForceTest, OneTargetWithAtomicClaimsIsOptimal) {
  EXPECT_LE(compare_with_brute_force(1000, 200, 1, 12, 0.5).worst, 1 + 1e-9);
}

TEST(PartitionBruteForceTest, TwoTargetsAreNearlyOptimal) {
  compare_with_brute_force(2000, 200, 2, 10, 0);
}

TEST(PartitionBruteForceTest, TwoTargetsWithAtomicClaimsAreNearlyOptimal) {
  compare_with_brute_force(3000, 200, 2, 10, 0.5);
  compare_with_brute_force(42900, 100, 2, 9, 0.5);  // seed 42959 needs an atomic claim given up
}

Claim claim_of(std::vector<ir::NodeId> nodes, bool divisible = true) {
  Claim claim;
  claim.nodes = std::move(nodes);
  claim.divisible = divisible;
  return claim;
}

TEST(PartitionBruteForceTest, ThreeTargetsAreNearlyOptimal) {
  compare_with_brute_force(5000, 100, 3, 7, 0.5);
}

TEST(PartitionTest, WithoutTargetsTheHostTakesAll) {
  ir::Graph graph;
  ir::ValueId v = graph.add_input("a", square(64));
  for (int i = 0; i < 3; ++i) v = add_op(graph, "aten.relu", {v});
  graph.outputs = {v};
  const Options options = plain_options(true);
  Result<Cut> made = cut(graph, {}, options);
  ASSERT_TRUE(made.ok());
  ASSERT_EQ(made->partitions.size(), 1u);
  EXPECT_EQ(made->partitions[0].target, kHost);
  EXPECT_EQ(made->predicted_transfer_ns, 0);
  EXPECT_NEAR(made->predicted_ns, 3 * (3000 + 2 * 64 * 64 * 4 / 20.0), 1e-6);
}

TEST(PartitionTest, EmptyGraphHasNoPartitions) {
  ir::Graph graph;
  graph.outputs = {graph.add_input("a", square(64))};
  Result<Cut> made = cut(graph, {target_with({})}, plain_options(true));
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE(made->partitions.empty());
  EXPECT_EQ(made->predicted_ns, 0);
}

// a -> b (host) -> d and a -> c -> d: one group of a, c and d would wait for itself.
TEST(PartitionTest, DiamondAroundAHostNodeGivesTwoPluginPartitions) {
  ir::Graph graph;
  const ir::ValueId x = graph.add_input("x", square(64));
  const ir::ValueId a = add_op(graph, "aten.relu", {x});
  const ir::ValueId b = add_op(graph, "aten.relu", {a});
  const ir::ValueId c = add_op(graph, "aten.relu", {a});
  graph.outputs = {add_op(graph, "aten.add.Tensor", {b, c})};
  const std::vector<Target> targets = {target_with({claim_of({0, 2, 3})})};
  const Options options = plain_options(true);
  Result<Cut> made = cut(graph, targets, options);
  ASSERT_TRUE(made.ok());
  expect_sound(graph, targets, options, *made);
  expect_convex(graph, *made);
  EXPECT_EQ(count_of(*made, 0), 2u);
  EXPECT_EQ(count_of(*made, kHost), 1u);
  EXPECT_NE(made->of_node[0], made->of_node[3]);
}

TEST(PartitionTest, IndependentBranchesShareALaunch) {
  ir::Graph graph;
  const ir::ValueId x = graph.add_input("x", square(64));
  // Two branches of plugin, host, plugin: two launches suffice.
  std::vector<ir::NodeId> claimed;
  for (int branch = 0; branch < 2; ++branch) {
    ir::ValueId v = x;
    for (int i = 0; i < 3; ++i) {
      if (i != 1) claimed.push_back(static_cast<ir::NodeId>(graph.nodes.size()));
      v = add_op(graph, "aten.relu", {v});
    }
    graph.outputs.push_back(v);
  }
  const std::vector<Target> targets = {target_with({claim_of(claimed)})};
  Result<Cut> made = cut(graph, targets, plain_options(true));
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(count_of(*made, 0), 2u);
  EXPECT_EQ(count_of(*made, kHost), 1u);
}

TEST(PartitionTest, PredictionsAddComputeLaunchAndTransfers) {
  ir::Graph graph;
  const ir::ValueId x = graph.add_input("x", square(64));
  const ir::ValueId w = graph.add_input("w", square(64));
  graph.values[w].is_static = true;
  const ir::ValueId a = add_op(graph, "aten.mm", {x, w});
  graph.outputs = {add_op(graph, "aten.mm", {a, w})};
  Claim claim = claim_of({0, 1});
  claim.estimated = true;
  claim.time_ns = 3000;
  claim.launch_ns = 1000;
  const std::vector<Target> targets = {target_with({claim})};
  const Options options = plain_options(true);
  Result<Cut> made = cut(graph, targets, options);
  ASSERT_TRUE(made.ok());
  ASSERT_EQ(made->partitions.size(), 1u);
  EXPECT_NEAR(made->partitions[0].predicted_ns, 3000, 1e-6);
  // x goes there and the result comes back, both 16 KiB at 10 GB/s; the weight is resident.
  const double copies_ns = 2 * (64 * 64 * 4 / 10.0 + 5000);
  EXPECT_NEAR(made->predicted_transfer_ns, copies_ns, 1e-6);
  EXPECT_NEAR(made->predicted_ns, 3000 + copies_ns, 1e-6);
  // Without the launch, which depends on the groups.
  EXPECT_NEAR(assignment_cost_ns(graph, targets, options, {0, 0}), 2000 + copies_ns, 1e-6);
  Options paid = options;
  paid.resident_input_discount = 0.5;
  EXPECT_NEAR(assignment_cost_ns(graph, targets, paid, {0, 0}), 2000 + 1.25 * copies_ns, 1e-6);
}

TEST(PartitionTest, AValueIsCopiedOncePerDirection) {
  ir::Graph graph;
  const ir::ValueId x = graph.add_input("x", square(64));
  const ir::ValueId a = add_op(graph, "aten.relu", {x});
  for (int i = 0; i < 3; ++i) graph.outputs.push_back(add_op(graph, "aten.relu", {a}));
  graph.outputs.push_back(a);
  const std::vector<Target> targets = {target_with({claim_of({0, 1, 2, 3})}),
                                       target_with({claim_of({0, 1, 2, 3})})};
  Options options = plain_options(false);
  const double copy_ns = 64 * 64 * 4 / 10.0 + 5000;
  const auto copies = [&](const std::vector<TargetId>& labels) {
    const Model model = build_model(graph, targets, options, {});
    return model.total_transfer_ns(labels) / copy_ns;
  };
  EXPECT_NEAR(copies({kHost, kHost, kHost, kHost}), 0, 1e-9);
  EXPECT_NEAR(copies({kHost, 0, 0, kHost}), 3, 1e-9);      // a there, two results back
  EXPECT_NEAR(copies({0, kHost, kHost, kHost}), 2, 1e-9);  // x there, a back
  EXPECT_NEAR(copies({0, 1, 1, kHost}), 5, 1e-9);          // x, a back, a to the other, two results
}

TEST(PartitionTest, SharedMemoryTransfersAreFree) {
  ir::Graph graph;
  const ir::ValueId x = graph.add_input("x", square(64));
  const ir::ValueId a = add_op(graph, "aten.relu", {x});
  graph.outputs = {add_op(graph, "aten.relu", {a})};
  std::vector<Target> targets = {target_with({claim_of({0})})};
  targets[0].model.to_device_bytes_per_s = targets[0].model.from_device_bytes_per_s = 0;
  Result<Cut> made = cut(graph, targets, plain_options(true));
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(count_of(*made, 0), 1u);
  EXPECT_EQ(made->predicted_transfer_ns, 0);
}

TEST(PartitionTest, WithoutPreferenceAPluginMustPayOff) {
  ir::Graph graph;
  ir::ValueId v = graph.add_input("x", square(64));
  for (int i = 0; i < 2; ++i) v = add_op(graph, "aten.relu", {v});
  graph.outputs = {v};
  std::vector<Target> targets = {target_with({claim_of({0, 1})})};
  Result<Cut> preferred = cut(graph, targets, plain_options(true));
  ASSERT_TRUE(preferred.ok());
  EXPECT_EQ(count_of(*preferred, 0), 1u);
  // The copies cost more than the host's two passes over 32 KiB.
  Result<Cut> cheapest = cut(graph, targets, plain_options(false));
  ASSERT_TRUE(cheapest.ok());
  EXPECT_EQ(count_of(*cheapest, 0), 0u);
  // So does the launch where copies are free.
  targets[0].model.to_device_bytes_per_s = targets[0].model.from_device_bytes_per_s = 0;
  Result<Cut> launched = cut(graph, targets, plain_options(false));
  ASSERT_TRUE(launched.ok());
  EXPECT_EQ(count_of(*launched, 0), 0u);
  targets[0].model.launch_latency_ns = 0;
  Result<Cut> free = cut(graph, targets, plain_options(false));
  ASSERT_TRUE(free.ok());
  EXPECT_EQ(count_of(*free, 0), 1u);
}

// Where nothing is moved, as with tensors of no elements.
TEST(PartitionTest, APreferredPluginKeepsItsNodesWhateverALaunchTakes) {
  ir::Graph graph;
  graph.outputs = {add_op(graph, "aten.relu", {graph.add_input("x", square(0))})};
  std::vector<Target> targets = {target_with({claim_of({0})})};
  targets[0].model.launch_latency_ns = 1e9;
  const Result<Cut> kept = cut(graph, targets, plain_options(true));
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(count_of(*kept, 0), 1u);
}

TEST(PartitionTest, ViewsFollowTheirProducerOrTheirFirstUser) {
  ir::Graph graph;
  const ir::ValueId x = graph.add_input("x", square(64));
  const ir::ValueId early = add_op(graph, "aten.relu", {x});                       // 0 plugin
  const ir::ValueId on_host = add_op(graph, "aten.relu", {early});                 // 1 host
  const ir::ValueId of_input = add_op(graph, "aten.view", {x});                    // 2 used by 3
  const ir::ValueId late = add_op(graph, "aten.add.Tensor", {on_host, of_input});  // 3 plugin
  const ir::ValueId result = add_op(graph, "aten.view", {late});                   // 4
  const ir::ValueId lonely = add_op(graph, "aten.view", {x});                      // 5
  graph.outputs = {result, lonely};
  const std::vector<Target> targets = {target_with({claim_of({0, 2, 3, 4, 5})})};
  const Options options = plain_options(true);
  Result<Cut> made = cut(graph, targets, options);
  ASSERT_TRUE(made.ok());
  expect_sound(graph, targets, options, *made);
  const std::vector<TargetId> labels = labels_of(*made);
  EXPECT_EQ(labels, (std::vector<TargetId>{0, kHost, 0, 0, 0, kHost}));
  EXPECT_EQ(made->of_node[2], made->of_node[3]);
  EXPECT_EQ(made->of_node[4], made->of_node[3]);
  EXPECT_NE(made->of_node[2], made->of_node[0]);
}

TEST(PartitionTest, AtomicClaimsAreTakenWholeAndAlone) {
  ir::Graph graph;
  ir::ValueId v = graph.add_input("x", square(64));
  for (int i = 0; i < 4; ++i) v = add_op(graph, "aten.relu", {v});
  graph.outputs = {v};
  const std::vector<Target> targets = {target_with({claim_of({1, 2}, false), claim_of({0, 3})})};
  const Options options = plain_options(true);
  Result<Cut> made = cut(graph, targets, options);
  ASSERT_TRUE(made.ok());
  ASSERT_EQ(made->partitions.size(), 3u);
  EXPECT_EQ(made->partitions[1].nodes, (std::vector<ir::NodeId>{1, 2}));
  EXPECT_EQ(assignment_cost_ns(graph, targets, options, {0, 0, kHost, 0}), kInfinite);
  EXPECT_EQ(assignment_cost_ns(graph, targets, options, {0, 0, 0}), kInfinite);
  EXPECT_EQ(assignment_cost_ns(graph, targets, options, {1, 0, 0, 0}), kInfinite);
}

TEST(PartitionTest, AnAtomicClaimThatIsNotConvexIsIgnored) {
  ir::Graph graph;
  ir::ValueId v = graph.add_input("x", square(64));
  for (int i = 0; i < 3; ++i) v = add_op(graph, "aten.relu", {v});
  graph.outputs = {v};
  const std::vector<Target> targets = {target_with({claim_of({0, 2}, false)})};
  Result<Cut> made = cut(graph, targets, plain_options(true));
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(count_of(*made, 0), 0u);
}

// {a1, a2} and {b1, b2} are convex, but a1 feeds b1 and b2 feeds a2.
TEST(PartitionTest, AtomicClaimsThatWaitForEachOtherAreNotBothTaken) {
  ir::Graph graph;
  const ir::ValueId x = graph.add_input("x", square(64));
  const ir::ValueId a1 = add_op(graph, "aten.relu", {x});
  const ir::ValueId b2 = add_op(graph, "aten.relu", {x});
  graph.outputs = {add_op(graph, "aten.relu", {a1}), add_op(graph, "aten.relu", {b2})};
  const std::vector<Target> targets = {
      target_with({claim_of({0, 3}, false), claim_of({1, 2}, false)})};
  const Options options = plain_options(true);
  Result<Cut> made = cut(graph, targets, options);
  ASSERT_TRUE(made.ok());
  expect_sound(graph, targets, options, *made);
  expect_convex(graph, *made);
  EXPECT_EQ(count_of(*made, 0), 1u);
}

TEST(PartitionTest, OverlappingAtomicClaimsChooseTheLarger) {
  ir::Graph graph;
  ir::ValueId v = graph.add_input("x", square(64));
  for (int i = 0; i < 5; ++i) v = add_op(graph, "aten.relu", {v});
  graph.outputs = {v};
  const std::vector<Target> targets = {
      target_with({claim_of({0, 1}, false), claim_of({1, 2, 3}, false)})};
  Result<Cut> made = cut(graph, targets, plain_options(true));
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(labels_of(*made), (std::vector<TargetId>{kHost, 0, 0, 0, kHost}));
}

TEST(PartitionTest, SavedValuesStayWhereTheyAre) {
  ir::Graph graph;
  const ir::ValueId x = graph.add_input("x", square(64));
  const ir::ValueId a = add_op(graph, "aten.relu", {x});
  graph.values[a].is_saved = true;
  graph.outputs = {a};
  const std::vector<Target> targets = {target_with({claim_of({0})})};
  Result<Cut> made = cut(graph, targets, plain_options(true));
  ASSERT_TRUE(made.ok());
  EXPECT_NEAR(made->predicted_transfer_ns, 64 * 64 * 4 / 10.0 + 5000, 1e-6);
}

TEST(PartitionTest, InvalidClaimsAreRefused) {
  ir::Graph graph;
  graph.outputs = {add_op(graph, "aten.relu", {graph.add_input("x", square(64))})};
  Result<Cut> beyond = cut(graph, {target_with({claim_of({1})})}, plain_options(true));
  EXPECT_EQ(beyond.status().code(), Code::kInvalidArgument);
  Claim claim = claim_of({0});
  claim.estimated = true;
  claim.time_ns = std::nan("");
  Result<Cut> not_a_number = cut(graph, {target_with({claim})}, plain_options(true));
  EXPECT_EQ(not_a_number.status().code(), Code::kInvalidArgument);
}

TEST(PartitionTest, ANumberOfADeviceThatIsNoneIsNamed) {
  ir::Graph graph;
  graph.outputs = {add_op(graph, "aten.relu", {graph.add_input("x", square(64))})};
  Target target = target_with({claim_of({0})});
  target.model.launch_latency_ns = std::nan("");
  const Result<Cut> cut_up = cut(graph, {target}, plain_options(true));
  EXPECT_EQ(cut_up.status().code(), Code::kInvalidArgument);
  EXPECT_NE(cut_up.status().message().find("'" + target.name + "' says launch_latency_ns = nan"),
            std::string::npos)
      << cut_up.status().message();
}

void expect_same(const Cut& a, const Cut& b) {
  EXPECT_EQ(a.of_node, b.of_node);
  EXPECT_EQ(a.predicted_ns, b.predicted_ns);
  ASSERT_EQ(a.partitions.size(), b.partitions.size());
  for (std::size_t i = 0; i < a.partitions.size(); ++i) {
    EXPECT_EQ(a.partitions[i].target, b.partitions[i].target);
    EXPECT_EQ(a.partitions[i].nodes, b.partitions[i].nodes);
    EXPECT_EQ(a.partitions[i].predicted_ns, b.partitions[i].predicted_ns);
  }
}

TEST(PartitionRandomTest, PlansAreSoundAndDeterministic) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    RandomProblem random(seed);
    const ir::Graph graph = random.make_graph(200);
    std::vector<Target> targets;
    const std::uint32_t count = 1 + random.below(3);
    for (std::uint32_t t = 0; t < count; ++t) {
      targets.push_back(random.make_target(graph, 0.6, random.between(0, 10000)));
    }
    const Options options = plain_options(random.chance(0.5));
    SCOPED_TRACE("seed " + std::to_string(seed));
    Result<Cut> made = cut(graph, targets, options);
    ASSERT_TRUE(made.ok());
    expect_sound(graph, targets, options, *made);
    expect_convex(graph, *made);
    Result<Cut> again = cut(graph, targets, options);
    ASSERT_TRUE(again.ok());
    expect_same(*made, *again);
    for (Target& target : targets) {
      std::ranges::reverse(target.claims);
      for (Claim& claim : target.claims) std::ranges::reverse(claim.nodes);
    }
    Result<Cut> reordered = cut(graph, targets, options);
    ASSERT_TRUE(reordered.ok());
    expect_same(*made, *reordered);
  }
}

TEST(PartitionScaleTest, TenThousandNodes) {
  for (const std::uint32_t target_count : {1u, 2u}) {
    for (const bool prefer_plugin : {true, false}) {
      ir::Graph graph;
      const ir::ValueId x = graph.add_input("x", square(256));
      ir::ValueId v = x;
      std::vector<Target> targets(target_count, target_with({Claim{}}));
      constexpr std::uint32_t kNodes = 10000;
      for (std::uint32_t i = 0; i < kNodes; ++i) {
        if (i % 5 == 4) {
          v = add_op(graph, "aten.view", {v}, 256);
        } else if (i % 7 == 0) {
          v = add_op(graph, "aten.add.Tensor", {v, x}, 256);
        } else {
          v = add_op(graph, i % 2 == 0 ? "aten.mm" : "aten.relu",
                     i % 2 == 0 ? std::vector{v, v} : std::vector{v}, 256);
        }
        for (std::uint32_t t = 0; t < target_count; ++t) {
          if (i % 50 != 17 * (t + 1)) targets[t].claims[0].nodes.push_back(i);
        }
      }
      graph.outputs = {v};
      const Options options = plain_options(prefer_plugin);
      const auto begin = std::chrono::steady_clock::now();
      Result<Cut> made = cut(graph, targets, options);
      const std::chrono::duration<double, std::milli> time =
          std::chrono::steady_clock::now() - begin;
      ASSERT_TRUE(made.ok());
      expect_sound(graph, targets, options, *made);
      std::printf("%u nodes, %u target(s), prefer_plugin %d: %zu partitions in %.1f ms\n", kNodes,
                  target_count, prefer_plugin, made->partitions.size(), time.count());
    }
  }
}

TEST(PartitionTest, DrawsFromTheGeneratorKeepTheOrderOfTheGraph) {
  ir::Graph graph;
  const ir::ValueId x = graph.add_input("x", square(64));
  const ir::ValueId probability = add_op(graph, "aten.sigmoid", {x});  // node 0, on the plugin
  const ir::ValueId first = add_op(graph, "aten.bernoulli", {probability});
  const ir::ValueId second = add_op(graph, "aten.bernoulli", {x});  // could run at once
  graph.outputs = {first, second};
  Claim claim;
  claim.nodes = {0};
  const auto made = cut(graph, {target_with({claim})}, plain_options(/*prefer_plugin=*/true));
  ASSERT_TRUE(made.ok()) << made.status().message();
  ASSERT_EQ(made->partitions[made->of_node[0]].target, 0U);
  EXPECT_LE(made->of_node[1], made->of_node[2]);
}

}  // namespace
}  // namespace backplane::partition
