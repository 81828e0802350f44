#include "core/runtime/plan/plan_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/runtime/testing/run_graph.h"

namespace backplane::runtime {
namespace {

using testing_graph::compile;
using testing_graph::reference_device;
using testing_graph::scripted_device;

std::string plan(std::string_view text, const std::vector<Device*>& devices,
                 const CompileOptions& options = {}) {
  const auto compiled = compile(text, devices, options);
  return compiled.ok() ? (*compiled)->print_plan() : compiled.status().to_string();
}

TEST(PlanBuilder, AValueCrossesOnce) {
  // %0 goes to the host for two readers and comes out as well; %x is uploaded for two partitions.
  EXPECT_EQ(plan(R"(
graph @once(%x: f32[4]) -> (f32[4], f32[4]) {
  %0 = aten.neg(%x) : f32[4]
  %1 = test.twice(%0) : f32[4]
  %2 = test.twice(%0) : f32[4]
  %3 = aten.add.Tensor(%1, %2) : f32[4]
  %4 = aten.add.Tensor(%3, %x) : f32[4]
  return %4, %0
})",
                 {scripted_device()}),
            "plan once\n"
            "  copy %x@host -> %x@scripted:0  (input)\n"
            "  execute #0 on scripted:0: 1 nodes, 1 in, 1 out\n"
            "  copy %0@scripted:0 -> %0@host  (output)\n"
            "  aten %1 = test.twice(%0) : f32[4]\n"
            "  aten %2 = test.twice(%0) : f32[4]\n"
            "  copy %1@host -> %1@scripted:0  (fallback)\n"
            "  copy %2@host -> %2@scripted:0  (fallback)\n"
            "  execute #1 on scripted:0: 2 nodes, 3 in, 1 out\n"
            "  copy %4@scripted:0 -> %4@host  (output)\n");
}

TEST(PlanBuilder, ResultsStayOnTheDeviceBetweenPartitions) {
  EXPECT_EQ(plan(R"(
graph @stay(%x: f32[4], %y: f32[4]) -> (f32[4]) {
  %0 = aten.neg(%x) : f32[4]
  %1 = aten.relu(%x) : f32[4]
  %2 = test.twice(%0) : f32[4]
  %3 = aten.add.Tensor(%2, %1) : f32[4]
  return %3
})",
                 {scripted_device()}),
            "plan stay\n"
            "  copy %x@host -> %x@scripted:0  (input)\n"
            "  execute #0 on scripted:0: 2 nodes, 1 in, 2 out\n"
            "  copy %0@scripted:0 -> %0@host  (fallback)\n"
            "  aten %2 = test.twice(%0) : f32[4]\n"
            "  copy %2@host -> %2@scripted:0  (fallback)\n"
            "  execute #1 on scripted:0: 1 nodes, 2 in, 1 out\n"
            "  copy %3@scripted:0 -> %3@host  (output)\n");
}

TEST(PlanBuilder, ViewsThatEndUnalignedAreMadeByTheReader) {
  // %a starts at byte 64: bound in place. %u starts at byte 20: bound as %0, with the view inside.
  EXPECT_EQ(plan(R"(
graph @aligned(%x: f32[4, 16], %z: f32[4, 5]) -> (f32[16], f32[5]) {
  %a = aten.select.int(%x, dim=0, index=1) : f32[16]
  %0 = aten.neg(%a) : f32[16]
  %u = aten.select.int(%z, dim=0, index=1) : f32[5]
  %1 = aten.neg(%u) : f32[5]
  return %0, %1
})",
                 {scripted_device()}),
            "plan aligned\n"
            "  copy %x@host -> %x@scripted:0  (input)\n"
            "  copy %z@host -> %z@scripted:0  (input)\n"
            "  execute #0 on scripted:0: 3 nodes, 2 in, 2 out\n"
            "  copy %0@scripted:0 -> %0@host  (output)\n"
            "  copy %1@scripted:0 -> %1@host  (output)\n");
}

TEST(PlanBuilder, NodesThatNobodyNeedsAreNotRun) {
  EXPECT_EQ(plan(R"(
graph @dead(%x: f32[4]) -> (f32[4]) {
  %0 = test.twice(%x) : f32[4]
  %1 = aten.neg(%0) : f32[4]
  return %0
})",
                 {scripted_device()}),
            "plan dead\n"
            "  aten %0 = test.twice(%x) : f32[4]\n");
}

TEST(PlanBuilder, WeightsStayUnpackedWhenAsked) {
  constexpr std::string_view kText = R"(
graph @weight(%x: f32[2, 4], %w: f32[4, 4] static) -> (f32[2, 4]) {
  %0 = aten.mm(%x, %w) : f32[2, 4]
  return %0
})";
  Device* device = reference_device();
  ASSERT_NE(device, nullptr);
  CompileOptions options;
  const auto resident = [&]() -> std::uint64_t {
    const auto compiled = compile(kText, {device}, options);
    if (!compiled.ok()) return 0;
    testing_graph::Inputs inputs = testing_graph::Inputs::random((*compiled)->graph());
    const std::uint64_t before = PackCache::instance().resident_bytes();
    EXPECT_TRUE(testing_graph::call(**compiled, inputs).ok());
    return PackCache::instance().resident_bytes() - before;
  };
  EXPECT_EQ(resident(), 128u);  // in panels of eight columns
  options.pack_weights = false;
  EXPECT_EQ(resident(), 64u);
}

TEST(PlanBuilder, OnHostMemoryADeviceReadsWhatAnotherOneBroughtThere) {
  const testing_graph::Script script("host_memory");
  Device* host = scripted_device("scripted_serial");
  ASSERT_NE(host, nullptr);
  if (!host->binds_host_memory()) GTEST_SKIP() << "the plugin was loaded before";
  EXPECT_EQ(plan(R"(
graph @shared(%x: f32[4, 4], %y: f32[4, 4]) -> (f32[4, 4]) {
  %0 = aten.neg(%x) : f32[4, 4]
  %1 = aten.mm(%0, %y) : f32[4, 4]
  %2 = aten.neg(%1) : f32[4, 4]
  return %2
})",
                 {host, reference_device()}),
            "plan shared\n"
            "  execute #0 on scripted_serial:0: 1 nodes, 1 in, 1 out\n"
            "  copy %0@host -> %0@reference:0  (fallback)\n"
            "  copy %y@host -> %y@reference:0  (input)\n"
            "  execute #1 on reference:0: 1 nodes, 2 in, 1 out\n"
            "  copy %1@reference:0 -> %1@host  (fallback)\n"
            "  execute #2 on scripted_serial:0: 1 nodes, 1 in, 1 out\n");
}

TEST(PlanBuilder, OnlyViewsNeedNoPlan) {
  EXPECT_EQ(plan(R"(
graph @views(%x: f32[4, 5]) -> (f32[5, 4] strides(1, 5)) {
  %0 = aten.t(%x) : f32[5, 4] strides(1, 5)
  return %0
})",
                 {scripted_device()}),
            "plan views\n");
}

}  // namespace
}  // namespace backplane::runtime
