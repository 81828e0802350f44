// The plugin's whole interface on one graph, at two sizes.
#include <backplane/sdk/testing/session.hpp>
#include "testing/context_fixture.h"

namespace backplane::opencl {
namespace {

using namespace sdk::testing;

TEST_F(ContextTest, TheWholeInterfaceRunsAGraph) {
  GraphBuilder g;
  g.dim_class(1, 64, 8);
  const auto x = g.input(sdk::kFloat32, {-1, 2}, {2, 1}), w = g.input(sdk::kFloat32, {2, 2});
  const auto y = g.value(sdk::kFloat32, {-1, 2}, {2, 1}),
             z = g.value(sdk::kFloat32, {-1, 2}, {2, 1});
  g.node("aten.mm", {x, w}, {y});
  g.node("aten.relu", {y}, {z});
  g.output(z);
  HostTensor turn(sdk::kFloat32, {2, 2});
  turn.set_values(Floats{0, 1, 1, 0});
  Session session;
  for (const std::int64_t rows : {3, 5}) {
    HostTensor in(sdk::kFloat32, {rows, 2}), want(sdk::kFloat32, {rows, 2});
    in.set_values(Floats{1, -2});
    want.set_values(Floats{0, 1});
    for (const bool streamed : {false, true}) {
      if (streamed && !session.has_streams()) continue;
      const auto results =
          session.run(g.graph(), {in, turn}, {.dims = {rows}, .streamed = streamed});
      EXPECT_EQ(results.at(0).values(), want.values());
    }
  }
}

}  // namespace
}  // namespace backplane::opencl
