#include "core/passes/remove_noop.h"

#include "core/passes/test_support.h"

namespace backplane::passes {
namespace {

TEST(RemoveNoop, DropsViewsAndCopiesInside) {
  EXPECT_EQ(run_text("remove-noop", R"(graph @g(%x: f32[s0, 4]) -> (f32[s0, 4]) classes(s0: 2) {
  %0 = aten.alias(%x) : f32[s0, 4]
  %1 = aten.detach(%0) : f32[s0, 4]
  %2 = aten.clone(%1) : f32[s0, 4]
  %3 = aten._to_copy(%2, dtype=f32) : f32[s0, 4]
  %4 = aten.expand(%3, size=[s0, 4]) : f32[s0, 4]
  %5 = aten.slice.Tensor(%4, dim=0, start=0, end=9223372036854775807) : f32[s0, 4]
  %6 = aten.permute(%5, dims=[0, 1]) : f32[s0, 4]
  %7 = aten.relu(%6) : f32[s0, 4]
  %8 = aten.view(%7, size=[s0, 4]) : f32[s0, 4]
  return %8
}
)"),
            R"(graph @g(%x: f32[s0, 4]) -> (f32[s0, 4]) classes(s0: 2) {
  %7 = aten.relu(%x) : f32[s0, 4]
  return %7
}
)");
}

TEST(RemoveNoop, OutputsStayTensorsOfTheirOwn) {
  expect_unchanged("remove-noop",
                   R"(graph @g(%x: f32[4]) -> (f32[4], f32[4], f32[4], f32[2, 2]) {
  %0 = aten.alias(%x) : f32[4]
  %1 = aten.relu(%x) : f32[4]
  %2 = aten.detach(%1) : f32[4]
  %3 = aten.clone(%x) : f32[4]
  %4 = aten.view(%3, size=[2, 2]) : f32[2, 2]
  return %0, %1, %2, %4
}
)");
}

TEST(RemoveNoop, PaddingWithNothing) {
  EXPECT_EQ(run_text("remove-noop", R"(graph @g(%x: f32[4, 4]) -> (f32[4, 4]) {
  %0 = aten.constant_pad_nd(%x, pad=[0, 0], value=7.0) : f32[4, 4]
  %1 = aten.constant_pad_nd(%0, pad=[1, -1]) : f32[4, 4]
  return %1
}
)"),
            R"(graph @g(%x: f32[4, 4]) -> (f32[4, 4]) {
  %1 = aten.constant_pad_nd(%x, pad=[1, -1]) : f32[4, 4]
  return %1
}
)");
}

TEST(RemoveNoop, KeepsWhatChanges) {
  expect_unchanged("remove-noop",
                   R"(graph @g(%x: f32[4, 4]) -> (f32[4, 4] strides(1, 4), f32[4, 4]) {
  %0 = aten.clone(%x) : f32[4, 4] strides(1, 4)
  %1 = aten._to_copy(%0, dtype=f16) : f16[4, 4] strides(1, 4)
  %2 = aten.t(%x) : f32[4, 4] strides(1, 4)
  %3 = aten.add.Tensor(%1, %2) : f32[4, 4] strides(1, 4)
  %4 = aten._to_copy(%x, device="cuda:0") : f32[4, 4]
  %5 = aten.clone(%x) : f32[4, 4]
  %6 = custom.write(%x) : f32[]
  %7 = aten.add.Tensor(%4, %5) : f32[4, 4]
  return %3, %7
}
)");
}

}  // namespace
}  // namespace backplane::passes
