#include "core/runtime/plugin/claims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/runtime/testing/run_graph.h"

namespace backplane::runtime {
namespace {

using ::testing::ElementsAre;
using testing_graph::reference_device;
using testing_graph::scripted_device;

TEST(Claims, WhatADeviceTakesAndWhy) {
  const auto graph = ir::parse(R"(
graph @g(%x: f32[4]) -> (f32[4]) {
  %0 = aten.neg(%x) : f32[4]
  %1 = test.twice(%0) : f32[4]
  %2 = aten.relu(%1) : f32[4]
  return %2
})");
  ASSERT_TRUE(graph.ok());
  Device* device = scripted_device();
  ASSERT_NE(device, nullptr);
  const GraphArrays arrays(*graph);
  const auto target = query_claims(*device, *graph, arrays);
  ASSERT_TRUE(target.ok()) << target.status().message();
  EXPECT_EQ(target->name, "scripted");
  ASSERT_EQ(target->claims.size(), 1u);
  EXPECT_THAT(target->claims[0].nodes, ElementsAre(0, 2));
  EXPECT_TRUE(target->claims[0].divisible);
  EXPECT_FALSE(target->claims[0].estimated);
  ASSERT_EQ(target->refusals.size(), 1u);
  EXPECT_EQ(target->refusals[0].node, 1u);
  EXPECT_EQ(target->refusals[0].text, "no kernel for test.twice");
  // Nothing said about the link: a guess, not "shares the host's memory".
  EXPECT_GT(target->model.to_device_bytes_per_s, 0);
}

TEST(Claims, WhatBelongsToTheHostIsNotTheDevices) {
  auto graph = ir::parse(R"(
graph @g(%x: f32[4]) -> (f32[4]) {
  %0 = aten.neg(%x) : f32[4]
  %1 = aten.relu(%0) : f32[4]
  return %1
})");
  ASSERT_TRUE(graph.ok());
  graph->nodes[0].host_reason = "a number that is no f32";
  Device* device = scripted_device();
  ASSERT_NE(device, nullptr);
  const GraphArrays arrays(*graph);
  const auto target = query_claims(*device, *graph, arrays);
  ASSERT_TRUE(target.ok()) << target.status().message();
  ASSERT_EQ(target->claims.size(), 1u);
  EXPECT_THAT(target->claims[0].nodes, ElementsAre(1));
  ASSERT_EQ(target->refusals.size(), 1u);
  EXPECT_EQ(target->refusals[0].node, 0u);
  EXPECT_EQ(target->refusals[0].text, "a number that is no f32");
}

TEST(Claims, TheModelOfTheDevice) {
  const auto graph = ir::parse("graph @g(%x: f32[4]) -> (f32[4]) {\n  return %x\n}");
  ASSERT_TRUE(graph.ok());
  Device* device = reference_device();
  ASSERT_NE(device, nullptr);
  const GraphArrays arrays(*graph);
  const auto target = query_claims(*device, *graph, arrays);
  ASSERT_TRUE(target.ok()) << target.status().message();
  EXPECT_TRUE(target->claims.empty());
  EXPECT_EQ(target->model.flops_per_s, 2e9);  // of f32
  EXPECT_EQ(target->model.memory_bytes_per_s, 4e9);
  EXPECT_EQ(target->model.copy_latency_ns, 2000);
  EXPECT_EQ(target->model.launch_latency_ns, 5000);
}

TEST(Claims, APluginWithoutKernelsRefusesEverything) {
  const auto graph = ir::parse(R"(
graph @g(%x: f32[4]) -> (f32[4]) {
  %0 = aten.neg(%x) : f32[4]
  return %0
})");
  ASSERT_TRUE(graph.ok());
  Plugin* plugin = testing_graph::load_for_good(std::string(BACKPLANE_TESTING_PLUGINS_DIR) +
                                                "/libbackplane_good.so");
  ASSERT_NE(plugin, nullptr);
  const auto device = plugin->device(0);
  ASSERT_TRUE(device.ok());
  const GraphArrays arrays(*graph);
  const auto target = query_claims(**device, *graph, arrays);
  ASSERT_TRUE(target.ok());
  EXPECT_TRUE(target->claims.empty());
  ASSERT_EQ(target->refusals.size(), 1u);
  EXPECT_EQ(target->refusals[0].text, "this plugin computes nothing");
}

}  // namespace
}  // namespace backplane::runtime
