#include "core/passes/pass.h"

#include "core/passes/test_support.h"

namespace backplane::passes {
namespace {

TEST(Pass, UnknownNamesListTheKnownOnes) {
  EXPECT_EQ(run_text("dead-code,nope", "graph @g() -> () {\n  return\n}\n"),
            "not found: No pass or pipeline is called \"nope\"; there are cse, dead-code, "
            "fold-padding, fold-views, recompose-linear, remove-noop, sum-products, canonicalize, "
            "optimize.");
}

TEST(Pass, InvalidGraphsAreRefusedBeforeAnyPass) {
  EXPECT_EQ(
      run_text("", "graph @g(%x: f32[2]) -> () {\n  %0 = aten.relu(%x) : f32[3]\n  return\n}"),
      "verify error: Node \"%0 = aten.relu(%x) : f32[3]\": Expected result shape [2], found "
      "[3].\n  while verifying the graph before any pass");
}

TEST(Pass, ObserverSeesEveryPass) {
  auto graph = ir::parse("graph @g() -> () {\n  return\n}\n");
  ASSERT_TRUE(graph.ok());
  std::string seen;
  const Status status = run_pipeline(
      *graph, "canonicalize, dead-code",
      [&](std::string_view pass, const ir::Graph&) { seen += std::string(pass) + ";"; });
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(seen, "remove-noop;recompose-linear;fold-views;remove-noop;cse;dead-code;dead-code;");
}

TEST(Pass, PassesAreSortedAndDescribed) {
  std::string_view last;
  for (const PassInfo& pass : all_passes()) {
    EXPECT_LT(last, pass.name);
    EXPECT_TRUE(pass.summary.ends_with('.'));
    last = pass.name;
  }
}

}  // namespace
}  // namespace backplane::passes
