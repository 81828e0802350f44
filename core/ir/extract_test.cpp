#include "core/ir/extract.h"

#include <gtest/gtest.h>

#include "core/ir/text.h"
#include "core/ir/view.h"

namespace backplane::ir {
namespace {

constexpr const char* kText = R"(graph @g(%x: f32[s0, 4], %w: f32[8, 4] static) -> (f32[s0, 8])
    classes(s0: 3 [2, 100]) {
  %a = aten.linear(%x, %w, none) : f32[s0, 8]
  %b = aten.relu(%a) : f32[s0, 8]
  %c = aten.view(%b, size=[s0, 8]) : f32[s0, 8]
  return %c
})";

ValueId find(const Graph& graph, std::string_view name) {
  for (ValueId v = 0; v < graph.values.size(); ++v)
    if (graph.values[v].name == name) return v;
  return kNone;
}

TEST(Extract, APartHasItsInputsAndKeepsClassesThatTheyTell) {
  auto graph = parse(kText);
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  const std::vector<NodeId> nodes = {1, 2};
  const std::vector<ValueId> in = {find(*graph, "a")}, out = {find(*graph, "c")};
  const std::vector<std::int64_t> sizes = {7};
  auto part = extract(*graph, nodes, in, out, sizes);
  ASSERT_TRUE(part.ok()) << part.status().message();
  const std::string text = print(*part);
  EXPECT_NE(text.find("%a: f32[s0, 8]"), std::string::npos) << text;
  EXPECT_EQ(hint_values(*part), sizes);
  EXPECT_EQ(text.find("linear"), std::string::npos);
  auto again = parse(text);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(print(*again), text);
}

TEST(Extract, SizesAreNumbersWhereNoInputTellsThem) {
  auto graph = parse(R"(graph @g(%x: f32[s0, 4], %y: f32[2])
    -> (f32[s0, 2] strides(0, 1))
    classes(s0: 3 [2, 100]) {
  %b = aten.expand(%y, size=[s0, 2]) : f32[s0, 2] strides(0, 1)
  return %b
})");
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  const std::vector<NodeId> nodes = {0};
  const std::vector<ValueId> in = {find(*graph, "y")}, out = {find(*graph, "b")};
  const std::vector<std::int64_t> sizes = {5};
  auto part = extract(*graph, nodes, in, out, sizes);
  ASSERT_TRUE(part.ok()) << part.status().message();
  EXPECT_NE(print(*part).find("size=[5, 2]"), std::string::npos) << print(*part);
}

TEST(Extract, WhatAnotherPartMakesIsMissing) {
  auto graph = parse(kText);
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  const std::vector<NodeId> nodes = {1};
  const std::vector<ValueId> out = {find(*graph, "b")};
  const std::vector<std::int64_t> sizes = {7};
  auto part = extract(*graph, nodes, {}, out, sizes);
  ASSERT_FALSE(part.ok());
  EXPECT_NE(part.status().message().find("%a"), std::string::npos);
}

}  // namespace
}  // namespace backplane::ir
