#include "core/ir/graph.h"

#include <gtest/gtest.h>

#include "core/ir/cost.h"
#include "core/ir/text.h"
#include "core/ir/verifier.h"

namespace backplane::ir {
namespace {

Graph must_parse(const std::string& text) {
  auto graph = parse(text);
  EXPECT_TRUE(graph.ok()) << graph.status().message();
  return graph.ok() ? std::move(*graph) : Graph();
}

TensorType vector_type(std::int64_t size) { return {DType::kFloat32, {size}, {1}}; }

TEST(Types, Names) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(find_dtype(dtype_name(dtype)), dtype);
    EXPECT_GT(dtype_bytes(dtype), 0);
    EXPECT_EQ(is_float(dtype) + is_complex(dtype) + is_integer(dtype) + (dtype == DType::kBool), 1);
  }
  EXPECT_EQ(find_dtype("f33"), std::nullopt);
  EXPECT_EQ(contiguous_strides({2, 1, 0, 3}), (std::vector<std::int64_t>{3, 3, 3, 1}));
}

TEST(Graph, NamesAreMadeUnique) {
  Graph graph;
  graph.add_input("x", vector_type(2));
  graph.add_input("x", vector_type(2));
  graph.add_input("0", vector_type(2));
  const NodeId node =
      graph.add_node(find_op("aten.aminmax"), {0}, {}, {vector_type(2), vector_type(2)});
  graph.add_node(find_op("aten.relu"), {0}, {}, {vector_type(2)}, "x");
  EXPECT_EQ(graph.values[1].name, "x_1");
  EXPECT_EQ(graph.values[graph.nodes[node].results[0]].name, "1");
  EXPECT_EQ(graph.values[graph.nodes[node].results[1]].name, "2");
  EXPECT_EQ(graph.values.back().name, "x_2");
  EXPECT_TRUE(verify(graph).ok());
}

TEST(Graph, AddNodeFindsTheOperandList) {
  Graph graph;
  for (int i = 0; i < 4; ++i) graph.add_input("", vector_type(2));
  graph.add_node(find_op("aten.index_put"), {0, kNone, 1, 2}, {}, {vector_type(2)});
  EXPECT_EQ(graph.nodes[0].list_first, 1u);
  EXPECT_EQ(graph.nodes[0].list_count, 2u);
  EXPECT_TRUE(verify(graph).ok());
}

TEST(Graph, EliminateDeadKeepsEffects) {
  Graph graph = must_parse(R"(graph @g(%x: f32[4], %y: f32[4]) -> (f32[4]) {
  constant %c: f32[4] = [0.0, 0.0, 0.0, 0.0]
  constant %d: f32[4] = [1.0, 0.0, 0.0, 0.0]
  %0 = aten.add.Tensor(%x, %c) : f32[4]
  %1 = aten.neg(%0) : f32[4]
  %2, %3 = aten.native_dropout(%y, p=0.5, train=true) : f32[4], b8[4]
  %4 = aten.mul.Tensor(%x, %d) : f32[4]
  %5 = custom.print(%4) : f32[4]
  %6 = aten.relu(%y) : f32[4]
  return %6
}
)");
  EXPECT_EQ(graph.eliminate_dead(), 2u);
  EXPECT_EQ(print(graph), R"(graph @g(%x: f32[4], %y: f32[4]) -> (f32[4]) {
  constant %d: f32[4] = [1.0, 0.0, 0.0, 0.0]
  %2, %3 = aten.native_dropout(%y, p=0.5, train=true) : f32[4], b8[4]
  %4 = aten.mul.Tensor(%x, %d) : f32[4]
  %5 = custom.print(%4) : f32[4]
  %6 = aten.relu(%y) : f32[4]
  return %6
}
)");
  EXPECT_TRUE(verify(graph).ok());
  EXPECT_EQ(graph.eliminate_dead(), 0u);
}

TEST(Graph, UsersAndReplacement) {
  Graph graph = must_parse(R"(graph @g(%x: f32[4]) -> (f32[4], f32[4]) {
  %a = aten.relu(%x) : f32[4]
  %b = aten.add.Tensor(%a, %a) : f32[4]
  return %a, %b
}
)");
  EXPECT_EQ(graph.users()[1], (std::vector<NodeId>{1}));
  graph.replace_all_uses(1, 0);
  EXPECT_EQ(graph.nodes[1].operands, (std::vector<ValueId>{0, 0}));
  EXPECT_EQ(graph.outputs[0], 0u);
}

Work work_of(const std::string& inputs, const std::string& node) {
  const Graph graph =
      must_parse("graph @g(" + inputs + ") -> () classes(s0: 4) {\n  " + node + "\n  return\n}\n");
  EXPECT_TRUE(verify(graph).ok()) << verify(graph).message();
  return graph.nodes.empty() ? Work() : node_work(graph, 0);
}

TEST(Cost, Classes) {
  const Work mm = work_of("%a: f32[s0, 8], %b: f32[8, 16]", "%0 = aten.mm(%a, %b) : f32[s0, 16]");
  EXPECT_EQ(mm.flops, 2.0 * 4 * 16 * 8);
  EXPECT_EQ(mm.read_bytes, 4 * (4 * 8 + 8 * 16));
  EXPECT_EQ(mm.written_bytes, 4 * 4 * 16);
  EXPECT_EQ(work_of("%c: f32[16], %a: f32[s0, 8], %b: f32[8, 16]",
                    "%0 = aten.addmm(%c, %a, %b) : f32[s0, 16]")
                .flops,
            2.0 * 4 * 16 * 8);
  const Work view = work_of("%a: f32[2, 8]", "%0 = aten.view(%a, size=[16]) : f32[16]");
  EXPECT_EQ(view.flops + static_cast<double>(view.read_bytes + view.written_bytes), 0);
  EXPECT_EQ(work_of("%a: f32[1, 3, 8, 8], %w: f32[6, 3, 3, 3]",
                    "%0 = aten.convolution(%a, %w, none, transposed=false) : f32[1, 6, 6, 6]")
                .flops,
            2.0 * 6 * 36 * 27);
  EXPECT_EQ(work_of("%a: f32[1, 3, 8, 8], %w: f32[3, 6, 3, 3]",
                    "%0 = aten.convolution(%a, %w, none, transposed=true) : f32[1, 6, 10, 10]")
                .flops,
            2.0 * 3 * 64 * 54);
  EXPECT_EQ(work_of("%g: f32[1, 6, 6, 6], %a: f32[1, 3, 8, 8], %w: f32[6, 3, 3, 3]",
                    "%0, %1, %2 = aten.convolution_backward(%g, %a, %w, transposed=false, "
                    "output_mask=[false, true, false]) : f32[0], f32[6, 3, 3, 3], f32[0]")
                .flops,
            2.0 * 6 * 36 * 27);
  EXPECT_EQ(work_of("%a: f32[8, 8]", "%0 = aten.sum(%a) : f32[]").flops, 64);
  const Work lookup =
      work_of("%t: f32[1000, 8], %i: i64[2]", "%0 = aten.embedding(%t, %i) : f32[2, 8]");
  EXPECT_EQ(lookup.read_bytes, 2 * 8 * 4 + 2 * 8);
}

}  // namespace
}  // namespace backplane::ir
