// The plugin's whole interface on one graph, at two sizes.
#include <backplane/sdk/testing/googletest.hpp>
#include <backplane/sdk/testing/library.hpp>

namespace backplane::onednn {
namespace {

using namespace sdk::testing;

TEST(Session, TheWholeInterfaceRunsAGraph) {
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
  // From its file: linked into a test, it would be served by another oneDNN than the one beside it.
  Session session(load_plugin(BACKPLANE_CPU_ONEDNN_FILE));
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
}  // namespace backplane::onednn
