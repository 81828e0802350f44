#include "core/runtime/plan/fault_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/runtime/testing/checked_graph.h"

namespace backplane::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_graph::expect_right;
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

TEST(FaultSearch, ANodeThatFailsToCompileGoesBackToTheHostAndNoOther) {
  for (const char* words : {"no_relu", "no_relu names_it"}) {
    const Script script(words);
    const auto compiled = must_compile(kChain, {scripted_device()});
    ASSERT_NE(compiled, nullptr);
    EXPECT_EQ(compiled->plugin_node_count(), 2u);
    ASSERT_EQ(compiled->refusals().size(), 1u);
    EXPECT_EQ(compiled->refusals()[0].node, 1u);
    EXPECT_THAT(compiled->refusals()[0].text,
                AllOf(HasSubstr("compile failed"), HasSubstr("relu is broken today")));
    expect_right(*compiled);
    // Another device may take it.
    const auto rescued = must_compile(kChain, {scripted_device(), reference_device()});
    ASSERT_NE(rescued, nullptr);
    EXPECT_EQ(rescued->plugin_node_count(), 3u);
    expect_right(*rescued);
  }
}

TEST(FaultSearch, WhatFailedToCompileIsNotTriedAgain) {
  const Script script("no_relu");
  ASSERT_NE(must_compile(kChain, {scripted_device()}), nullptr);
  ::setenv("BACKPLANE_SCRIPTED", "", 1);  // it would compile now
  const auto again = must_compile(kChain, {scripted_device()});
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->plugin_node_count(), 2u);
  ASSERT_EQ(again->refusals().size(), 1u);
  EXPECT_THAT(again->refusals()[0].text,
              AllOf(HasSubstr("compile failed over aten.relu (node 1 of chain)"),
                    HasSubstr("relu is broken today")));
  // One of other sizes may be better; a second failure says that none is.
  constexpr std::string_view kOther = R"(
graph @other(%x: f32[5]) -> (f32[5]) {
  %0 = aten.relu(%x) : f32[5]
  return %0
})";
  EXPECT_EQ(must_compile(kOther, {scripted_device()})->plugin_node_count(), 1u);
  ::setenv("BACKPLANE_SCRIPTED", "no_relu", 1);
  EXPECT_EQ(must_compile(kOther, {scripted_device()})->plugin_node_count(), 0u);
  ::setenv("BACKPLANE_SCRIPTED", "", 1);
  constexpr std::string_view kThird = R"(
graph @third(%x: f32[6]) -> (f32[6]) {
  %0 = aten.relu(%x) : f32[6]
  return %0
})";
  EXPECT_EQ(must_compile(kThird, {scripted_device()})->plugin_node_count(), 0u);
}

TEST(FaultSearch, FormsThatAreUnsupportedSayNothingOfOthers) {
  const Script script("no_relu of_this_form");
  const auto graph_of = [](int size) {
    const std::string type = " : f32[" + std::to_string(size) + "]";
    return "graph @g(%x: f32[" + std::to_string(size) + "]) -> (f32[" + std::to_string(size) +
           "]) {\n  %0 = aten.relu(%x)" + type + "\n  return %0\n}";
  };
  for (const int size : {71, 72, 73})
    EXPECT_EQ(must_compile(graph_of(size), {scripted_device()})->plugin_node_count(), 0u);
  ::setenv("BACKPLANE_SCRIPTED", "", 1);
  EXPECT_EQ(must_compile(graph_of(72), {scripted_device()})->plugin_node_count(), 0u);
  EXPECT_EQ(must_compile(graph_of(74), {scripted_device()})->plugin_node_count(), 1u);
}

TEST(FaultSearch, NodesThatFailTogetherAreParted) {
  const Script script("no_pair");
  const auto compiled = must_compile(kChain, {scripted_device()});
  ASSERT_NE(compiled, nullptr);
  EXPECT_EQ(compiled->plugin_node_count(), 2u);
  ASSERT_EQ(compiled->refusals().size(), 1u);
  EXPECT_EQ(compiled->refusals()[0].node, 2u);
  EXPECT_THAT(compiled->refusals()[0].text,
              AllOf(HasSubstr("no neg beside a relu"), HasSubstr("by itself the node compiles")));
  expect_right(*compiled);
  EXPECT_TRUE(scripted_device()->compile_faults().is_empty());
}

TEST(FaultSearch, AClaimOfAllOrNothingGoesAsAWhole) {
  for (const char* words : {"no_relu whole", "no_relu whole names_it"}) {
    const Script script(words);
    const auto compiled = must_compile(kChain, {scripted_device()});
    ASSERT_NE(compiled, nullptr);
    EXPECT_EQ(compiled->plugin_node_count(), 0u);
    ASSERT_EQ(compiled->refusals().size(), 3u);
    for (const RefusalReport& refusal : compiled->refusals())
      EXPECT_THAT(refusal.text, HasSubstr("relu is broken today"));
    expect_right(*compiled);
  }
}

TEST(FaultSearch, OneBadNodeOfManyIsFoundInFewCompiles) {
  std::string text = "graph @long(%x: f32[4]) -> (f32[4]) {\n";
  constexpr int kNodes = 300;
  for (int i = 0; i < kNodes; ++i)
    text += "  %" + std::to_string(i) + " = " + (i == 211 ? "aten.relu" : "aten.neg") + "(" +
            (i == 0 ? "%x" : "%" + std::to_string(i - 1)) + ") : f32[4]\n";
  text += "  return %" + std::to_string(kNodes - 1) + "\n}";
  const Script script("no_relu");
  const auto compiled = must_compile(text, {scripted_device()});
  ASSERT_NE(compiled, nullptr);
  EXPECT_EQ(compiled->plugin_node_count(), 299u);
  ASSERT_EQ(compiled->refusals().size(), 1u);
  EXPECT_EQ(compiled->refusals()[0].node, 211u);
  expect_right(*compiled);
}

}  // namespace
}  // namespace backplane::runtime
