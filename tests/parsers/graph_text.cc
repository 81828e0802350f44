// Any text: an error with a place, or a graph that prints itself again.
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/ir/text.h"
#include "core/ir/verifier.h"
#include "tests/parsers/fuzz_target.h"

BACKPLANE_FUZZ_TARGET(graph_text) {
  using namespace backplane;  // NOLINT(google-build-using-namespace)
  const Result<ir::Graph> graph = ir::parse({reinterpret_cast<const char*>(data), size});
  if (!graph.ok()) {
    if (graph.status().message().empty()) std::abort();
    return 0;
  }
  (void)ir::verify(*graph).ok();
  const std::string text = ir::print(*graph);
  const Result<ir::Graph> again = ir::parse(text);
  if (!again.ok() || ir::print(*again) != text) std::abort();
  return 0;
}
