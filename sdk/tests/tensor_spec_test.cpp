#include <gtest/gtest.h>
#include <backplane/sdk/tensor_spec.hpp>
#include <backplane/sdk/testing/graph_builder.hpp>

namespace backplane::sdk {
namespace {

// A view that starts at [1, 2, 3] of a tensor of [2, 3, 4].
TEST(ViewOffset, FollowsTheStridesThatItsRootHasBeenGiven) {
  testing::GraphBuilder builder;
  const auto root = builder.input(kFloat32, {2, 3, 4});
  const auto part = builder.value(kFloat32, {1}, {1});
  builder.view("aten.as_strided", root, part, 12 + 2 * 4 + 3);
  builder.output(part);
  const bp_graph arrays = builder.graph();
  const GraphView graph(arrays);
  const Dims dims({});
  TensorSpec spec{kFloat32, {2, 3, 4}, {12, 4, 1}};
  EXPECT_EQ(view_offset(graph.value(part), spec, graph.value(root), dims), 23);
  spec.strides = {12, 1, 3};  // channels last
  EXPECT_EQ(view_offset(graph.value(part), spec, graph.value(root), dims), 12 + 2 + 3 * 3);
}

TEST(ViewOffset, IsAClassWhereItFollowsFromSizes) {
  testing::GraphBuilder builder;
  const auto offset = -1 - static_cast<std::int64_t>(builder.dim_class(0, 100, 5));
  const auto root = builder.input(kFloat32, {8});
  const auto part = builder.value(kFloat32, {1});
  builder.view("aten.slice.Tensor", root, part, offset);
  builder.output(part);
  const bp_graph arrays = builder.graph();
  const GraphView graph(arrays);
  const std::int64_t values[] = {7};
  EXPECT_EQ(view_offset(graph.value(part), {kFloat32, {8}, {1}}, graph.value(root), Dims(values)),
            7);
  EXPECT_TRUE(graph[0].is_view());
}

}  // namespace
}  // namespace backplane::sdk
