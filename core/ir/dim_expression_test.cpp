#include "core/ir/dim_expression.h"

#include <gtest/gtest.h>

#include "core/ir/dim_algebra.h"
#include "core/ir/text.h"

namespace backplane::ir {
namespace {

Graph graph_with(const std::string& inputs, const std::string& classes) {
  auto graph = parse("graph @g(" + inputs + ") -> () classes(" + classes + ") {\n  return\n}\n");
  EXPECT_TRUE(graph.ok()) << graph.status().message();
  return graph.ok() ? std::move(*graph) : Graph();
}

std::int64_t value_of(const std::string& expression, std::int64_t s0) {
  const Graph graph = graph_with("%x: f32[s0]", "s0: 4, r = \"" + expression + "\": 0");
  const auto program = DimProgram::build(graph, {});
  EXPECT_TRUE(program.ok()) << program.status().message();
  if (!program.ok()) return INT64_MIN;
  std::int64_t values[2] = {};
  const std::span<const std::int64_t> sizes[] = {{&s0, 1}};
  const Status status = program->evaluate(sizes, {}, values);
  return status.ok() ? values[1] : INT64_MIN;
}

TEST(DimProgram, Arithmetic) {
  EXPECT_EQ(value_of("s0*2+1", 5), 11);
  EXPECT_EQ(value_of("-s0//2", 5), -3);
  EXPECT_EQ(value_of("-s0 % 3", 5), 1);
  EXPECT_EQ(value_of("s0 - 7 // 2 - 1", 5), 1);
  EXPECT_EQ(value_of("2^s0^1", 5), 32);
  EXPECT_EQ(value_of("s0**2", 5), 25);
  EXPECT_EQ(value_of("-2^2", 5), -4);
  EXPECT_EQ(value_of("min(s0, 3, 9) + max(1, (s0))", 5), 8);
  EXPECT_EQ(value_of("s0 // (s0 - 5)", 5), INT64_MIN);
  EXPECT_EQ(value_of("s0 * 9223372036854775807", 5), INT64_MIN);
}

TEST(DimProgram, BindsChecksAndComputes) {
  const Graph graph = graph_with("%x: f32[n, 3], %y: f32[twice, n, m] strides(1, 1, 1)",
                                 "m: 2, half = \"twice//2\": 4, twice = \"2*n\": 8, n: 4, k: 1");
  const std::string integers[] = {"k"};
  const auto program = DimProgram::build(graph, integers);
  ASSERT_TRUE(program.ok()) << program.status().message();
  const auto run = [&](std::vector<std::int64_t> x, std::vector<std::int64_t> y) {
    std::vector<std::int64_t> values(5);
    const std::span<const std::int64_t> sizes[] = {x, y};
    const std::int64_t k = 9;
    const Status status = program->evaluate(sizes, {&k, 1}, values);
    if (!status.ok()) return status.message();
    std::string text;
    for (std::int64_t value : values) text += std::to_string(value) + " ";
    return text;
  };
  EXPECT_EQ(run({4, 3}, {8, 4, 7}), "7 4 8 4 9 ");
  EXPECT_EQ(run({4, 5}, {8, 4, 7}), "Size 5 at dim 1 of input %x differs from the constant 3.");
  EXPECT_EQ(run({4, 3}, {8, 5, 7}),
            "Size 5 at dim 1 of input %y differs from n = 4, dim 0 of input %x.");
  EXPECT_EQ(run({4, 3}, {9, 4, 7}), "Dim class twice is 9, but 2*n is 8 at these sizes.");
  EXPECT_EQ(run({4}, {8, 4, 7}), "Input %x has rank 1, expected 2.");
}

TEST(DimProgram, RefusesWhatCannotBeKnown) {
  const Graph graph = graph_with("%x: f32[n]", "n: 4, u: 3, v = \"u+1\": 4");
  EXPECT_FALSE(DimProgram::build(graph, {}).ok());
  const std::string u[] = {"u"};
  EXPECT_TRUE(DimProgram::build(graph, u).ok());
  const std::string w[] = {"w"};
  EXPECT_FALSE(DimProgram::build(graph, w).ok());
  for (const char* bad :
       {"n+", "(n", "n n", "x", "min n", "min(n", "99999999999999999999", "n/2"}) {
    Graph damaged = graph;
    damaged.dim_classes[2].expression = bad;
    EXPECT_FALSE(DimProgram::build(damaged, u).ok()) << bad;
  }
  Graph deep = graph;
  deep.dim_classes[2].expression = std::string(100000, '(');
  EXPECT_FALSE(DimProgram::build(deep, u).ok());
  deep.dim_classes[2].expression = std::string(100000, '-') + "1";
  EXPECT_FALSE(DimProgram::build(deep, u).ok());
}

TEST(DimAlgebra, Products) {
  const Graph graph = graph_with("%x: f32[a, b]",
                                 "a: 2, b: 3, ab = \"a*b\": 6, q = \"ab*4\": 24, odd = \"a+1\": 3");
  const DimAlgebra algebra(graph);
  const Dim a = Dim::dim_class(0), b = Dim::dim_class(1), ab = Dim::dim_class(2),
            q = Dim::dim_class(3), odd = Dim::dim_class(4);
  const auto product = [&](std::vector<Dim> dims) { return algebra.product(dims); };
  EXPECT_EQ(product({b, 4, a}), product({q}));
  EXPECT_EQ(product({b, a}), product({ab, 1}));
  EXPECT_NE(product({odd}), product({b}));
  EXPECT_EQ(algebra.find_dim(*product({2, a, 2, b})), q);
  EXPECT_EQ(algebra.find_dim(*product({3, a})), std::nullopt);
  EXPECT_EQ(product({INT64_MAX, 2}), std::nullopt);
  const TensorType type{DType::kFloat32, {odd, a, b, 4}, {q, Dim::dim_class(9), 4, 1}};
  EXPECT_FALSE(algebra.is_row_major(type, true));
  EXPECT_EQ(algebra.row_major_dims(type.dims), std::nullopt);  // 4*b has no class
}

}  // namespace
}  // namespace backplane::ir
