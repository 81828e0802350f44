#include "core/ir/generalize.h"

#include <gtest/gtest.h>

#include <string>

#include "core/ir/text.h"
#include "core/ir/verifier.h"

namespace backplane::ir {
namespace {

std::string number(std::int64_t value) { return std::to_string(value); }

// A view of [b, s, 8] and a product, with a bias of size s + 1 beside it.
Graph program(std::int64_t b, std::int64_t s) {
  const std::string rows = number(b * s);
  const auto graph =
      parse("graph @g(%x: f32[" + number(b) + ", " + number(s) + ", 8], %w: f32[8, 4], %e: f32[" +
            number(s + 1) + "]) -> (f32[" + rows + ", 4], f32[" + number(s + 1) +
            "]) {\n  %v = aten.view(%x, size=[" + rows + ", 8]) : f32[" + rows +
            ", 8]\n  %m = aten.mm(%v, %w) : f32[" + rows + ", 4]\n  %r = aten.relu(%e) : f32[" +
            number(s + 1) + "]\n  return %m, %r\n}\n");
  EXPECT_TRUE(graph.ok()) << graph.status().to_string();
  return *graph;
}

std::string class_text(const Graph& graph) {
  std::string text;
  for (const DimClass& c : graph.dim_classes)
    text += c.name + (c.expression.empty() ? "" : "=" + c.expression) + " ";
  return text;
}

TEST(Generalize, FindsTheSizesThatVary) {
  const Graph first = program(2, 16);
  const FlatGraph a = flatten(first), b = flatten(program(3, 18)), c = flatten(program(6, 23));
  ASSERT_EQ(a.structure, b.structure);
  const FlatGraph* samples[] = {&a, &b, &c};
  const auto general = GeneralGraph::build(first, samples);
  ASSERT_TRUE(general.ok()) << general.status().to_string();
  // Sizes of inputs are free, s + 1 too; the rest follows from them.
  EXPECT_EQ(class_text(general->graph()), "s0 s1 s2 d3=8*s1 d4=s0*s1 ");
  EXPECT_TRUE(verify(general->graph()).ok()) << verify(general->graph()).to_string();
  const auto values = general->match(flatten(program(5, 7)));
  ASSERT_TRUE(values.ok()) << values.status().to_string();
  EXPECT_EQ(*values, (std::vector<std::int64_t>{5, 7, 8}));
}

TEST(Generalize, WrongGuessIsFoundBeforeItServes) {
  // Two samples in which b and s are equal: one class, until they are not.
  const Graph first = program(2, 2);
  const FlatGraph a = flatten(first), b = flatten(program(3, 3)), c = flatten(program(4, 9));
  const FlatGraph* equal[] = {&a, &b};
  const auto guess = GeneralGraph::build(first, equal);
  ASSERT_TRUE(guess.ok());
  EXPECT_TRUE(guess->match(flatten(program(7, 7))).ok());
  const auto refused = guess->match(c);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().message(), "number 1 is 9, but class s0 gives 4");
  const FlatGraph* all[] = {&a, &b, &c};
  const auto split = GeneralGraph::build(first, all);
  ASSERT_TRUE(split.ok());
  EXPECT_TRUE(split->match(c).ok());
  EXPECT_TRUE(split->match(flatten(program(7, 5))).ok());
}

TEST(Generalize, StridesOfSizeOneSayNothing) {
  const auto graph = [](std::int64_t size, std::int64_t stride) {
    const auto parsed = parse("graph @g(%x: f32[" + number(size) + ", 4] strides(" +
                              number(stride) + ", 1)) -> (f32[" + number(size) + ", 4] strides(" +
                              number(stride) + ", 1)) {\n  return %x\n}\n");
    EXPECT_TRUE(parsed.ok()) << parsed.status().to_string();
    return *parsed;
  };
  const Graph first = graph(3, 4);
  const FlatGraph a = flatten(first), b = flatten(graph(5, 4));
  const FlatGraph* samples[] = {&a, &b};
  const auto general = GeneralGraph::build(first, samples);
  ASSERT_TRUE(general.ok());
  EXPECT_TRUE(general->match(flatten(graph(1, 77))).ok());
  EXPECT_FALSE(general->match(flatten(graph(2, 8))).ok());
}

TEST(Generalize, StridesOfSizeOneAreADenseTensors) {
  const auto row = [](std::int64_t size) {
    const std::string type = "f32[1, " + number(size) + "]";
    const auto parsed = parse("graph @g(%x: " + type + ") -> (" + type +
                              ") {\n  %y = aten.relu(%x) : " + type + "\n  return %y\n}\n");
    EXPECT_TRUE(parsed.ok()) << parsed.status().to_string();
    return *parsed;
  };
  const Graph first = row(4);
  const FlatGraph a = flatten(first), b = flatten(row(6));
  const FlatGraph* samples[] = {&a, &b};
  const auto general = GeneralGraph::build(first, samples);
  ASSERT_TRUE(general.ok());
  const Graph& graph = general->graph();
  const TensorType& type = graph.values[graph.outputs[0]].type;
  EXPECT_EQ(type.strides[0], type.dims[1]);
  EXPECT_TRUE(type.dims[1].is_class());
}

// One operator over a vector and its size.
Graph with_its_size(const std::string& op, std::int64_t size) {
  const auto parsed = parse("graph @g(%x: f32[" + number(size) + "]) -> (f32[" + number(size) +
                            "]) {\n  constant %n: f32[] = [" + number(size) + ".0]\n  %d = " + op +
                            "(%x, %n) : f32[" + number(size) + "]\n  return %d\n}\n");
  EXPECT_TRUE(parsed.ok()) << parsed.status().to_string();
  return *parsed;
}

TEST(Generalize, NumberThatVariesBecomesAnAttribute) {
  const std::pair<const char*, const char*> forms[] = {{"div", "other"}, {"fill", "value"}};
  for (const auto& [op, argument] : forms) {
    const std::string name = std::string("aten.") + op;
    const Graph first = with_its_size(name + ".Tensor", 3);
    const FlatGraph a = flatten(first), b = flatten(with_its_size(name + ".Tensor", 5));
    ASSERT_EQ(a.structure, b.structure);
    const FlatGraph* samples[] = {&a, &b};
    const auto general = GeneralGraph::build(first, samples);
    ASSERT_TRUE(general.ok()) << general.status().to_string();
    EXPECT_EQ(general->graph().nodes[0].op->name, name + ".Scalar");
    EXPECT_NE(general->graph().nodes[0].find_attribute(argument), nullptr) << name;
    EXPECT_TRUE(general->match(flatten(with_its_size(name + ".Tensor", 8))).ok());
  }
}

TEST(Generalize, NumberThatVariesStaysWhereNoOverloadTakesIt) {
  const Graph first = with_its_size("aten.clamp_min.Tensor", 3);
  const FlatGraph a = flatten(first), b = flatten(with_its_size("aten.clamp_min.Tensor", 5));
  const FlatGraph* samples[] = {&a, &b};
  EXPECT_FALSE(GeneralGraph::build(first, samples).ok());
}

TEST(Generalize, NumberThatVariesIsNoResult) {
  const auto program = [](const std::string& value) {
    const auto parsed = parse("graph @g(%x: f32[3]) -> (f32[]) {\n  constant %n: f32[] = [" +
                              value + "]\n  return %n\n}\n");
    EXPECT_TRUE(parsed.ok()) << parsed.status().to_string();
    return *parsed;
  };
  const Graph first = program("3.0");
  const FlatGraph a = flatten(first), b = flatten(program("4.0"));
  const FlatGraph* samples[] = {&a, &b};
  EXPECT_FALSE(GeneralGraph::build(first, samples).ok());
}

// Sizes of one are summed over or not as the other operand broadcasts: which dim is no size.
TEST(Generalize, AnotherDimIsAnotherProgram) {
  const auto sum = [](std::int64_t rows, std::int64_t columns, std::int64_t dim) {
    const auto parsed = parse("graph @g(%x: f32[" + number(rows) + ", " + number(columns) +
                              "]) -> (f32[1, 1]) {\n  %s = aten.sum.dim_IntList(%x, dim=[" +
                              number(dim) + "], keepdim=true) : f32[1, 1]\n  return %s\n}\n");
    EXPECT_TRUE(parsed.ok()) << parsed.status().to_string();
    return flatten(*parsed).structure;
  };
  EXPECT_NE(sum(1, 7, 1), sum(8, 1, 0));
  EXPECT_EQ(sum(1, 7, 1), sum(1, 9, 1));
}

TEST(Generalize, NoElementsAreAnotherProgram) {
  const auto relu = [](std::int64_t rows) {
    const auto parsed =
        parse("graph @g(%x: f32[" + number(rows) + ", 3]) -> (f32[" + number(rows) +
              ", 3]) {\n  %r = aten.relu(%x) : f32[" + number(rows) + ", 3]\n  return %r\n}\n");
    EXPECT_TRUE(parsed.ok()) << parsed.status().to_string();
    return flatten(*parsed).structure;
  };
  EXPECT_NE(relu(4), relu(0));
  EXPECT_EQ(relu(4), relu(1));
}

TEST(Generalize, AnotherStructureIsAnotherProgram) {
  const FlatGraph a = flatten(program(2, 3));
  Graph other = program(2, 3);
  other.outputs.pop_back();
  EXPECT_NE(a.structure, flatten(other).structure);
  Graph typed = program(2, 3);
  typed.values[typed.inputs[2]].type.dtype = DType::kFloat64;
  EXPECT_NE(a.structure, flatten(typed).structure);
}

}  // namespace
}  // namespace backplane::ir
