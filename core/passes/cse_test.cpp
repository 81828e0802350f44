#include "core/passes/cse.h"

#include "core/passes/test_support.h"

namespace backplane::passes {
namespace {

TEST(Cse, MergesEqualChains) {
  EXPECT_EQ(run_text("cse", R"(graph @g(%x: f32[4]) -> (f32[4]) {
  %0 = aten.add.Scalar(%x, other=1.5) : f32[4]
  %1 = aten.relu(%0) : f32[4]
  %2 = aten.add.Scalar(%x, other=1.5) : f32[4]
  %3 = aten.relu(%2) : f32[4]
  %4 = aten.mul.Tensor(%1, %3) : f32[4]
  return %4
}
)"),
            R"(graph @g(%x: f32[4]) -> (f32[4]) {
  %0 = aten.add.Scalar(%x, other=1.5) : f32[4]
  %1 = aten.relu(%0) : f32[4]
  %4 = aten.mul.Tensor(%1, %1) : f32[4]
  return %4
}
)");
}

TEST(Cse, KeepsDrawsAttributesAndOutputs) {
  expect_unchanged("cse", R"(graph @g(%x: f32[4]) -> (f32[4], f32[4], f32[2, 2]) {
  %0 = aten.rand_like(%x) : f32[4]
  %1 = aten.rand_like(%x) : f32[4]
  %2 = aten.add.Scalar(%0, other=0.0) : f32[4]
  %3 = aten.add.Scalar(%0, other=-0.0) : f32[4]
  %4 = aten.add.Scalar(%0, other=0) : f32[4]
  %5 = aten.cat([%1, %2, %3, %4], dim=0) : f32[16]
  %6 = aten.relu(%x) : f32[4]
  %7 = aten.relu(%x) : f32[4]
  %8 = aten.relu(%x) : f32[4]
  %9 = aten.view(%8, size=[2, 2]) : f32[2, 2]
  %10 = custom.use(%5) : f32[4]
  return %6, %7, %9
}
)");
}

TEST(Cse, AnOutputMayReplaceAnInnerValue) {
  EXPECT_EQ(run_text("cse", R"(graph @g(%x: f32[4]) -> (f32[4], f32[4]) {
  %0 = aten.relu(%x) : f32[4]
  %1 = aten.neg(%0) : f32[4]
  %2 = aten.relu(%x) : f32[4] saved
  return %2, %1
}
)"),
            R"(graph @g(%x: f32[4]) -> (f32[4], f32[4]) {
  %0 = aten.relu(%x) : f32[4] saved
  %1 = aten.neg(%0) : f32[4]
  return %0, %1
}
)");
}

}  // namespace
}  // namespace backplane::passes
