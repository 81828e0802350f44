// The plugin's whole interface, linked in and loaded from its file, with streams and without.
#include <backplane/sdk/testing/googletest.hpp>
#include <backplane/sdk/testing/library.hpp>

namespace backplane::reference {
namespace {

using namespace sdk::testing;

// Sums of the columns of relu(x), for any number of rows.
GraphBuilder column_sums() {
  GraphBuilder g;
  g.dim_class(2, 64, 8);
  const auto x = g.input(sdk::kFloat32, {-1, 2}, {2, 1});
  const auto y = g.value(sdk::kFloat32, {-1, 2}, {2, 1}), sums = g.value(sdk::kFloat32, {2});
  g.node("aten.relu", {x}, {y});
  g.integers("dim", {0});
  g.node("aten.sum.dim_IntList", {y}, {sums});
  g.output(y);
  g.output(sums);
  return g;
}
void check(Session& session, bool streamed) {
  const GraphBuilder g = column_sums();
  HostTensor x(sdk::kFloat32, {3, 2});
  x.set_values(Floats{1, -2, 3, 4, -5, 6});
  const auto results = session.run(g.graph(), {x}, {.dims = {3}, .streamed = streamed});
  EXPECT_EQ(results.at(0).values(), (Floats{1, 0, 3, 4, 0, 6}));
  EXPECT_EQ(results.at(1).values(), (Floats{4, 10}));
}

TEST(Session, LinkedIn) {
  Session session;
  check(session, false);
  ASSERT_TRUE(session.has_streams());
  check(session, true);
}
TEST(Session, FromItsFile) {
  Session session(load_plugin(BACKPLANE_REFERENCE_FILE));
  check(session, false);
  check(session, true);
}
TEST(Session, TheSmallestTableFromItsFile) {
  Session session(load_plugin(BACKPLANE_REFERENCE_MINIMAL_FILE));
  EXPECT_FALSE(session.has_streams());
  check(session, false);
}

}  // namespace
}  // namespace backplane::reference
