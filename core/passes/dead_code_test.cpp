#include "core/passes/dead_code.h"

#include "core/passes/test_support.h"

namespace backplane::passes {
namespace {

TEST(DeadCode, DropsChainsAndKeepsDraws) {
  EXPECT_EQ(run_text("dead-code", R"(graph @g(%x: f32[4], %unused: f32[2]) -> (f32[4]) {
  constant %c: f32[] = [1.0]
  %0 = aten.add.Tensor(%x, %c) : f32[4]
  %1 = aten.neg(%0) : f32[4]
  %2 = aten.rand(size=[4]) : f32[4]
  %3 = aten.relu(%x) : f32[4]
  return %3
}
)"),
            R"(graph @g(%x: f32[4], %unused: f32[2]) -> (f32[4]) {
  %2 = aten.rand(size=[4]) : f32[4]
  %3 = aten.relu(%x) : f32[4]
  return %3
}
)");
}

}  // namespace
}  // namespace backplane::passes
