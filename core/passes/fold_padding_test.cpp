#include "core/passes/fold_padding.h"

#include "core/passes/test_support.h"

namespace backplane::passes {
namespace {

// %x [2, 3, 8, 8] is padded to [2, 3, 10, 12] as `pad` says and convolved.
std::string forward(const std::string& pad, const std::string& settings) {
  return "graph @g(%x: f32[2, 3, 8, 8], %w: f32[4, 3, 3, 3]) -> (f32[2, 4, 8, 10]) {\n"
         "  %p = aten.constant_pad_nd(%x, " +
         pad + ") : f32[2, 3, 10, 12]\n  %y = aten.convolution(%p, %w, none, " + settings +
         ") : f32[2, 4, 8, 10]\n  return %y\n}\n";
}
std::string settings(const std::string& padding, const std::string& transposed = "false") {
  return "stride=[1, 1], padding=[" + padding + "], dilation=[1, 1], transposed=" + transposed +
         ", output_padding=[0, 0], groups=1";
}

TEST(FoldPadding, BelongsToTheConvolution) {
  const auto folded = [](const std::string& padding) {
    return "graph @g(%x: f32[2, 3, 8, 8], %w: f32[4, 3, 3, 3]) -> (f32[2, 4, 8, 10]) {\n"
           "  %y = aten.convolution(%x, %w, none, " +
           settings(padding) + ") : f32[2, 4, 8, 10]\n  return %y\n}\n";
  };
  const auto run = [](const std::string& pad, const std::string& padding) {
    return run_text("fold-padding", forward(pad, settings(padding)));
  };
  EXPECT_EQ(run("pad=[2, 2, 1, 1]", "0, 0"), folded("1, 2"));
  EXPECT_EQ(run("pad=[2, 2, 1, 1], value=0.0", "0, 0"), folded("1, 2"));
  EXPECT_EQ(run("pad=[2, 2, 1, 1], value=0", "0, 0"), folded("1, 2"));
  EXPECT_EQ(run("pad=[2, 2, 1, 1]", "3, 4"), folded("4, 6"));
  EXPECT_EQ(run("pad=[2, 2]", "1"), folded("1, 3"));
}

TEST(FoldPadding, ConvolutionsPadEvenlyAndWithZeros) {
  expect_unchanged("fold-padding", forward("pad=[2, 2, 1, 1], value=1.0", settings("0, 0")));
  expect_unchanged("fold-padding", forward("pad=[4, 0, 1, 1]", settings("0, 0")));
  expect_unchanged("fold-padding", forward("pad=[2, 2, 1, 1, 0, 0]", settings("0, 0")));
  expect_unchanged("fold-padding", forward("pad=[2, 2, -1, -1]", settings("0, 0")));
  expect_unchanged("fold-padding", forward("pad=[2, 2, 1, 1]", settings("0, 0", "true")));
}

const std::string kHead =
    "graph @g(\n    %x: f32[2, 3, 8, 8],\n    %w: f32[4, 3, 3, 3],\n    %g: f32[2, 4, 8, 8]\n"
    ") -> (f32[4, 3, 3, 3], f32[2, 3, 8, 8]) {\n";
const std::string kCut =
    "  %gx = aten.constant_pad_nd(%gp, pad=[-1, -1, -1, -1]) : f32[2, 3, 8, 8]\n";

std::string gradients(const std::string& image, const std::string& padding,
                      const std::string& gradient) {
  return "  %gp, %gw, %gb = aten.convolution_backward(%g, %" + image + ", %w, bias_sizes=[0], " +
         settings(padding) + ", output_mask=[true, true, false]) : " + gradient +
         ", f32[4, 3, 3, 3], f32[]\n";
}
// The gradients of a convolution of %x, padded; `tail` says what becomes of %gp.
std::string backward(const std::string& tail) {
  return kHead + "  %p = aten.constant_pad_nd(%x, pad=[1, 1, 1, 1]) : f32[2, 3, 10, 10]\n" +
         gradients("p", "0, 0", "f32[2, 3, 10, 10]") + tail + "}\n";
}

TEST(FoldPadding, GradientsAreThoseOfTheBareImage) {
  const std::string bare = kHead + gradients("x", "1, 1", "f32[2, 3, 8, 8]");
  EXPECT_EQ(run_text("fold-padding", backward(kCut + "  return %gw, %gx\n")),
            bare + "  return %gw, %gp\n}\n");
  EXPECT_EQ(run_text("fold-padding", backward(kCut + "  %y = aten.relu(%gx) : f32[2, 3, 8, 8]\n" +
                                              "  return %gw, %y\n")),
            bare + "  %y = aten.relu(%gp) : f32[2, 3, 8, 8]\n  return %gw, %y\n}\n");
}

TEST(FoldPadding, GradientsThatAreReadOtherwiseStay) {
  expect_unchanged("fold-padding",
                   backward("  %gx = aten.constant_pad_nd(%gp, pad=[-2, 0, -1, -1]) : "
                            "f32[2, 3, 8, 8]\n  return %gw, %gx\n"));
  expect_unchanged("fold-padding", backward(kCut + "  %s = aten.sum(%gp) : f32[]\n" +
                                            "  %y = aten.add.Tensor(%gx, %s) : f32[2, 3, 8, 8]\n" +
                                            "  return %gw, %y\n"));
}

}  // namespace
}  // namespace backplane::passes
