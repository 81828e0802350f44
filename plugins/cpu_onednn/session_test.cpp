// The plugin's whole interface on one graph, at two sizes.
#include <backplane/sdk/testing/googletest.hpp>
#include <backplane/sdk/testing/library.hpp>

namespace backplane::onednn {
namespace {

using namespace sdk::testing;

TEST(Session, TheWholeInterfaceRunsAGraph) {
  // From its file: linked into a test, it would be served by another oneDNN than the one beside it.
  Session session(load_plugin(BACKPLANE_CPU_ONEDNN_FILE));
  expect_runs_a_graph(session);
}

}  // namespace
}  // namespace backplane::onednn
