#include "core/ir/verifier.h"

#include <gtest/gtest.h>

#include "core/ir/text.h"

namespace backplane::ir {
namespace {

// Of a graph with inputs %a: f32[s0, 8], %b: f32[8, 4] and one node.
std::string node_error(const std::string& node) {
  const auto graph = parse(
      "graph @g(%a: f32[s0, 8], %b: f32[8, 4], %c: f32[1, 8]) -> () classes(s0: 4, s1: 4) {\n  " +
      node + "\n  return\n}\n");
  if (!graph.ok()) return graph.status().message();
  const Status status = verify(*graph);
  if (status.ok()) return "";
  const std::string& message = status.message();
  return message.substr(message.find("\": ") + 3);
}

TEST(Verifier, ShapeRules) {
  EXPECT_EQ(node_error("%0 = aten.add.Tensor(%a, %c) : f32[s0, 8]"), "");
  EXPECT_EQ(node_error("%0 = aten.add.Tensor(%a, %c) : f32[4, 8]"),
            "Expected result shape [s0, 8], found [4, 8].");
  EXPECT_EQ(node_error("%0 = aten.add.Tensor(%a, %b) : f32[s0, 8]"),
            "The operand shape [8, 4] does not broadcast with [s0, 8].");
  EXPECT_EQ(node_error("%0 = aten.mm(%a, %b) : f32[s0, 4]"), "");
  EXPECT_EQ(node_error("%0 = aten.mm(%a, %b) : f32[s1, 4]"),
            "Expected result shape [s0, 4], found [s1, 4].");
  EXPECT_EQ(node_error("%0 = aten.mm(%b, %a) : f32[8, 8]"),
            "The factors [8, 4] and [s0, 8] do not fit.");
  EXPECT_EQ(node_error("%0 = aten.linear(%a, %c, none) : f32[s0, 1]"), "");
  EXPECT_EQ(node_error("%0 = aten.permute(%a, dims=[1, 0]) : f32[8, s0] strides(1, 8)"), "");
  EXPECT_EQ(node_error("%0 = aten.permute(%a, dims=[1, 1]) : f32[8, s0]"),
            "Its dims are no permutation of [s0, 8].");
  EXPECT_EQ(node_error("%0 = aten.t(%a) : f32[s0, 8]"),
            "Expected result shape [8, s0], found [s0, 8].");
  EXPECT_EQ(node_error("%0 = aten.view(%a, size=[8, s0]) : f32[8, s0]"), "");
  EXPECT_EQ(node_error("%0 = aten.view(%b, size=[31]) : f32[31]"),
            "A view of [8, 4] cannot have the shape [31].");
  EXPECT_EQ(node_error("%0 = aten.expand(%c, size=[s0, 8]) : f32[s0, 8] strides(0, 1)"), "");
  EXPECT_EQ(node_error("%0 = aten._softmax(%a, dim=1, half_to_float=false) : f32[8, 8]"),
            "Expected result shape [s0, 8], found [8, 8].");
}

TEST(Verifier, Operands) {
  EXPECT_EQ(node_error("%0 = aten.relu(%a, %b) : f32[s0, 8]"),
            "It has 2 operands, expected (self).");
  EXPECT_EQ(node_error("%0 = aten.relu(none) : f32[s0, 8]"), "Operand self is missing.");
  EXPECT_EQ(node_error("%0 = aten.cat(%a, %b) : f32[s0, 8]"),
            "It has 2 operands, expected (tensors[]).");
  EXPECT_EQ(node_error("%0 = aten.cat([%a, none]) : f32[s0, 8]"), "Operand tensors is missing.");
  EXPECT_EQ(node_error("%0 = custom.op(%a, none, [%b]) : f32[s0, 8]"), "");
  EXPECT_EQ(node_error("%0 = aten.relu(%a, x=1, x=2) : f32[s0, 8]"), "Attribute x is given twice.");
}

TEST(Verifier, NamesTheNode) {
  const auto graph =
      parse("graph @g(%a: f32[2]) -> () {\n  %0 = aten.relu(%a) : f32[3]\n  return\n}");
  ASSERT_TRUE(graph.ok());
  EXPECT_EQ(verify(*graph).to_string(),
            "verify error: Node \"%0 = aten.relu(%a) : f32[3]\": Expected result shape [2], found "
            "[3].");
}

class DamagedGraph : public ::testing::Test {
 protected:
  DamagedGraph() {
    auto parsed = parse(R"(graph @g(%a: f32[s0], %b: f32[s0]) -> (f32[s0]) classes(s0: 4) {
  constant %c: f32[1] = [1.0]
  %0 = aten.add.Tensor(%a, %b) : f32[s0]
  %1 = aten.mul.Tensor(%0, %c) : f32[s0]
  return %1
}
)");
    graph_ = std::move(*parsed);
    EXPECT_TRUE(verify(graph_).ok());
  }
  void expect_refused(const std::string& part) {
    const Status status = verify(graph_);
    EXPECT_EQ(status.code(), Code::kVerifyError);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
  Graph graph_;
};

TEST_F(DamagedGraph, Order) {
  std::swap(graph_.nodes[0].operands[0], graph_.nodes[1].results[0]);
  expect_refused("no result of the node");
}
TEST_F(DamagedGraph, UseBeforeDefinition) {
  graph_.nodes[0].operands[0] = graph_.nodes[1].results[0];
  expect_refused("%1 is used before it is computed.");
}
TEST_F(DamagedGraph, OperandRange) {
  graph_.nodes[0].operands[0] = 99;
  expect_refused("Operand 99 is no value.");
}
TEST_F(DamagedGraph, Names) {
  graph_.values[1].name = "a";
  expect_refused("Two values are called %a.");
}
TEST_F(DamagedGraph, Strides) {
  graph_.values[0].type.strides.clear();
  expect_refused("rank 1 but 0 strides");
}
TEST_F(DamagedGraph, DimClass) {
  graph_.values[0].type.dims[0] = Dim::dim_class(5);
  expect_refused("unknown dim class");
}
TEST_F(DamagedGraph, ConstantSize) {
  auto data = std::make_shared<ConstantData>();
  data->bytes.resize(3);
  graph_.values[2].constant = data;
  expect_refused("has 3 bytes, its type 4");
}
TEST_F(DamagedGraph, Outputs) {
  graph_.outputs.push_back(kNone);
  expect_refused("is no value");
}
TEST_F(DamagedGraph, ExpressionCycle) {
  graph_.dim_classes[0].expression = "s1+1";
  graph_.dim_classes.push_back({.name = "s1", .expression = "s0-1"});
  expect_refused("depends on itself");
}
TEST_F(DamagedGraph, HostScalarRank) {
  graph_.values[0].is_host_scalar = true;
  expect_refused("host scalar of rank 1");
}

}  // namespace
}  // namespace backplane::ir
