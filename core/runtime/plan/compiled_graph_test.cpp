#include "core/runtime/plan/compiled_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "core/runtime/testing/checked_graph.h"
#include "core/runtime/testing/run_graph.h"

namespace backplane::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_graph::call;
using testing_graph::Classes;
using testing_graph::compile;
using testing_graph::copies;
using testing_graph::evaluate;
using testing_graph::expect_right;
using testing_graph::Floats;
using testing_graph::Inputs;
using testing_graph::must_compile;
using testing_graph::reference_device;
using testing_graph::Script;
using testing_graph::scripted_device;

constexpr std::string_view kChain = R"(
graph @chain(%x: f32[4], %y: f32[4]) -> (f32[4]) {
  %0 = aten.add.Tensor(%x, %y) : f32[4]
  %1 = aten.relu(%0) : f32[4]
  %2 = aten.neg(%1) : f32[4]
  return %2
})";

constexpr std::string_view kSplit = R"(
graph @split(%x: f32[4], %w: f32[4] static) -> (f32[4]) {
  %0 = aten.mul.Tensor(%x, %w) : f32[4]
  %1 = test.twice(%0) : f32[4]
  %2 = aten.add.Tensor(%1, %w) : f32[4]
  return %2
})";

TEST(CompiledGraph, WholeGraphOnOneDevice) {
  Device* device = reference_device();
  const auto compiled = must_compile(kChain, {device});
  ASSERT_NE(compiled, nullptr);
  ASSERT_EQ(compiled->partitions().size(), 1u);
  EXPECT_EQ(compiled->partitions()[0]->device, "reference:0");
  EXPECT_EQ(compiled->plugin_node_count(), 3u);
  EXPECT_EQ(compiled->fallback_node_count(), 0u);
  EXPECT_TRUE(compiled->refusals().empty());
  EXPECT_GT(compiled->compile_ns(), 0);
  device->counters().reset();
  expect_right(*compiled);
  EXPECT_EQ(copies(*device), "to: input 2x32; from: output 1x16");
}

TEST(CompiledGraph, WithoutDevicesEverythingFallsBack) {
  const auto compiled = must_compile(kChain, {});
  ASSERT_NE(compiled, nullptr);
  EXPECT_EQ(compiled->fallback_node_count(), 3u);
  expect_right(*compiled);
}

TEST(CompiledGraph, SplitByAnOpNobodyClaims) {
  Device* device = reference_device();
  const auto compiled = must_compile(kSplit, {device});
  ASSERT_NE(compiled, nullptr);
  EXPECT_EQ(compiled->print_plan(),
            "plan split\n"
            "  copy %x@host -> %x@reference:0  (input)\n"
            "  execute #0 on reference:0: 1 nodes, 2 in, 1 out\n"
            "  copy %0@reference:0 -> %0@host  (fallback)\n"
            "  aten %1 = test.twice(%0) : f32[4]\n"
            "  copy %1@host -> %1@reference:0  (fallback)\n"
            "  execute #1 on reference:0: 1 nodes, 2 in, 1 out\n"
            "  copy %2@reference:0 -> %2@host  (output)\n");
  ASSERT_EQ(compiled->refusals().size(), 1u);
  EXPECT_EQ(compiled->refusals()[0].node, 1u);
  EXPECT_EQ(compiled->refusals()[0].device, "reference:0");
  EXPECT_THAT(compiled->refusals()[0].text, HasSubstr("test.twice"));
  Inputs inputs = Inputs::random(compiled->graph());
  const auto expected = evaluate(compiled->graph(), inputs);
  device->counters().reset();
  for (int i = 0; i < 3; ++i) {
    int fallback_nodes = 0;
    const auto found = call(*compiled, inputs, {}, &fallback_nodes);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(*found, *expected);
    EXPECT_EQ(fallback_nodes, 1);
  }
  EXPECT_EQ(copies(*device),
            "to: input 3x48, weight 1x16, fallback 3x48; from: output 3x48, fallback 3x48");
}

TEST(CompiledGraph, ViewsAsOutputs) {
  for (Device* device : {reference_device(), scripted_device()}) {
    const auto compiled = must_compile(R"(
graph @views(%x: f32[4, 6]) ->
    (f32[6], f32[6, 4] strides(1, 6), f32[4, 3] strides(6, 1), f32[4, 6]) {
  %row = aten.select.int(%x, dim=0, index=2) : f32[6]
  %0 = aten.neg(%x) : f32[4, 6]
  %t = aten.t(%0) : f32[6, 4] strides(1, 6)
  %s = aten.slice.Tensor(%0, dim=1, start=2, end=5) : f32[4, 3] strides(6, 1)
  return %row, %t, %s, %0
})",
                                       {device});
    ASSERT_NE(compiled, nullptr);
    ASSERT_EQ(compiled->exports().size(), 2u);  // %x and %0
    EXPECT_EQ(compiled->exports()[0].source, CompiledGraph::Source::kInput);
    EXPECT_EQ(compiled->exports()[1].source, CompiledGraph::Source::kPlugin);
    device->counters().reset();
    expect_right(*compiled);
    EXPECT_EQ(copies(*device), "to: input 1x96; from: output 1x96");
  }
}

// Offsets of 8 and 20 bytes: no device memory starts there.
constexpr std::string_view kBorders = R"(
graph @borders(%x: f32[4, 5]) -> (f32[4, 3], f32[5]) {
  %0 = aten.neg(%x) : f32[4, 5]
  %h = test.twice(%0) : f32[4, 5]
  %s = aten.slice.Tensor(%0, dim=1, start=2, end=5) : f32[4, 3] strides(5, 1)
  %hs = aten.slice.Tensor(%h, dim=1, start=1, end=4) : f32[4, 3] strides(5, 1)
  %1 = aten.add.Tensor(%s, %hs) : f32[4, 3]
  %r = aten.select.int(%0, dim=0, index=1) : f32[5]
  %xr = aten.select.int(%x, dim=0, index=3) : f32[5]
  %2 = aten.add.Tensor(%r, %xr) : f32[5]
  return %1, %2
})";

TEST(CompiledGraph, ViewsAcrossBorders) {
  for (Device* device : {reference_device(), scripted_device()}) {
    const auto compiled = must_compile(kBorders, {device});
    ASSERT_NE(compiled, nullptr);
    EXPECT_EQ(compiled->fallback_node_count(), 1u);
    expect_right(*compiled);
  }
}

TEST(CompiledGraph, ViewsAcrossBordersOfSeveralDevices) {
  // The copies between them go over the host.
  const auto compiled =
      must_compile(kBorders, {scripted_device(), reference_device(0, "reference_minimal")});
  ASSERT_NE(compiled, nullptr);
  expect_right(*compiled);
}

TEST(CompiledGraph, ADeviceThatTakesNoViews) {
  const Script script("no_views");
  const auto compiled = must_compile(kBorders, {scripted_device()});
  ASSERT_NE(compiled, nullptr);
  // What needs an unaligned view runs on the host; the rest stays.
  EXPECT_GE(compiled->plugin_node_count(), 1u);
  expect_right(*compiled);
  const auto between = must_compile(R"(
graph @between(%x: f32[4, 5]) -> (f32[5, 4] strides(1, 5)) {
  %0 = aten.neg(%x) : f32[4, 5]
  %t = aten.t(%0) : f32[5, 4] strides(1, 5)
  %1 = aten.relu(%t) : f32[5, 4] strides(1, 5)
  return %1
})",
                                    {scripted_device()});
  ASSERT_NE(between, nullptr);
  EXPECT_EQ(between->plugin_node_count(), 2u);
  expect_right(*between);
}

TEST(CompiledGraph, OutputsThatAreInputsOrConstants) {
  Device* device = reference_device();
  const auto compiled = must_compile(R"(
graph @border(%x: f32[2], %y: f32[2]) -> (f32[2], f32[2], f32[2], f32[2], f32[2]) {
  constant %c: f32[2] = [1.0, 2.0]
  %0 = aten.add.Tensor(%x, %c) : f32[2]
  return %x, %c, %0, %0, %y
})",
                                     {device});
  ASSERT_NE(compiled, nullptr);
  ASSERT_EQ(compiled->exports().size(), 4u);
  EXPECT_EQ(compiled->exports()[1].source, CompiledGraph::Source::kConstant);
  device->counters().reset();
  expect_right(*compiled);
  EXPECT_EQ(copies(*device), "to: input 1x8; from: output 1x8");
}

TEST(CompiledGraph, ViewsOfConstants) {
  const auto compiled = must_compile(R"(
graph @constant(%x: f32[2]) -> (f32[2], f32[2]) {
  constant %c: f32[2, 2] = [1.0, 2.0, 3.0, 4.0]
  %r = aten.select.int(%c, dim=0, index=1) : f32[2]
  %0 = aten.add.Tensor(%x, %r) : f32[2]
  %1 = test.twice(%r) : f32[2]
  return %0, %1
})",
                                     {scripted_device()});
  ASSERT_NE(compiled, nullptr);
  expect_right(*compiled);
}

TEST(CompiledGraph, NoNodesAtAll) {
  const auto compiled =
      must_compile("graph @id(%x: f32[2]) -> (f32[2]) {\n  return %x\n}", {reference_device()});
  ASSERT_NE(compiled, nullptr);
  expect_right(*compiled);
}

TEST(CompiledGraph, UnusedResults) {
  Device* device = scripted_device();
  const auto compiled = must_compile(R"(
graph @unused(%x: f32[2]) -> (f32[2]) {
  %0 = aten.neg(%x) : f32[2]
  %1 = aten.relu(%x) : f32[2]
  %2 = test.twice(%0) : f32[2]
  %3 = aten.neg(%2) : f32[2]
  return %0
})",
                                     {device});
  ASSERT_NE(compiled, nullptr);
  device->counters().reset();
  expect_right(*compiled);
  const auto reduced = must_compile(R"(
graph @unused_of_two(%x: f32[2, 3]) -> (i64[2]) {
  %0, %1 = aten.max.dim(%x, dim=1) : f32[2], i64[2]
  return %1
})",
                                    {reference_device()});
  ASSERT_NE(reduced, nullptr);
  EXPECT_THAT(reduced->print_plan(), HasSubstr("1 nodes, 1 in, 1 out"));
}

TEST(CompiledGraph, EmptyAndScalarTensors) {
  for (Device* device : {reference_device(), scripted_device()}) {
    const auto compiled = must_compile(R"(
graph @empty(%x: f32[0, 3], %a: f32[], %w: f32[0] static) -> (f32[0, 3], f32[], f32[0], f32[0]) {
  %0 = aten.neg(%x) : f32[0, 3]
  %h = test.twice(%0) : f32[0, 3]
  %1 = aten.add.Tensor(%h, %x) : f32[0, 3]
  %2 = aten.neg(%a) : f32[]
  %3 = aten.neg(%w) : f32[0]
  %s = aten.select.int(%0, dim=1, index=2) : f32[0] strides(3)
  %4 = aten.relu(%s) : f32[0]
  return %1, %2, %3, %4
})",
                                       {device});
    ASSERT_NE(compiled, nullptr);
    expect_right(*compiled);
  }
}

TEST(CompiledGraph, HostScalarsAreBoundByValue) {
  for (Device* device : {reference_device(), scripted_device()}) {
    const auto compiled = must_compile(R"(
graph @scalar(%x: f32[3], %a: f32[] scalar) -> (f32[3]) {
  %0 = aten.mul.Tensor(%x, %a) : f32[3]
  return %0
})",
                                       {device});
    ASSERT_NE(compiled, nullptr);
    device->counters().reset();
    for (unsigned seed = 1; seed < 4; ++seed) expect_right(*compiled, {}, seed);
    EXPECT_EQ(copies(*device), "to: input 3x36; from: output 3x36");
  }
}

constexpr std::string_view kDynamic = R"(
graph @dynamic(%x: f32[s0, 4], %y: f32[s1, 4]) -> (f32[s0, 4], f32[4]) classes(s0: 3, s1: 5) {
  %0 = aten.neg(%x) : f32[s0, 4]
  %1 = test.twice(%0) : f32[s0, 4]
  %2 = aten.add.Tensor(%1, %x) : f32[s0, 4]
  %r = aten.select.int(%y, dim=0, index=-1) : f32[4]
  %3 = aten.relu(%r) : f32[4]
  return %2, %3
})";

TEST(CompiledGraph, SeveralSizesThroughOneGraph) {
  for (Device* device : {reference_device(), scripted_device()}) {
    const auto compiled = must_compile(kDynamic, {device});
    ASSERT_NE(compiled, nullptr);
    for (const std::int64_t s0 : {2, 9, 4, 2, 30})
      for (const std::int64_t s1 : {7, 2}) expect_right(*compiled, {s0, s1});
  }
}

TEST(CompiledGraph, APlanIsOfItsSizes) {
  const auto compiled = must_compile(kDynamic, {reference_device()});
  ASSERT_NE(compiled, nullptr);
  const Classes small{2, 3}, large{20, 30};
  const auto first = compiled->plan(small), other = compiled->plan(large);
  ASSERT_TRUE(first.ok() && other.ok());
  EXPECT_EQ((*first)->class_values, small);
  EXPECT_NE((*first)->slot_bytes, (*other)->slot_bytes);
}

TEST(CompiledGraph, WrongSizesAreRefused) {
  const auto compiled = must_compile(kDynamic, {reference_device()});
  ASSERT_NE(compiled, nullptr);
  EXPECT_EQ(compiled->plan(Classes{2}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(compiled->plan(Classes{2, -1}).status().code(), Code::kInvalidArgument);
  const std::vector<std::int64_t> x{3, 5}, y{3, 4};
  const std::vector<std::span<const std::int64_t>> dims{x, y};
  Classes values(2);
  const Status status = compiled->dim_program().evaluate(dims, {}, values);
  EXPECT_THAT(status.message(), HasSubstr("differs from the constant 4"));
}

TEST(CompiledGraph, AWeightOfDynamicSizeIsNoPack) {
  // A position embedding: what is read of the weight follows the call's sizes.
  for (Device* device : {reference_device(), scripted_device()}) {
    const auto compiled = must_compile(R"(
graph @positions(%x: f32[s0, 4], %w: f32[16, 4] static) -> (f32[s0, 4], f32[4])
    classes(s0: 3 [2, 16], s1 = "s0-1": 2) {
  %p = aten.slice.Tensor(%w, dim=0, start=0, end=s0) : f32[s0, 4]
  %0 = aten.add.Tensor(%x, %p) : f32[s0, 4]
  %l = aten.select.int(%w, dim=0, index=s1) : f32[4]
  %1 = aten.neg(%l) : f32[4]
  return %0, %1
})",
                                       {device});
    ASSERT_NE(compiled, nullptr);
    device->counters().reset();
    Inputs weights = Inputs::random(compiled->graph(), {16, 15});
    for (const std::int64_t s0 : {3, 16, 2, 9}) {
      Inputs inputs = Inputs::random(compiled->graph(), {s0, s0 - 1});
      inputs.memory[1].swap(weights.memory[1]);
      const auto expected = evaluate(compiled->graph(), inputs, {s0, s0 - 1});
      const auto found = call(*compiled, inputs, {s0, s0 - 1});
      ASSERT_TRUE(found.ok()) << found.status().message();
      EXPECT_EQ(*found, *expected) << s0;
      inputs.memory[1].swap(weights.memory[1]);
    }
    EXPECT_THAT(copies(*device), HasSubstr("weight 1x256"));
  }
}

TEST(CompiledGraph, AFallbackReadsAPackedWeightToo) {
  const auto compiled = must_compile(R"(
graph @both(%w: f32[4] static) -> (f32[4], f32[4]) {
  %0 = aten.neg(%w) : f32[4]
  %1 = test.twice(%w) : f32[4]
  return %0, %1
})",
                                     {reference_device()});
  ASSERT_NE(compiled, nullptr);
  expect_right(*compiled);
}

TEST(CompiledGraph, PacksFollowTheWeight) {
  Device* device = reference_device();
  const auto compiled = must_compile(R"(
graph @linear(%x: f32[2, 4], %w: f32[3, 4] static) -> (f32[2, 3]) {
  %t = aten.t(%w) : f32[4, 3] strides(1, 4)
  %0 = aten.mm(%x, %t) : f32[2, 3]
  return %0
})",
                                     {device});
  ASSERT_NE(compiled, nullptr);
  Inputs inputs = Inputs::random(compiled->graph());
  const auto run = [&] {
    const auto expected = evaluate(compiled->graph(), inputs);
    const auto found = call(*compiled, inputs);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(*found, *expected);
  };
  device->counters().reset();
  for (int i = 0; i < 3; ++i) run();
  const auto weights = [&] {
    return device->counters().to_device_count[static_cast<std::size_t>(CopyCause::kWeight)].load();
  };
  EXPECT_EQ(weights(), 1u);
  inputs.memory[1][5] += 1;
  ++inputs.versions[1];
  for (int i = 0; i < 3; ++i) run();
  EXPECT_EQ(weights(), 2u);
  inputs.memory[1][0] += 1;  // a write that the version does not count
  for (int i = 0; i < 3; ++i) run();
  EXPECT_EQ(weights(), 3u);
  Inputs moved = inputs;  // other memory
  inputs = std::move(moved);
  run();
}

TEST(CompiledGraph, TwoGraphsShareAPackAndReleaseIt) {
  Device* device = reference_device();
  const std::uint64_t before = PackCache::instance().resident_bytes();
  const std::uint64_t live = device->counters().live_bytes.load();
  {
    auto first = must_compile(kSplit, {device});
    auto second = must_compile(kSplit, {device});
    ASSERT_NE(first, nullptr);
    ASSERT_NE(second, nullptr);
    Inputs inputs = Inputs::random(first->graph());
    device->counters().reset();
    ASSERT_TRUE(call(*first, inputs).ok());
    ASSERT_TRUE(call(*second, inputs).ok());
    EXPECT_THAT(copies(*device), HasSubstr("weight 1x16"));
    EXPECT_EQ(PackCache::instance().resident_bytes(), before + 16);
    first.reset();
    EXPECT_EQ(PackCache::instance().resident_bytes(), before + 16);
  }
  EXPECT_EQ(PackCache::instance().resident_bytes(), before);
  EXPECT_EQ(device->counters().live_bytes.load(), live);
}

TEST(CompiledGraph, AStalePackGoesBeforeItsSuccessorComes) {
  Device* device = scripted_device();
  const auto compiled = must_compile(R"(
graph @big(%w: f32[1000] static) -> (f32[1000]) {
  %0 = aten.neg(%w) : f32[1000]
  return %0
})",
                                     {device});
  ASSERT_NE(compiled, nullptr);
  Inputs inputs = Inputs::random(compiled->graph());
  ASSERT_TRUE(call(*compiled, inputs).ok());
  device->counters().reset();
  const std::uint64_t live = device->counters().live_bytes.load();
  ++inputs.versions[0];
  ASSERT_TRUE(call(*compiled, inputs).ok());
  EXPECT_EQ(device->counters().peak_bytes.load(), live);
}

TEST(CompiledGraph, SeveralThreadsAtOnce) {
  for (Device* device :
       {reference_device(), scripted_device(), scripted_device("scripted_serial")}) {
    const auto compiled = must_compile(kDynamic, {device});
    const auto weighted = must_compile(kSplit, {device});
    ASSERT_NE(compiled, nullptr);
    ASSERT_NE(weighted, nullptr);
    compiled->set_timing(true);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (unsigned i = 0; i < 10; ++i) {
          expect_right(*compiled, {2 + t % 3 + i % 2, 4}, t);
          expect_right(*weighted, {}, t);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(CompiledGraph, OneCallPerDeviceHoldsForEveryEntry) {
  // Compilations and calls of several graphs, on a plugin that counts who is inside.
  Device* device = scripted_device("scripted_serial");
  ASSERT_NE(device, nullptr);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto compiled = must_compile(kDynamic, {device});
      ASSERT_NE(compiled, nullptr);
      EXPECT_EQ(compiled->fallback_node_count(), 1u);
      for (unsigned i = 0; i < 5; ++i) expect_right(*compiled, {2 + i, 4}, t);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(CompiledGraph, TwoDevicesOfOnePlugin) {
  Device* first = reference_device(0);
  Device* second = reference_device(1);
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_NE(first, second);
  const auto compiled = must_compile(kSplit, {second});
  ASSERT_NE(compiled, nullptr);
  EXPECT_EQ(compiled->partitions()[0]->device, "reference:1");
  first->counters().reset();
  second->counters().reset();
  expect_right(*compiled);
  EXPECT_EQ(copies(*first), "to:; from:");
  EXPECT_THAT(copies(*second), HasSubstr("weight 1x16"));
  const auto both = must_compile(kBorders, {first, second});
  ASSERT_NE(both, nullptr);
  expect_right(*both);
}

TEST(CompiledGraph, TwoPluginsInOneGraph) {
  // scripted has no mm, reference_minimal has no streams and no packs.
  Device* scripted = scripted_device();
  Device* minimal = reference_device(0, "reference_minimal");
  const auto compiled = must_compile(R"(
graph @two(%x: f32[4, 4], %w: f32[4, 4] static) -> (f32[4, 4], f32[4, 4]) {
  %0 = aten.mm(%x, %w) : f32[4, 4]
  %1 = test.twice(%0) : f32[4, 4]
  %2 = aten.add.Tensor(%1, %w) : f32[4, 4]
  %3 = aten.mm(%2, %0) : f32[4, 4]
  return %3, %2
})",
                                     {scripted, minimal});
  ASSERT_NE(compiled, nullptr);
  EXPECT_EQ(compiled->plugin_node_count(), 3u);
  EXPECT_EQ(compiled->refusals().size(), 2u);  // of test.twice, by both
  for (unsigned seed = 1; seed < 4; ++seed) expect_right(*compiled, {}, seed);
}

TEST(CompiledGraph, AnAnswerAgainstTheContractGoesBackToTheHost) {
  const Script script("opaque_output");
  const auto compiled = must_compile(kChain, {scripted_device()});
  ASSERT_NE(compiled, nullptr);
  EXPECT_EQ(compiled->plugin_node_count(), 0u);
  ASSERT_FALSE(compiled->refusals().empty());
  EXPECT_THAT(compiled->refusals()[0].text, HasSubstr("layout"));
  expect_right(*compiled);
}

TEST(CompiledGraph, AFailedCallNamesWhereAndTheNextOneWorks) {
  const auto compiled = must_compile(kSplit, {scripted_device()});
  ASSERT_NE(compiled, nullptr);
  expect_right(*compiled);
  {
    const Script script("execute_fails");
    Inputs inputs = Inputs::random(compiled->graph());
    const auto failed = call(*compiled, inputs);
    ASSERT_FALSE(failed.ok());
    EXPECT_THAT(failed.status().message(), AllOf(HasSubstr("'scripted'"), HasSubstr("scripted:0"),
                                                 HasSubstr("execute"), HasSubstr("asked to fail")));
  }
  expect_right(*compiled);
}

TEST(CompiledGraph, WorkThatFailsLaterNamesItsSteps) {
  const auto compiled = must_compile(kSplit, {scripted_device()});
  ASSERT_NE(compiled, nullptr);
  const auto failure = [&](const char* words) {
    const Script script(words);
    Inputs inputs = Inputs::random(compiled->graph());
    const auto failed = call(*compiled, inputs);
    EXPECT_FALSE(failed.ok());
    return failed.ok() ? std::string() : failed.status().message();
  };
  EXPECT_THAT(failure("trapped"),
              AllOf(HasSubstr("scripted:0: event_wait failed: the kernel trapped"),
                    HasSubstr("of " + compiled->graph().name + " on scripted:0: nodes ")));
  EXPECT_THAT(failure("failed_copy"),
              AllOf(HasSubstr("the bus is broken"), HasSubstr("of " + compiled->graph().name),
                    HasSubstr(", a copy of %")));
  expect_right(*compiled);
}

constexpr const char* kSmall = R"(
graph @small(%x: f32[4]) -> (f32[4]) {
  %0 = aten.neg(%x) : f32[4]
  return %0
})";

TEST(CompiledGraph, IdleArenasGiveWayToACallThatFindsNoMemory) {
  const auto large = must_compile(R"(
graph @large(%x: f32[1000]) -> (f32[1000]) {
  %0 = aten.neg(%x) : f32[1000]
  return %0
})",
                                  {scripted_device()});
  const auto small = must_compile(kSmall, {scripted_device()});
  ASSERT_TRUE(large != nullptr && small != nullptr);
  const std::uint64_t empty = scripted_device()->counters().live_bytes;
  expect_right(*large);  // keeps its arena
  EXPECT_GE(scripted_device()->counters().live_bytes, empty + 4000);
  {
    const Script script("full");
    expect_right(*small);
    EXPECT_LT(scripted_device()->counters().live_bytes, empty + 1024);
    Inputs inputs = Inputs::random(large->graph());
    const auto failed = call(*large, inputs);  // its own arena is too much: tried twice, and said
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.status().code(), Code::kOutOfMemory);
    EXPECT_THAT(failed.status().message(),
                AllOf(HasSubstr("scripted:0"), HasSubstr("the device is full")));
  }
  expect_right(*large);
}

TEST(CompiledGraph, IdleArenasGiveWayToACompileThatFindsNoMemory) {
  const auto large = must_compile(R"(
graph @large(%x: f32[1000]) -> (f32[1000]) {
  %0 = aten.neg(%x) : f32[1000]
  return %0
})",
                                  {scripted_device()});
  ASSERT_NE(large, nullptr);
  scripted_device()->trim();
  expect_right(*large);  // keeps its arena
  const Script script("full_compile");
  ASSERT_NE(must_compile(kSmall, {scripted_device()}), nullptr);
  const auto held = scripted_device()->allocate(2048);  // nobody gives that up
  ASSERT_TRUE(held.ok());
  const auto failed = compile(kSmall, {scripted_device()}, {});
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().code(), Code::kOutOfMemory);
  EXPECT_THAT(failed.status().message(),
              AllOf(HasSubstr("'scripted' (scripted:0): compile failed: no room for code"),
                    HasSubstr("scripted:0 has 2048 bytes in use")));
}

TEST(CompiledGraph, ARefusalAtExecuteSaysWhichPartition) {
  const auto compiled = must_compile(kSplit, {scripted_device()});
  ASSERT_NE(compiled, nullptr);
  const Script script("not_now");
  Inputs inputs = Inputs::random(compiled->graph());
  const auto failed = call(*compiled, inputs);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().code(), Code::kUnsupported);
  CompileOptions options;
  options.withdrawals.push_back(compiled->withdrawal_of(1, "not today"));
  const auto without = must_compile(kSplit, {scripted_device()}, options);
  ASSERT_NE(without, nullptr);
  EXPECT_EQ(without->plugin_node_count(), 1u);
  ASSERT_EQ(without->refusals().size(), 2u);
  EXPECT_EQ(without->refusals()[1].node, 2u);
  EXPECT_EQ(without->refusals()[1].text, "not today");
}

TEST(CompiledGraph, ADeviceForgetsTheArenasOfGraphsThatAreGone) {
  { expect_right(*must_compile(kSmall, {scripted_device()})); }
  const auto kept = must_compile(kSmall, {scripted_device()});
  expect_right(*kept);
  scripted_device()->trim();
  expect_right(*kept);
}

TEST(CompiledGraph, AFailedFallbackLeavesTheGraphUsable) {
  const auto compiled = must_compile(R"(
graph @fails(%x: f32[4]) -> (f32[4]) {
  %0 = aten.neg(%x) : f32[4]
  %1 = test.fails(%0) : f32[4]
  %2 = aten.neg(%1) : f32[4]
  return %2
})",
                                     {scripted_device()});
  ASSERT_NE(compiled, nullptr);
  Inputs inputs = Inputs::random(compiled->graph());
  for (int i = 0; i < 3; ++i) {
    const auto failed = call(*compiled, inputs);
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.status().message(), "the fallback was asked to fail");
  }
}

TEST(CompiledGraph, ABuildWithoutEventsDoesNotRunWithoutThem) {
  const auto compiled = must_compile(kChain, {scripted_device()});
  ASSERT_NE(compiled, nullptr);
  {
    const Script script("event_fails");
    Inputs inputs = Inputs::random(compiled->graph());
    EXPECT_THAT(call(*compiled, inputs).status().message(), HasSubstr("no events left"));
  }
  expect_right(*compiled);
}

TEST(CompiledGraph, CallsThatLackWhatThePlanNeedsAreRefused) {
  const auto compiled = must_compile(kSplit, {reference_device()});
  ASSERT_NE(compiled, nullptr);
  const auto plan = compiled->plan({});
  ASSERT_TRUE(plan.ok());
  Floats x(4), w(4), out(4);
  std::vector<void*> inputs{x.data(), w.data()}, outputs{out.data()};
  CompiledGraph::Call arguments;
  arguments.inputs = inputs;
  arguments.outputs = outputs;
  EXPECT_EQ(compiled->run(**plan, arguments).code(), Code::kInvalidArgument);  // no packs
  EXPECT_EQ(compiled->packs({}).status().code(), Code::kInvalidArgument);
  StaticTensor tensor;
  tensor.data = tensor.storage = w.data();
  std::vector<StaticTensor> tensors(compiled->packed_inputs().size(), tensor);
  const auto packs = compiled->packs(tensors);
  ASSERT_TRUE(packs.ok()) << packs.status().message();
  arguments.packs = packs->get();
  EXPECT_EQ(compiled->run(**plan, arguments).code(), Code::kUnsupported);  // no fallback
  arguments.inputs = {};
  EXPECT_EQ(compiled->run(**plan, arguments).code(), Code::kInvalidArgument);
}

TEST(CompiledGraph, TimesPartitionsWhileAsked) {
  const auto compiled = must_compile(kChain, {reference_device()});
  ASSERT_NE(compiled, nullptr);
  expect_right(*compiled);
  EXPECT_EQ(compiled->partitions()[0]->calls.load(), 1u);
  EXPECT_EQ(compiled->partitions()[0]->measured_ns.load(), 0u);
  compiled->set_timing(true);
  expect_right(*compiled);
  const std::uint64_t measured = compiled->partitions()[0]->measured_ns.load();
  EXPECT_GT(measured, 0u);
  compiled->set_timing(false);
  expect_right(*compiled);
  EXPECT_EQ(compiled->partitions()[0]->measured_ns.load(), measured);
  EXPECT_EQ(compiled->partitions()[0]->calls.load(), 3u);
}

}  // namespace
}  // namespace backplane::runtime
