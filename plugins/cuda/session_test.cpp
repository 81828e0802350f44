// The plugin's whole interface on one graph, at two sizes.
#include <backplane/sdk/testing/googletest.hpp>
#include "testing/context_fixture.h"

namespace backplane::cuda {
namespace {

using namespace sdk::testing;

TEST_F(ContextTest, TheWholeInterfaceRunsAGraph) {
  Session session;
  expect_runs_a_graph(session);
}

}  // namespace
}  // namespace backplane::cuda
