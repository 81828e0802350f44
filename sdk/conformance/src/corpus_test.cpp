#include "sdk/conformance/src/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace backplane::conformance {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(Corpus, ReadsCases) {
  const auto found = parse_corpus(
      "case gather/f32/0\n"
      "range -1.5 2\n"
      "values 0 1 1\n"
      "sizes s0=7 s1=9\n"
      "graph @g(%0: f32[s0, 5], %1: i64[3, 5]) -> (f32[3, 5]) classes(s0: 4 [2, inf]) {\n"
      "  %2 = aten.gather(%0, %1, dim=0) : f32[3, 5]\n"
      "  return %2\n"
      "}\n"
      "end\n"
      "case empty/f32/0\n"
      "values\n"
      "graph @g(%0: i64[0]) -> (i64[0]) {\n"
      "  %1 = aten.neg(%0) : i64[0]\n"
      "  return %1\n"
      "}\n"
      "end\n");
  ASSERT_TRUE(found.ok()) << found.status().message();
  ASSERT_EQ(found->size(), 2u);
  const CorpusGraph& first = found->front();
  EXPECT_EQ(first.name, "gather/f32/0");
  EXPECT_EQ(first.recipes[0].low, -1.5);
  EXPECT_EQ(first.recipes[0].high, 2);
  EXPECT_THAT(first.recipes[1].values, ElementsAre(0, 1, 1));
  EXPECT_THAT(first.sizes, ElementsAre(ElementsAre(Pair("s0", 7), Pair("s1", 9))));
  const auto graph = first.graph();
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  EXPECT_EQ(graph->nodes.size(), 1u);
  EXPECT_TRUE(found->back().graph().ok());
}

TEST(Corpus, SaysWhatIsWrong) {
  EXPECT_THAT(parse_corpus("range 0 1\n").status().message(), HasSubstr("begin with a case"));
  EXPECT_THAT(parse_corpus("case x\nrange 2 1\n").status().message(),
              HasSubstr("x: \"range 2 1\""));
  EXPECT_THAT(parse_corpus("case x\nvalues 1 two\n").status().message(), HasSubstr("values 1 two"));
  EXPECT_THAT(parse_corpus("case x\nsizes s0\n").status().message(), HasSubstr("NAME=SIZE"));
  const auto short_of_inputs = parse_corpus(
      "case x\n"
      "graph @g(%0: f32[2]) -> (f32[2]) {\n  %1 = aten.neg(%0) : f32[2]\n  return %1\n}\nend\n");
  ASSERT_TRUE(short_of_inputs.ok());
  EXPECT_THAT(short_of_inputs->front().graph().status().message(),
              HasSubstr("has 1 inputs and 0 recipes"));
}

}  // namespace
}  // namespace backplane::conformance
