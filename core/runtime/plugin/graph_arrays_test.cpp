#include "core/runtime/plugin/graph_arrays.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ir/text.h"

namespace backplane::runtime {
namespace {

ir::Graph parse(std::string_view text) {
  auto graph = ir::parse(text);
  EXPECT_TRUE(graph.ok()) << graph.status().message();
  return graph.ok() ? std::move(*graph) : ir::Graph();
}

std::string text_of(bp_string text) { return {text.data, text.size}; }

TEST(GraphArrays, WholeGraph) {
  const ir::Graph graph = parse(R"(
graph @g(%x: f32[s0, 4], %w: f32[4, 4] static, %n: i64[] scalar) -> (f32[s0, 4])
    classes(s0: 3 [2, 64]) {
  %0 = aten.mm(%x, %w) : f32[s0, 4]    // model.py:7
  %1 = aten.view(%0, size=[s0, 2, -1]) : f32[s0, 2, 2]
  %2 = aten.view(%1, size=[s0, 4]) : f32[s0, 4]
  %3 = aten.add.Tensor(%2, %n, alpha=2) : f32[s0, 4]
  return %3
})");
  const GraphArrays arrays(graph);
  const bp_graph& g = arrays.get();
  ASSERT_EQ(g.node_count, 4u);
  EXPECT_EQ(g.op_count, 3u);  // each op once
  ASSERT_EQ(g.input_count, 3u);
  ASSERT_EQ(g.output_count, 1u);
  ASSERT_EQ(g.dim_class_count, 1u);
  const bp_dim_class& s0 = *bp_graph_dim_class(&g, 0);
  EXPECT_EQ(s0.min, 2);
  EXPECT_EQ(s0.max, 64);
  EXPECT_EQ(s0.hint, 3);
  EXPECT_EQ(text_of(s0.name), "s0");

  const bp_node& mm = *bp_graph_node(&g, 0);
  EXPECT_EQ(text_of(bp_graph_op(&g, mm.op)->name), "aten.mm");
  EXPECT_EQ(text_of(mm.location), "model.py:7");
  const bp_value& x = *bp_graph_value(&g, g.indices[mm.first_operand]);
  const bp_value& w = *bp_graph_value(&g, g.indices[mm.first_operand + 1]);
  EXPECT_EQ(x.producer, BP_NONE);
  EXPECT_EQ(g.dims[x.first_dim], -1);  // class 0
  EXPECT_EQ(g.dims[x.first_dim + 1], 4);
  EXPECT_EQ(g.strides[x.first_dim], 4);
  EXPECT_EQ(w.flags, BP_VALUE_STATIC);
  EXPECT_EQ(bp_graph_value(&g, g.inputs[2])->flags, BP_VALUE_HOST_SCALAR);

  const bp_node& view = *bp_graph_node(&g, 1);
  const bp_value& viewed = *bp_graph_value(&g, g.indices[view.first_result]);
  EXPECT_EQ(viewed.alias_of, g.indices[view.first_operand]);
  EXPECT_EQ(viewed.producer, 1u);
  const bp_attribute& size = *bp_graph_attribute(&g, view.first_attribute);
  EXPECT_EQ(size.kind, static_cast<bp_attribute_kind>(BP_ATTRIBUTE_INTS));
  ASSERT_EQ(size.count, 3u);
  EXPECT_EQ(size.class_flags[0], 1);
  EXPECT_EQ(size.integers[0], -1);
  EXPECT_EQ(size.class_flags[2], 0);
  EXPECT_EQ(size.integers[2], -1);  // the number, not a class
  const bp_attribute& alpha = *bp_graph_attribute(&g, bp_graph_node(&g, 3)->first_attribute);
  EXPECT_EQ(alpha.integer, 2);
  EXPECT_EQ(alpha.is_class, 0u);
}

TEST(GraphArrays, PartOfAGraphKeepsIds) {
  const ir::Graph graph = parse(R"(
graph @g(%x: f32[4]) -> (f32[4]) {
  %a = aten.neg(%x) : f32[4]
  %b = aten.relu(%a) : f32[4]
  %c = aten.add.Tensor(%b, %x) : f32[4]
  return %c
})");
  const std::vector<ir::NodeId> nodes{1, 2};
  const std::vector<ir::ValueId> inputs{graph.nodes[1].operands[0], graph.inputs[0]};
  const std::vector<ir::ValueId> outputs{graph.nodes[2].results[0]};
  const GraphArrays arrays(graph, nodes, inputs, outputs);
  const bp_graph& g = arrays.get();
  ASSERT_EQ(g.node_count, 2u);
  EXPECT_EQ(bp_graph_node(&g, 0)->id, 1u);
  EXPECT_EQ(bp_graph_value(&g, g.inputs[0])->id, inputs[0]);
  EXPECT_EQ(bp_graph_value(&g, g.inputs[0])->producer, BP_NONE);
  EXPECT_EQ(bp_graph_value(&g, g.outputs[0])->id, outputs[0]);
  EXPECT_EQ(bp_graph_value(&g, g.outputs[0])->producer, 1u);
}

TEST(GraphArrays, ConstantsListsAndAbsentOperands) {
  const ir::Graph graph = parse(R"(
graph @g(%x: f32[2], %y: f32[2]) -> (f32[6]) {
  constant %c: f32[2] = [1.0, 2.0]
  %0 = aten.cat([%x, %c, %y], dim=0) : f32[6]
  return %0
})");
  const GraphArrays arrays(graph);
  const bp_graph& g = arrays.get();
  const bp_node& cat = *bp_graph_node(&g, 0);
  EXPECT_EQ(cat.list_first, 0u);
  EXPECT_EQ(cat.list_count, 3u);
  const bp_value& c = *bp_graph_value(&g, g.indices[cat.first_operand + 1]);
  EXPECT_EQ(c.flags, BP_VALUE_CONSTANT);
  ASSERT_EQ(c.data_bytes, 8u);
  EXPECT_EQ(static_cast<const float*>(c.data)[1], 2.0f);
}

TEST(GraphArrays, EffectsOfNodes) {
  const ir::Graph graph = parse(R"(
graph @g(%x: f32[2], %m: b8[]) -> (f32[2]) {
  %0 = aten.bernoulli(%x) : f32[2]
  aten._assert_async(%m)
  return %0
})");
  const GraphArrays arrays(graph);
  EXPECT_EQ(bp_graph_node(&arrays.get(), 0)->effects, BP_EFFECT_RANDOM);
  EXPECT_EQ(bp_graph_node(&arrays.get(), 1)->effects, BP_EFFECT_MUTATES);
}

TEST(GraphArrays, ElementTypes) {
  const auto is = [](ir::DType dtype, int code, int bits) {
    const bp_dtype out = to_bp_dtype(dtype);
    return out.code == code && out.bits == bits && out.lanes == 1;
  };
  EXPECT_TRUE(is(ir::DType::kFloat16, BP_DTYPE_FLOAT, 16));
  EXPECT_TRUE(is(ir::DType::kBFloat16, BP_DTYPE_BFLOAT, 16));
  EXPECT_TRUE(is(ir::DType::kInt64, BP_DTYPE_INT, 64));
  EXPECT_TRUE(is(ir::DType::kUInt8, BP_DTYPE_UINT, 8));
  EXPECT_TRUE(is(ir::DType::kBool, BP_DTYPE_BOOL, 8));
  EXPECT_TRUE(is(ir::DType::kComplex128, BP_DTYPE_COMPLEX, 128));
}

TEST(GraphArrays, ViewsSayWhereTheyStart) {
  auto graph = ir::parse(R"(
graph @views(%x: f32[s0, 8], %y: f32[6, 4]) -> (f32[4], f32[s0, 2])
    classes(s0: 5 [2, 64]) {
  %0 = aten.select.int(%y, dim=0, index=-2) : f32[4]
  %1, %2 = aten.split.Tensor(%x, split_size=4, dim=1) : f32[s0, 4], f32[s0, 4]
  %3 = aten.slice.Tensor(%x, dim=1, start=6) : f32[s0, 2]
  %4 = aten.select.int(%x, dim=0, index=-1) : f32[8]
  %5 = aten.neg(%0) : f32[4]
  return %5, %3
})");
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  const GraphArrays arrays(*graph);
  const bp_graph& g = arrays.get();
  const auto result = [&](std::size_t node, std::size_t which = 0) -> const bp_value& {
    return *bp_graph_value(&g, g.indices[bp_graph_node(&g, node)->first_result + which]);
  };
  EXPECT_EQ(result(0).alias_of, g.inputs[1]);
  EXPECT_EQ(result(0).alias_offset, 16);
  EXPECT_EQ(result(1, 0).alias_offset, 0);
  EXPECT_EQ(result(1, 1).alias_offset, 4);
  EXPECT_EQ(result(2).alias_offset, 6);
  EXPECT_EQ(result(4).alias_of, BP_NONE);
  // The last row: a class of its own, behind the graph's.
  EXPECT_EQ(result(3).alias_offset, -2);
  ASSERT_EQ(g.dim_class_count, 2u);
  EXPECT_EQ(bp_graph_dim_class(&g, 1)->hint, 4 * 8);
  const std::int64_t sizes[] = {7};
  EXPECT_THAT(class_values_of(*graph, arrays.offsets(), sizes), ::testing::ElementsAre(7, 6 * 8));
}

}  // namespace
}  // namespace backplane::runtime
