#include "core/ir/text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "core/ir/verifier.h"

namespace backplane::ir {
namespace {

void expect_round_trip(const std::string& text) {
  auto graph = parse(text);
  ASSERT_TRUE(graph.ok()) << graph.status().message() << "\n" << text;
  const Status status = verify(*graph);
  EXPECT_TRUE(status.ok()) << status.message() << "\n" << text;
  EXPECT_EQ(print(*graph), text);
}

std::string parse_error(const std::string& text) {
  const auto graph = parse(text);
  return graph.ok() ? "parsed" : graph.status().message();
}

TEST(Text, RoundTripOfEveryFeature) {
  expect_round_trip(R"(graph @toy(
    %a: f32[s0, 10],
    %w: f32[10, 10] strides(1, 10) static,
    %k: f64[] scalar
) -> (f32[s0, 10], f32[s0, 10]) classes(s0: 4 [2, 4096], s1 = "10*s0": 40 [0, inf] div 10) {
  constant %c: f32[2] = [1.0, -1e-05]
  constant %h: i64[2, 1] = [3, -9223372036854775808]
  constant %b: b8[2] = [true, false]
  constant %z: c64[1] = hex"0000803f00000040"
  constant %e: f16[0] = []
  constant %big: f32[5000] = opaque(20000)
  %0 = aten.mm(%a, %w) : f32[s0, 10]    // model.py:12
  %1, %2 = aten.native_dropout(%0, p=0.5, train=true) : f32[s0, 10], b8[s0, 10]
  %3 = aten.mul.Tensor(%1, %k) : f32[s0, 10] saved
  %4 = aten.view(%3, size=[s1]) : f32[s1]
  %cat = aten.cat([%0, %1], dim=-2) : f32[s0, 20] strides(1, s0)
  %5 = aten.index.Tensor(%0, [none, %h]) : f32[2, 10]
  %6 = aten.convolution(%a, %w, none, stride=[], output_mask=bools[], scales=floats[]) : f32[3]
  %"odd name" = mylib::op(%c, none, [%b], x="a\"\\\n\x01", y=none, d=bf16, f=[0.5, inf, nan], g=[true]) : i8[]
  aten._assert_async(%b)
  return %0, %3
}
)");
  expect_round_trip("graph @empty() -> () {\n  return\n}\n");
}

TEST(Text, HandWrittenFormsAreAccepted) {
  const auto graph = parse(R"(
// A comment.
graph @g(%x: f32[s0, s1, 3]) // here too
  -> (f32[s0, s1, 3]) classes(s0: 2, s1: 5) {
  %y = aten.relu(%x)   // f.py:1
     : f32[s0, s1, 3]
  // Not a location.
  return %y
})");
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  // The stride 3*s1 needed a class of its own.
  ASSERT_EQ(graph->dim_classes.size(), 3u);
  EXPECT_EQ(graph->dim_classes[2].expression, "3*s1");
  EXPECT_EQ(graph->dim_classes[2].hint, 15);
  EXPECT_EQ(graph->nodes[0].location, "");
  expect_round_trip(print(*graph));
}

TEST(Text, ErrorsNameThePlace) {
  EXPECT_EQ(parse_error(""), "Line 1, column 1: expected \"graph\", found the end.");
  EXPECT_EQ(parse_error("graph @g(%x: q32[2]) -> () {\n  return\n}"),
            "Line 1, column 14: expected an element type such as f32, found \"q32\".");
  EXPECT_EQ(parse_error("graph @g() -> () {\n  %1 = aten.relu(%x) : f32[2]\n  return\n}"),
            "Line 2, column 18: Value %x is not defined above.");
  EXPECT_EQ(parse_error("graph @g(%x: f32[n]) -> () {\n  return\n}"),
            "Line 1, column 18: expected a number or a dim class, found \"n\".");
  EXPECT_EQ(parse_error("graph @g(%x: f32[2], %x: f32[2]) -> () {\n  return\n}"),
            "Line 1, column 22: Value %x is already defined.");
  EXPECT_EQ(parse_error("graph @g(%x: f32[2]) -> (f32[3]) {\n  return %x\n}"),
            "Line 1, column 26: Output 0 is declared f32[3], but %x is f32[2].");
  EXPECT_EQ(parse_error("graph @g(%x: f32[2]) -> () {\n  %y = aten.relu(%x)\n  return\n}"),
            "Line 3, column 3: expected \":\", found \"return\".");
  EXPECT_EQ(parse_error("graph @g() -> () {\n  constant %c: i8[1] = [300]\n  return\n}"),
            "Line 2, column 25: expected an element of type i8, found \"300\".");
  EXPECT_EQ(parse_error("graph @g() -> () {\n  return\n} x"),
            "Line 3, column 3: expected the end, found \"x\".");
}

TEST(Text, FloatsKeepEveryBit) {
  Graph graph;
  std::mt19937_64 random(7);
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    for (int i = 0; i < 2000; ++i) {
      auto data = std::make_shared<ConstantData>();
      data->bytes.resize(static_cast<std::size_t>(dtype_bytes(dtype)));
      for (auto& byte : data->bytes) byte = static_cast<std::uint8_t>(random());
      graph.add_constant("", TensorType{dtype, {}, {}}, data);
    }
  }
  const auto back = parse(print(graph));
  ASSERT_TRUE(back.ok()) << back.status().message();
  ASSERT_EQ(back->values.size(), graph.values.size());
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    ASSERT_EQ(back->values[i].constant->bytes, graph.values[i].constant->bytes) << i;
  }
}

TEST(Text, EveryHalfSurvives) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      const auto half = static_cast<std::uint16_t>(bits);
      auto data = std::make_shared<ConstantData>();
      data->bytes.resize(2);
      std::memcpy(data->bytes.data(), &half, 2);
      Graph graph;
      graph.add_constant("c", TensorType{dtype, {}, {}}, data);
      const auto back = parse(print(graph));
      ASSERT_TRUE(back.ok());
      ASSERT_EQ(back->values[0].constant->bytes, data->bytes) << bits;
    }
  }
}

class RandomGraph {
 public:
  explicit RandomGraph(std::uint32_t seed) : random_(seed) {}

  Graph make() {
    Graph graph;
    const int classes = pick(4);
    for (int i = 0; i < classes; ++i) {
      DimClass dim_class;
      dim_class.name = "s" + std::to_string(i);
      if (i > 0 && pick(2) == 0) dim_class.expression = "s0*" + std::to_string(pick(9) + 2);
      dim_class.hint = pick(100);
      if (pick(2) == 0) dim_class.max = dim_class.min + pick(1000);
      if (pick(4) == 0) dim_class.divisor = 1 + pick(8);
      graph.dim_classes.push_back(dim_class);
    }
    for (int i = pick(4); i >= 0; --i) {
      const ValueId id = graph.add_input(pick(2) == 0 ? "x" : "", type(graph));
      graph.values[id].is_static = pick(3) == 0;
      graph.values[id].is_saved = pick(5) == 0;
    }
    for (int i = pick(3); i > 0; --i) {
      auto data = std::make_shared<ConstantData>();
      const int count = pick(40);
      data->bytes.resize(static_cast<std::size_t>(count) * 4);
      for (auto& byte : data->bytes) byte = static_cast<std::uint8_t>(random_());
      graph.add_constant("c", TensorType{DType::kFloat32, {count}, {1}}, data);
    }
    const auto ops = all_ops();
    for (int i = pick(12); i > 0; --i) {
      const OpInfo* op = pick(8) == 0 ? find_or_intern_op("custom.op" + std::to_string(pick(3)))
                                      : &ops[random_() % ops.size()];
      std::vector<ValueId> operands;
      for (const OperandInfo& operand : operand_list(*op)) {
        for (int n = operand.is_list ? pick(4) : 1; n > 0; --n) {
          operands.push_back(operand.is_optional && pick(3) == 0
                                 ? kNone
                                 : static_cast<ValueId>(random_() % graph.values.size()));
        }
      }
      std::vector<Attribute> attributes;
      for (int n = pick(4); n > 0; --n) {
        attributes.push_back({"a" + std::to_string(n), attribute(graph)});
      }
      std::vector<TensorType> types;
      for (int n = pick(3); n > 0; --n) types.push_back(type(graph));
      const NodeId id = graph.add_node(op, operands, attributes, types, pick(2) == 0 ? "n" : "");
      if (pick(2) == 0) graph.nodes[id].location = "file.py:" + std::to_string(pick(100));
    }
    for (int n = pick(4); n > 0; --n) {
      graph.outputs.push_back(static_cast<ValueId>(random_() % graph.values.size()));
    }
    return graph;
  }

 private:
  int pick(int bound) { return static_cast<int>(random_() % static_cast<std::uint32_t>(bound)); }

  Dim dim(const Graph& graph) {
    if (!graph.dim_classes.empty() && pick(3) == 0) {
      return Dim::dim_class(static_cast<std::uint32_t>(random_() % graph.dim_classes.size()));
    }
    return pick(12);
  }

  TensorType type(const Graph& graph) {
    TensorType type;
    type.dtype = static_cast<DType>(pick(kDTypeCount));
    for (int rank = pick(5); rank > 0; --rank) {
      type.dims.push_back(dim(graph));
      type.strides.push_back(dim(graph));
    }
    if (pick(2) == 0) {
      std::vector<std::int64_t> dims;
      for (Dim& d : type.dims) dims.push_back(d.is_class() ? 0 : d.number());
      for (std::size_t i = 0; i < dims.size(); ++i) type.strides[i] = contiguous_strides(dims)[i];
    }
    return type;
  }

  AttributeValue attribute(const Graph& graph) {
    switch (pick(9)) {
      case 0:
        return std::monostate();
      case 1:
        return pick(2) == 0;
      case 2:
        return Dim(pick(2) == 0 ? std::numeric_limits<std::int64_t>::max() : -pick(10));
      case 3:
        return std::ldexp(static_cast<double>(pick(1000000)) / 7, pick(200) - 100);
      case 4:
        return std::string("x\"\\\n\t") + static_cast<char>(pick(256));
      case 5:
        return static_cast<DType>(pick(kDTypeCount));
      case 6:
        return std::vector<Dim>(static_cast<std::size_t>(pick(4)), dim(graph));
      case 7:
        return std::vector<double>(static_cast<std::size_t>(pick(3)), 0.1 * pick(100));
      default:
        return std::vector<bool>(static_cast<std::size_t>(pick(3)), pick(2) == 0);
    }
  }

  std::mt19937 random_;
};

TEST(Text, RandomGraphsSurvive) {
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    const std::string text = print(RandomGraph(seed).make());
    const auto graph = parse(text);
    ASSERT_TRUE(graph.ok()) << graph.status().message() << "\n" << text;
    ASSERT_EQ(print(*graph), text) << "seed " << seed;
  }
}

TEST(Text, DamagedTextNeverCrashes) {
  std::mt19937 random(3);
  for (std::uint32_t seed = 0; seed < 30; ++seed) {
    const std::string text = print(RandomGraph(seed).make());
    for (std::size_t length = 0; length < text.size(); length += 1 + random() % 7) {
      const auto graph = parse(std::string_view(text).substr(0, length));
      if (!graph.ok()) {
        EXPECT_EQ(graph.status().code(), Code::kParseError);
      }
    }
    for (int flip = 0; flip < 300; ++flip) {
      std::string damaged = text;
      for (int n = 1 + static_cast<int>(random() % 3); n > 0; --n) {
        damaged[random() % damaged.size()] =
            random() % 2 == 0 ? static_cast<char>(random()) : text[random() % text.size()];
      }
      auto graph = parse(damaged);
      if (!graph.ok()) continue;
      const std::string printed = print(*graph);
      (void)verify(*graph);
      graph->eliminate_dead();
      (void)print(*graph);
    }
  }
}

}  // namespace
}  // namespace backplane::ir
