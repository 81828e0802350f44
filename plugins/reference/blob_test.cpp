#include "plugins/reference/blob.h"

#include <gtest/gtest.h>
#include <backplane/sdk/testing/graph_builder.hpp>

namespace backplane::reference {
namespace {

using namespace sdk::testing;

// Who copies an attribute takes `count` of each list that is there.
TEST(Blob, AnAttributeHasTheListsOfItsKindAlone) {
  GraphBuilder g;
  const bp_dtype f32{BP_DTYPE_FLOAT, 32, 1};
  const auto a = g.input(f32, {2}), b = g.value(f32, {2});
  g.integers("dim", {0, 1, 2, 3, 4, 5});
  g.reals("scales", {0.5, 2.0});
  g.node("aten.relu", {a}, {b});
  g.output(b);
  const bp_graph graph = g.graph();
  const std::string blob = save_graph(sdk::GraphView(graph), {});
  auto loaded = load_graph(std::as_bytes(std::span(blob)));
  ASSERT_TRUE(loaded.ok());
  const std::vector<bp_attribute>& attributes = (*loaded)->attributes;
  ASSERT_EQ(attributes.size(), 2u);
  EXPECT_EQ(attributes[0].count, 6u);
  EXPECT_EQ(attributes[0].integers[5], 5);
  EXPECT_EQ(attributes[0].reals, nullptr);
  EXPECT_EQ(attributes[1].count, 2u);
  EXPECT_EQ(attributes[1].reals[1], 2.0);
  EXPECT_EQ(attributes[1].integers, nullptr);
  const sdk::OwnedGraph copy((*loaded)->graph);
  EXPECT_EQ(copy.view().raw().attribute_count, 2u);
}

}  // namespace
}  // namespace backplane::reference
