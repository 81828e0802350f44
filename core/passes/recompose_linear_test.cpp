#include "core/passes/recompose_linear.h"

#include "core/passes/test_support.h"

namespace backplane::passes {
namespace {

TEST(RecomposeLinear, FlatWithAndWithoutBias) {
  EXPECT_EQ(run_text("recompose-linear",
                     R"(graph @g(%x: f32[s0, 8], %w: f32[4, 8] static, %b: f32[4] static)"
                     R"() -> (f32[s0, 4], f32[s0, 4], f32[s0, 4]) classes(s0: 2) {
  %0 = aten.t(%w) : f32[8, 4] strides(1, 8)
  %1 = aten.mm(%x, %0) : f32[s0, 4]
  %2 = aten.permute(%w, dims=[-1, 0]) : f32[8, 4] strides(1, 8)
  %3 = aten.addmm(%b, %x, %2, beta=1, alpha=1.0) : f32[s0, 4]    // m.py:3
  %4 = aten.expand(%b, size=[s0, 4]) : f32[s0, 4] strides(0, 1)
  %5 = aten.addmm(%4, %x, %2) : f32[s0, 4]
  return %1, %3, %5
}
)"),
            R"(graph @g(
    %x: f32[s0, 8],
    %w: f32[4, 8] static,
    %b: f32[4] static
) -> (f32[s0, 4], f32[s0, 4], f32[s0, 4]) classes(s0: 2) {
  %1 = aten.linear(%x, %w, none) : f32[s0, 4]
  %3 = aten.linear(%x, %w, %b) : f32[s0, 4]    // m.py:3
  %5 = aten.linear(%x, %w, %b) : f32[s0, 4]
  return %1, %3, %5
}
)");
}

TEST(RecomposeLinear, ViewsAroundItGo) {
  EXPECT_EQ(run_text("recompose-linear", R"(graph @g(%x: f32[s0, 3, 8], %w: f32[4, 8], %b: f32[4]))"
                                         R"( -> (f32[s0, 3, 4]) classes(s0: 2, s1 = "3*s0": 6) {
  %0 = aten.view(%x, size=[s1, 8]) : f32[s1, 8]
  %1 = aten.t(%w) : f32[8, 4] strides(1, 8)
  %2 = aten.addmm(%b, %0, %1) : f32[s1, 4]    // m.py:3
  %3 = aten.view(%2, size=[s0, 3, 4]) : f32[s0, 3, 4]
  return %3
}
)"),
            R"(graph @g(
    %x: f32[s0, 3, 8],
    %w: f32[4, 8],
    %b: f32[4]
) -> (f32[s0, 3, 4]) classes(s0: 2, s1 = "3*s0": 6) {
  %3 = aten.linear(%x, %w, %b) : f32[s0, 3, 4]    // m.py:3
  return %3
}
)");
}

TEST(RecomposeLinear, LeavesTheRest) {
  expect_unchanged("recompose-linear", R"(graph @g(
    %x: f32[2, 8],
    %w: f32[8, 4],
    %v: f32[4, 8],
    %b: f32[4],
    %g: f32[2, 4],
    %m: f32[2, 4]
) -> (f32[2, 4], f32[2, 4], f32[2, 4], f32[2, 8], f32[4, 8], f32[2, 4]) {
  %0 = aten.addmm(%b, %x, %w) : f32[2, 4]
  %1 = aten.t(%v) : f32[8, 4] strides(1, 8)
  %2 = aten.addmm(%b, %x, %1, beta=0.5) : f32[2, 4]
  %3 = aten.addmm(%b, %x, %1, alpha=2) : f32[2, 4]
  %4 = aten.t(%1) : f32[4, 8]
  %5 = aten.mm(%g, %4) : f32[2, 8]
  %6 = aten.t(%g) : f32[4, 2] strides(1, 4)
  %7 = aten.mm(%6, %x) : f32[4, 8]
  %8 = aten.addmm(%m, %x, %1) : f32[2, 4]
  return %0, %2, %3, %5, %7, %8
}
)");
}

TEST(RecomposeLinear, KeepsAFlatResultThatOthersRead) {
  expect_unchanged("recompose-linear",
                   R"(graph @g(%x: f32[2, 3, 8], %w: f32[4, 8]) -> (f32[2, 3, 4], f32[6, 4]) {
  %0 = aten.view(%x, size=[6, 8]) : f32[6, 8]
  %1 = aten.linear(%0, %w, none) : f32[6, 4]
  %2 = aten.view(%1, size=[2, 3, 4]) : f32[2, 3, 4]
  %3 = aten.relu(%1) : f32[6, 4]
  return %2, %3
}
)");
}

}  // namespace
}  // namespace backplane::passes
