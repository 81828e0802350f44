#include "core/passes/sum_products.h"

#include <sstream>

#include "core/passes/test_support.h"

namespace backplane::passes {
namespace {

// Products t(%g<i>) @ %h<i> as %p<i>, and what adds them up.
struct Example {
  std::string sum;  // nodes and the return
  int terms = 4;
  std::string k = "2", m = "16", n = "8", dtype = "f32";
  std::string addend_type = "f32[16, 8]";  // of %x
  std::string outputs = "f32[16, 8]";

  std::string text() const {
    const auto type = [&](const std::string& rows, const std::string& columns) {
      return dtype + "[" + rows + ", " + columns + "]";
    };
    std::ostringstream inputs, nodes;
    for (int i = 0; i < terms; ++i) {
      inputs << "    %g" << i << ": " << type(k, m) << ",\n    %h" << i << ": " << type(k, n)
             << ",\n";
      nodes << "  %t" << i << " = aten.t(%g" << i << ") : " << type(m, k) << " strides(1, " << m
            << ")\n  %p" << i << " = aten.mm(%t" << i << ", %h" << i << ") : " << type(m, n)
            << "\n";
    }
    return "graph @g(\n" + inputs.str() + "    %x: " + addend_type + "\n) -> (" + outputs +
           ") {\n" + nodes.str() + sum + "}\n";
  }
};

std::string chain(const std::string& type = "f32[16, 8]") {
  return "  %a = aten.add.Tensor(%p0, %p1) : " + type +
         "\n  %b = aten.add.Tensor(%a, %p2) : " + type +
         "\n  %c = aten.add.Tensor(%b, %p3) : " + type + "\n  return %c\n";
}

void expect_left_alone(const Example& example) { expect_unchanged("sum-products", example.text()); }

TEST(SumProducts, ChainOfTransposedFactors) {
  // As canonicalize meets it: the gradient of a weight passes through two transpositions.
  EXPECT_EQ(run_text("optimize", R"(graph @g(
    %g0: f32[2, 16], %h0: f32[2, s0],
    %g1: f32[2, 16], %h1: f32[2, s0],
    %g2: f32[3, 16], %h2: f32[3, s0],
    %g3: f32[2, 16], %h3: f32[2, s0]
) -> (f32[16, s0], f32[16, s0]) classes(s0: 12) {
  %0 = aten.t(%g0) : f32[16, 2] strides(1, 16)
  %1 = aten.mm(%0, %h0) : f32[16, s0]
  %2 = aten.t(%1) : f32[s0, 16] strides(1, s0)
  %3 = aten.t(%2) : f32[16, s0]
  %4 = aten.t(%g1) : f32[16, 2] strides(1, 16)
  %5 = aten.mm(%4, %h1) : f32[16, s0]
  %6 = aten.t(%5) : f32[s0, 16] strides(1, s0)
  %7 = aten.permute(%6, dims=[1, 0]) : f32[16, s0]
  %8 = aten.add.Tensor(%3, %7) : f32[16, s0]    // m.py:1
  %9 = aten.transpose.int(%g2, dim0=0, dim1=1) : f32[16, 3] strides(1, 16)
  %10 = aten.mm(%9, %h2) : f32[16, s0]
  %11 = aten.add.Tensor(%8, %10, alpha=1) : f32[16, s0]    // m.py:2
  %12 = aten.t(%g3) : f32[16, 2] strides(1, 16)
  %13 = aten.mm(%12, %h3) : f32[16, s0]
  %sum = aten.add.Tensor(%11, %13) : f32[16, s0]    // m.py:3
  %15 = aten.relu(%sum) : f32[16, s0]
  return %sum, %15
}
)"),
            R"(graph @g(
    %g0: f32[2, 16],
    %h0: f32[2, s0],
    %g1: f32[2, 16],
    %h1: f32[2, s0],
    %g2: f32[3, 16],
    %h2: f32[3, s0],
    %g3: f32[2, 16],
    %h3: f32[2, s0]
) -> (f32[16, s0], f32[16, s0]) classes(s0: 12) {
  %2 = aten.cat([%g0, %g1, %g2, %g3], dim=0) : f32[9, 16]    // m.py:3
  %3 = aten.t(%2) : f32[16, 9] strides(1, 16)    // m.py:3
  %6 = aten.cat([%h0, %h1, %h2, %h3], dim=0) : f32[9, s0]    // m.py:3
  %sum = aten.mm(%3, %6) : f32[16, s0]    // m.py:3
  %15 = aten.relu(%sum) : f32[16, s0]
  return %sum, %15
}
)");
}

TEST(SumProducts, TreeOfPlainFactorsAndOtherAddends) {
  EXPECT_EQ(run_text("sum-products", R"(graph @g(
    %w0: f32[16, 2], %w1: f32[16, 2], %w2: f32[16, 2], %g3: f32[2, 16], %h: f32[2, 8],
    %x: f32[16, 8], %y: f32[16, 8], %z: f32[16, 8]
) -> (f32[16, 8]) {
  %p0 = aten.mm(%w0, %h) : f32[16, 8]
  %a = aten.add.Tensor(%x, %p0) : f32[16, 8]
  %b = aten.add.Tensor(%a, %y) : f32[16, 8]
  %p1 = aten.mm(%w1, %h) : f32[16, 8]
  %p2 = aten.mm(%w2, %h) : f32[16, 8]
  %c = aten.add.Tensor(%p1, %p2) : f32[16, 8]
  %t3 = aten.t(%g3) : f32[16, 2] strides(1, 16)
  %p3 = aten.mm(%t3, %h) : f32[16, 8]
  %d = aten.add.Tensor(%p3, %z) : f32[16, 8]
  %e = aten.add.Tensor(%c, %d) : f32[16, 8]
  %f = aten.add.Tensor(%b, %e) : f32[16, 8]    // m.py:9
  return %f
}
)"),
            R"(graph @g(
    %w0: f32[16, 2],
    %w1: f32[16, 2],
    %w2: f32[16, 2],
    %g3: f32[2, 16],
    %h: f32[2, 8],
    %x: f32[16, 8],
    %y: f32[16, 8],
    %z: f32[16, 8]
) -> (f32[16, 8]) {
  %b = aten.add.Tensor(%x, %y) : f32[16, 8]
  %t3 = aten.t(%g3) : f32[16, 2] strides(1, 16)
  %0 = aten.add.Tensor(%b, %z) : f32[16, 8]    // m.py:9
  %1 = aten.cat([%w0, %w1, %w2, %t3], dim=1) : f32[16, 8]    // m.py:9
  %2 = aten.cat([%h, %h, %h, %h], dim=0) : f32[8, 8]    // m.py:9
  %3 = aten.mm(%1, %2) : f32[16, 8]    // m.py:9
  %f = aten.add.Tensor(%3, %0) : f32[16, 8]    // m.py:9
  return %f
}
)");
}

TEST(SumProducts, SumsShareTheirFactors) {
  EXPECT_EQ(run_text("optimize", R"(graph @g(
    %w0: bf16[16, 1], %w1: bf16[16, 1], %w2: bf16[16, 1], %w3: bf16[16, 1],
    %h: bf16[1, 8], %v: bf16[1, 8], %x: bf16[16, 8]
) -> (bf16[16, 8], bf16[16, 8]) {
  %p0 = aten.mm(%w0, %h) : bf16[16, 8]
  %p1 = aten.mm(%w1, %h) : bf16[16, 8]
  %a = aten.add.Tensor(%p0, %p1) : bf16[16, 8]
  %p2 = aten.mm(%w2, %h) : bf16[16, 8]
  %b = aten.add.Tensor(%a, %p2) : bf16[16, 8]
  %p3 = aten.mm(%w3, %h) : bf16[16, 8]
  %c = aten.add.Tensor(%b, %p3) : bf16[16, 8]
  %q0 = aten.mm(%w0, %v) : bf16[16, 8]
  %d = aten.add.Tensor(%q0, %c) : bf16[16, 8]
  %q1 = aten.mm(%w1, %v) : bf16[16, 8]
  %e = aten.add.Tensor(%d, %q1) : bf16[16, 8]
  %q2 = aten.mm(%w2, %v) : bf16[16, 8]
  %f = aten.add.Tensor(%e, %q2) : bf16[16, 8]
  %q3 = aten.mm(%w3, %v) : bf16[16, 8]
  %r = aten.add.Tensor(%f, %q3) : bf16[16, 8]
  return %c, %r
}
)"),
            R"(graph @g(
    %w0: bf16[16, 1],
    %w1: bf16[16, 1],
    %w2: bf16[16, 1],
    %w3: bf16[16, 1],
    %h: bf16[1, 8],
    %v: bf16[1, 8],
    %x: bf16[16, 8]
) -> (bf16[16, 8], bf16[16, 8]) {
  %0 = aten.cat([%w0, %w1, %w2, %w3], dim=1) : bf16[16, 4]
  %1 = aten.cat([%h, %h, %h, %h], dim=0) : bf16[4, 8]
  %c = aten.mm(%0, %1) : bf16[16, 8]
  %3 = aten.cat([%v, %v, %v, %v], dim=0) : bf16[4, 8]
  %4 = aten.mm(%0, %3) : bf16[16, 8]
  %r = aten.add.Tensor(%4, %c) : bf16[16, 8]
  return %c, %r
}
)");
}

TEST(SumProducts, FewTermsAndDeepOnesStay) {
  const std::string plain = run_text("sum-products", Example{.sum = chain()}.text());
  EXPECT_NE(plain.find("%c = aten.mm("), std::string::npos) << plain;
  expect_left_alone({.sum = R"(  %a = aten.add.Tensor(%p0, %p1) : f32[16, 8]
  %b = aten.add.Tensor(%a, %p2) : f32[16, 8]
  %c = aten.add.Tensor(%b, %x) : f32[16, 8]
  return %c
)",
                     .terms = 3});
  expect_left_alone({.sum = chain(), .k = "3"});  // 8 columns
  expect_left_alone({.sum = chain("f32[160, 160]"),
                     .k = "33",
                     .m = "160",
                     .n = "160",
                     .outputs = "f32[160, 160]"});
}

TEST(SumProducts, WhatOthersReadStays) {
  for (const char* other : {"%a", "%b", "%p1"}) {
    std::string sum = chain();
    sum.insert(sum.size() - 1, std::string(", ") + other);
    expect_left_alone({.sum = sum, .outputs = "f32[16, 8], f32[16, 8]"});
    sum = chain();
    sum.insert(sum.find("  return"), std::string("  %r = aten.relu(") + other + ") : f32[16, 8]\n");
    sum.insert(sum.size() - 1, ", %r");
    expect_left_alone({.sum = sum, .outputs = "f32[16, 8], f32[16, 8]"});
  }
}

TEST(SumProducts, OtherSumsStay) {
  expect_left_alone({.sum = R"(  %a = aten.add.Tensor(%p0, %p1) : f32[16, 8]
  %b = aten.add.Tensor(%a, %p2, alpha=2) : f32[16, 8]
  %c = aten.add.Tensor(%b, %p3) : f32[16, 8]
  return %c
)"});
  expect_left_alone({.sum = chain("i64[16, 8]"), .dtype = "i64", .outputs = "i64[16, 8]"});
  // A broadcast addend and one of another type, with three terms before and one behind.
  expect_left_alone({.sum = R"(  %a = aten.add.Tensor(%p0, %p1) : f32[16, 8]
  %b = aten.add.Tensor(%a, %p2) : f32[16, 8]
  %c = aten.add.Tensor(%b, %x) : f32[16, 8]
  %d = aten.add.Tensor(%c, %p3) : f32[16, 8]
  return %d
)",
                     .addend_type = "f32[1, 8]"});
  expect_left_alone({.sum = R"(  %a = aten.add.Tensor(%p0, %p1) : f32[16, 8]
  %b = aten.add.Tensor(%a, %p2) : f32[16, 8]
  %c = aten.add.Tensor(%b, %x) : f64[16, 8]
  %d = aten.add.Tensor(%c, %p3) : f64[16, 8]
  return %d
)",
                     .addend_type = "f64[16, 8]",
                     .outputs = "f64[16, 8]"});
}

TEST(SumProducts, WidthsThatDifferStay) {
  expect_unchanged("sum-products",
                   R"(graph @g(%w: f32[16, 2], %h: f32[2, 8], %v: f32[2, 1]) -> (f32[16, 8]) {
  %0 = aten.mm(%w, %h) : f32[16, 8]
  %1 = aten.mm(%w, %h) : f32[16, 8]
  %2 = aten.add.Tensor(%0, %1) : f32[16, 8]
  %3 = aten.mm(%w, %v) : f32[16, 1]
  %4 = aten.mm(%w, %h) : f32[16, 8]
  %5 = aten.add.Tensor(%4, %3) : f32[16, 8]
  %6 = aten.add.Tensor(%2, %5) : f32[16, 8]
  return %6
}
)");
}

TEST(SumProducts, WhatIsWrittenInBetweenStays) {
  expect_left_alone({.sum = R"(  %v = aten.view(%h1, size=[16]) : f32[16]
  %w = aten.relu_(%v) : f32[16]
)" + chain()});
  expect_left_alone({.sum = R"(  %a = aten.add.Tensor(%x, %p0) : f32[16, 8]
  %b = aten.add.Tensor(%a, %p1) : f32[16, 8]
  %w = aten.relu_(%x) : f32[16, 8]
  %c = aten.add.Tensor(%b, %p2) : f32[16, 8]
  %d = aten.add.Tensor(%c, %p3) : f32[16, 8]
  return %d
)"});
}

}  // namespace
}  // namespace backplane::passes
