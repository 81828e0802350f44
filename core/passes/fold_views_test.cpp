#include "core/passes/fold_views.h"

#include "core/passes/test_support.h"

namespace backplane::passes {
namespace {

TEST(FoldViews, ChainsOfShapes) {
  EXPECT_EQ(run_text("fold-views", R"(graph @g(%x: f32[s0, 8]) -> (f32[1, s0, 2, 4]))"
                                   R"( classes(s0: 4, s1 = "8*s0": 32) {
  %0 = aten.view(%x, size=[s1]) : f32[s1]
  %1 = aten.unsqueeze(%0, dim=0) : f32[1, s1]
  %2 = aten._unsafe_view(%1, size=[s0, 8]) : f32[s0, 8]
  %3 = aten.squeeze(%2) : f32[s0, 8]
  %4 = aten.view(%3, size=[1, s0, 2, 4]) : f32[1, s0, 2, 4]
  return %4
}
)"),
            R"(graph @g(%x: f32[s0, 8]) -> (f32[1, s0, 2, 4]) classes(s0: 4, s1 = "8*s0": 32) {
  %4 = aten.view(%x, size=[1, s0, 2, 4]) : f32[1, s0, 2, 4]
  return %4
}
)");
}

TEST(FoldViews, ChainsOfPermutations) {
  EXPECT_EQ(
      run_text(
          "fold-views,remove-noop",
          R"(graph @g(%x: f32[2, 3, 4]) -> (f32[4, 2, 3] strides(1, 12, 4), f32[3, 2] strides(1, 3)) {
  %0 = aten.transpose.int(%x, dim0=0, dim1=-1) : f32[4, 3, 2] strides(1, 4, 12)
  %1 = aten.permute(%0, dims=[0, 2, 1]) : f32[4, 2, 3] strides(1, 12, 4)
  %2 = aten.sum.dim_IntList(%x, dim=[2]) : f32[2, 3]
  %3 = aten.t(%2) : f32[3, 2] strides(1, 3)
  %4 = aten.t(%3) : f32[2, 3]
  %5 = aten.neg(%4) : f32[2, 3]
  %6 = aten.t(%5) : f32[3, 2] strides(1, 3)
  return %1, %6
}
)"),
      R"(graph @g(%x: f32[2, 3, 4]) -> (f32[4, 2, 3] strides(1, 12, 4), f32[3, 2] strides(1, 3)) {
  %1 = aten.permute(%x, dims=[2, 0, 1]) : f32[4, 2, 3] strides(1, 12, 4)
  %2 = aten.sum.dim_IntList(%x, dim=[2]) : f32[2, 3]
  %5 = aten.neg(%2) : f32[2, 3]
  %6 = aten.t(%5) : f32[3, 2] strides(1, 3)
  return %1, %6
}
)");
}

TEST(FoldViews, OutputsKeepTheirStrides) {
  expect_unchanged("fold-views", R"(graph @g(%x: f32[4, 4]) -> (f32[1, 4, 4] strides(16, 1, 4)) {
  %0 = aten.t(%x) : f32[4, 4] strides(1, 4)
  %1 = aten.unsqueeze(%0, dim=0) : f32[1, 4, 4] strides(4, 1, 4)
  %2 = aten.view(%1, size=[1, 4, 4]) : f32[1, 4, 4] strides(16, 1, 4)
  return %2
}
)");
}

}  // namespace
}  // namespace backplane::passes
