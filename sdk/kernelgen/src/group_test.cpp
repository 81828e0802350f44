// Rows and columns that work-items of a group share, in CUDA C with a thread for each work-item,
// against the same kernels in C.
#include <gtest/gtest.h>
#include <backplane/kernelgen/kernel.hpp>
#include <backplane/kernelgen/split.hpp>

#include <cmath>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "c_program.hpp"
#include "cuda_program.hpp"

namespace backplane::kernelgen {
namespace {

Schedule gpu_schedule(bool unroll = true) {
  Schedule schedule;
  schedule.gpu = true;
  schedule.unroll = unroll;
  return schedule;
}

// Tensors 0 and 1 are read, 2 and 3 are written.
struct Case {
  std::string name;
  Kernel kernel;
  std::int64_t elements[4];
  std::int64_t shift = 0;  // of all tensors, in elements
};

struct Layout {
  Storage storage = Storage::kF32;
  std::int64_t gap = 0, shift = 0;
};

Case make_case(const std::string& name, std::size_t outer, std::vector<std::int64_t> extents,
               const Layout& layout) {
  Case c;
  c.name = name + " of";
  for (const std::int64_t e : extents) c.name += " " + std::to_string(e);
  c.name += ", storage " + std::to_string(static_cast<int>(layout.storage)) + ", gap " +
            std::to_string(layout.gap) + ", shift " + std::to_string(layout.shift);
  c.kernel.outer_count = outer;
  c.kernel.expressions = Expressions(std::move(extents));
  c.kernel.tensors.assign(4, layout.storage);
  c.shift = layout.shift;
  return c;
}
Type type_of(const Layout& layout) { return compute_type(layout.storage); }

// A layer norm with a weight; its means.
Case norm(std::int64_t rows, std::int64_t length, const Layout& layout) {
  Case c = make_case("norm", 1, {rows, length}, layout);
  Expressions& e = c.kernel.expressions;
  const Type t = type_of(layout);
  const Expr at = e.add(e.mul(e.axis(0), e.index(length + layout.gap)), e.axis(1));
  const Expr x = e.load(0, layout.storage, at),
             scale = e.constant(t, 1.0 / static_cast<double>(length));
  const Expr mean = e.mul(e.reduce(Reduction::kSum, x), scale), d = e.sub(x, mean);
  const Expr variance = e.mul(e.reduce(Reduction::kSum, e.mul(d, d)), scale);
  const Expr root = e.unary(Op::kSqrt, e.add(variance, e.constant(t, 1e-5)));
  const Expr y = e.mul(e.div(d, root), e.load(1, layout.storage, e.axis(1)));
  c.kernel.stores = {{2, layout.storage, at, y}, {3, layout.storage, e.axis(0), mean}};
  const std::int64_t span = rows * (length + layout.gap);
  for (std::size_t i = 0; const std::int64_t n : {span, length, span, rows}) c.elements[i++] = n;
  return c;
}
// A softmax along axis `along`; the largest of each row or column.
Case softmax(std::int64_t rows, std::int64_t length, bool along_rows, const Layout& layout) {
  Case c = make_case(along_rows ? "softmax" : "softmax by columns", 1,
                     along_rows ? std::vector{rows, length} : std::vector{length, rows}, layout);
  Expressions& e = c.kernel.expressions;
  const std::int64_t step = length + layout.gap;
  const Expr at = along_rows ? e.add(e.mul(e.axis(0), e.index(step)), e.axis(1))
                             : e.add(e.mul(e.axis(1), e.index(step)), e.axis(0));
  const Expr x = e.load(0, layout.storage, at), top = e.reduce(Reduction::kMax, x);
  const Expr power = e.unary(Op::kExp, e.sub(x, top));
  c.kernel.stores = {{2, layout.storage, at, e.div(power, e.reduce(Reduction::kSum, power))},
                     {3, layout.storage, e.axis(0), top}};
  for (std::size_t i = 0; const std::int64_t n :
                          {rows * step, std::int64_t{1}, rows * step, along_rows ? rows : length})
    c.elements[i++] = n;
  return c;
}
// Sums of columns and their products with a weight, over two loop axes.
Case columns(std::int64_t outer, std::int64_t rows, std::int64_t length, const Layout& layout) {
  Case c = make_case("columns", 1, {length, outer, rows}, layout);
  Expressions& e = c.kernel.expressions;
  const std::int64_t step = length + layout.gap;
  const Expr row = e.add(e.mul(e.axis(1), e.index(rows)), e.axis(2));
  const Expr at = e.add(e.mul(row, e.index(step)), e.axis(0));
  const Expr x = e.load(0, layout.storage, at), weight = e.load(1, layout.storage, e.axis(2));
  const Expr scale = e.constant(type_of(layout), 1.0 / 64);
  c.kernel.stores = {
      {2, layout.storage, e.axis(0), e.reduce(Reduction::kSum, x)},
      {3, layout.storage, e.axis(0), e.reduce(Reduction::kSum, e.mul(e.mul(x, weight), scale))}};
  for (std::size_t i = 0; const std::int64_t n : {outer * rows * step, rows, length, length})
    c.elements[i++] = n;
  return c;
}
// Rows of two axes, of which one has a weight of its own.
Case planes(std::int64_t rows, std::int64_t channels, std::int64_t length, const Layout& layout) {
  Case c = make_case("planes", 1, {rows, channels, length}, layout);
  Expressions& e = c.kernel.expressions;
  const std::int64_t step = length + layout.gap;
  const Expr at =
      e.add(e.mul(e.add(e.mul(e.axis(0), e.index(channels)), e.axis(1)), e.index(step)), e.axis(2));
  const Expr x = e.load(0, layout.storage, at);
  const Expr sum = e.reduce(Reduction::kSum, e.mul(x, x));
  c.kernel.stores = {
      {2, layout.storage, at, e.add(e.mul(x, e.load(1, layout.storage, e.axis(1))), sum)},
      {3, layout.storage, e.axis(0), sum}};
  const std::int64_t span = rows * channels * step;
  for (std::size_t i = 0; const std::int64_t n : {span, channels, span, rows}) c.elements[i++] = n;
  return c;
}

// For each kernel and each of its results: weighted sums, the first and the last element.
std::vector<double> run(const std::vector<Case>& cases, Dialect dialect, const Schedule& schedule) {
  std::string text, main = "int main(void) {\n";
  for (const Case& c : cases) {
    std::vector<Kernel> kernels = {c.kernel};
    std::string arguments, scratch;
    main += "{\n";
    if (auto split = split_reductions(c.kernel, dialect, schedule)) {
      kernels = std::move(split->kernels);
      for (std::size_t i = 0; i < split->scratch.size(); ++i) {
        const auto& [storage, elements] = split->scratch[i];
        const std::string name = "s" + std::to_string(i);
        main += "  static " + std::string(element_type(storage)) + " " + name + "[" +
                std::to_string(elements) + "] __attribute__((aligned(16)));\n";
        scratch += ", (uchar*)" + name + ", 0";
      }
    }
    for (std::size_t t = 0; t < 4; ++t) {
      const std::string n = std::to_string(t);
      const std::string type(element_type(c.kernel.tensors[t]));
      main += "  static " + type + " m" + n + "[" + std::to_string(c.elements[t] + c.shift + 8) +
              "] __attribute__((aligned(16)));\n";
      if (t < 2)
        main += "  for (int i = 0; i < " + std::to_string(c.elements[t]) + "; ++i) " +
                element_store(c.kernel.tensors[t], "m" + n, "i + " + std::to_string(c.shift),
                              "((i * 37LL) % 101 - 50) * 0.125f") +
                ";\n";
      arguments += (t != 0 ? ", " : "") + ("(uchar*)m" + n) + ", " +
                   std::to_string(c.shift * storage_bytes(c.kernel.tensors[t]));
    }
    for (const Kernel& kernel : kernels) {
      const Printed p = print(kernel, dialect, schedule);
      if (text.find(p.entry) == std::string::npos) text += p.text;
      const std::string call = p.entry + "(", all = arguments + scratch + ");";
      main += dialect == Dialect::kCuda
                  ? "  launch(" + std::to_string(p.items) + ", " + std::to_string(p.group) +
                        ", [] { " + call + all + " });\n"
                  : "  for (size_t item[3] = {0}; item[0] < " + std::to_string(p.items) +
                        "; ++item[0]) " + call + "item, " + all + "\n";
    }
    for (std::size_t t = 2; t < 4; ++t) {
      const std::string at = std::to_string(c.shift), n = std::to_string(c.elements[t]);
      const auto element = [&](const std::string& i) {
        return element_load(c.kernel.tensors[t], "m" + std::to_string(t), i + " + " + at);
      };
      main += "  { double s = 0, w = 0; for (int i = 0; i < " + n +
              "; ++i) { s += " + element("i") + "; w += " + element("i") +
              " * (double)(i % 13); } printf(\"%.9g %.9g %.9g %.9g \", s, w, (double)" +
              element("0") + ", (double)" + element(n + " - 1") + "); }\n";
    }
    main += "}\n";
  }
  main += "}\n";
  const std::string program = print_library(dialect, 1) + text;
  const std::string out = dialect == Dialect::kCuda
                              ? run_program("c++ -std=c++20 -O0 -w -pthread -ffp-contract=off",
                                            "k.cpp", kDevice + program + main)
                              : run_c(program + "#include <stdio.h>\n" + main);
  EXPECT_EQ(out.find("error"), std::string::npos) << out.substr(0, 2000);
  return numbers(out);
}

void expect_alike(const std::vector<Case>& cases, const Schedule& schedule) {
  const auto device = run(cases, Dialect::kCuda, schedule), host = run(cases, Dialect::kC11, {});
  ASSERT_EQ(device.size(), cases.size() * 8);
  ASSERT_EQ(host.size(), cases.size() * 8);
  for (std::size_t i = 0; i < host.size(); ++i) {
    const Case& c = cases[i / 8];
    const bool half = storage_bytes(c.kernel.tensors[0]) == 2, is_sum = i % 4 < 2;
    // Rounded elements differ by a step where sums differ in their last places.
    double bound = (half ? 0.01 : 1e-5) * std::max(std::fabs(host[i]), 1.0);
    if (is_sum)
      bound = std::max(bound, (half ? 2e-4 : 1e-6) * 12 * static_cast<double>(c.elements[2]));
    EXPECT_NEAR(device[i], host[i], bound) << c.name << ", number " << i % 8;
  }
}

// Variance of columns and their largest; of everything where `outer` is 0.
Case variance(std::int64_t rows, std::int64_t length, std::size_t outer, const Layout& layout) {
  Case c = make_case("variance", outer,
                     outer == 0 ? std::vector{rows, length} : std::vector{length, rows}, layout);
  Expressions& e = c.kernel.expressions;
  const Type t = type_of(layout);
  const Expr row = e.axis(outer == 0 ? 0 : 1), column = e.axis(outer == 0 ? 1 : 0);
  const Expr x = e.load(0, layout.storage, e.add(e.mul(row, e.index(length)), column));
  const std::int64_t count = outer == 0 ? rows * length : rows, results = outer == 0 ? 1 : length;
  const Expr scale = e.constant(t, 1.0 / static_cast<double>(count));
  const Expr d = e.sub(x, e.mul(e.reduce(Reduction::kSum, x), scale));
  const Expr to = outer == 0 ? e.index(0) : column;
  c.kernel.stores = {{2, layout.storage, to, e.mul(e.reduce(Reduction::kSum, e.mul(d, d)), scale)},
                     {3, layout.storage, to, e.reduce(Reduction::kMax, d)}};
  for (std::size_t i = 0; const std::int64_t n : {rows * length, std::int64_t{1}, results, results})
    c.elements[i++] = n;
  return c;
}

// What lies along one axis added to what lies along the other; a copy of the first.
Case transpose(std::int64_t images, std::int64_t rows, std::int64_t length, const Layout& layout) {
  Case c = make_case("transpose", 3, {images, length, rows}, layout);
  Expressions& e = c.kernel.expressions;
  const std::int64_t step = length + layout.gap;
  const Expr image = e.axis(0), column = e.axis(1), row = e.axis(2);
  const Expr from = e.add(e.mul(e.add(e.mul(image, e.index(rows)), row), e.index(step)), column);
  const Expr to = e.add(e.mul(e.add(e.mul(image, e.index(length)), column), e.index(rows)), row);
  const Expr x = e.load(0, layout.storage, from);
  c.kernel.stores = {{2, layout.storage, to, x},
                     {3, layout.storage, to, e.add(x, e.load(1, layout.storage, to))}};
  const std::int64_t count = images * rows * length;
  for (std::size_t i = 0; const std::int64_t n : {images * rows * step, count, count, count})
    c.elements[i++] = n;
  return c;
}

TEST(Groups, ShareTiles) {
  std::vector<Case> cases;
  for (const auto& [images, rows, length] :
       {std::tuple(1, 64, 128), {2, 100, 72}, {1, 65, 33}, {1, 15, 40}})
    for (const Storage storage :
         {Storage::kF32, Storage::kBF16, Storage::kF16, Storage::kF64, Storage::kI64, Storage::kU8})
      for (const std::int64_t shift : {0, 1})
        cases.push_back(transpose(images, rows, length, {storage, shift * 8, shift}));
  const std::string text = print(cases[0].kernel, Dialect::kCuda, gpu_schedule()).text;
  EXPECT_NE(text.find("BP_LOCAL "), std::string::npos);
  EXPECT_NE(text.find("uint4"), std::string::npos);
  expect_alike(cases, gpu_schedule());
}

TEST(Groups, ShareRows) {
  for (const bool unroll : {true, false}) {
    std::vector<Case> cases;
    const std::vector<std::int64_t> all = {1,   3,   31,   32,   33,   64,   100,
                                           255, 256, 1000, 1024, 4096, 5000, 70000},
                                    some = {33, 256, 1000, 5000};
    for (const std::int64_t length : unroll ? all : some) {
      const std::int64_t rows = length > 2000 ? 1 : 5;
      for (const Layout& layout : {Layout{Storage::kF32}, Layout{Storage::kBF16, 8},
                                   Layout{Storage::kBF16, 0, 1}, Layout{Storage::kF16, 1}}) {
        cases.push_back(norm(rows, length, layout));
        cases.push_back(softmax(rows, length, true, layout));
      }
      if (length < 10000) cases.push_back(norm(rows, length, {Storage::kF64}));
    }
    for (const Layout& layout : {Layout{Storage::kF32}, Layout{Storage::kBF16, 0, 1}}) {
      cases.push_back(planes(3, 4, 64, layout));
      cases.push_back(planes(3, 7, 49, layout));
      cases.push_back(planes(2, 3, 1024, layout));
    }
    expect_alike(cases, gpu_schedule(unroll));
  }
}

TEST(Groups, ShareColumns) {
  for (const bool unroll : {true, false}) {
    std::vector<Case> cases;
    const std::vector<std::int64_t> all = {2, 3, 8, 31, 64, 100, 300, 512}, some = {3, 64};
    for (const std::int64_t length : unroll ? all : some)
      for (const Layout& layout : {Layout{Storage::kF32}, Layout{Storage::kBF16, 8},
                                   Layout{Storage::kBF16, 0, 1}, Layout{Storage::kF16, 1}}) {
        cases.push_back(columns(3, 25, length, layout));
        cases.push_back(columns(1, 5000, length, layout));
        cases.push_back(softmax(40, length, false, layout));
      }
    cases.push_back(columns(2, 100, 64, {Storage::kF64}));
    expect_alike(cases, gpu_schedule(unroll));
  }
}

// With few results, slices of what is reduced go to groups of their own.
TEST(Groups, ShareLongReductions) {
  const Layout layouts[] = {{Storage::kF32}, {Storage::kBF16, 0, 1}, {Storage::kBF16}};
  std::vector<Case> cases;
  for (const Layout& layout : layouts) {
    cases.push_back(columns(2, 2100, 128, layout));
    cases.push_back(variance(4200, 64, 1, layout));
    cases.push_back(variance(66, 4000, 0, layout));
  }
  for (const Case& c : cases)
    EXPECT_TRUE(split_reductions(c.kernel, Dialect::kCuda, gpu_schedule())) << c.name;
  expect_alike(cases, gpu_schedule());
}

// Neither what is short nor what has results for each point, nor what fills a device as it is.
TEST(Groups, DoNotShareOtherReductions) {
  const auto is_split = [](const Case& c) {
    return split_reductions(c.kernel, Dialect::kCuda, gpu_schedule()).has_value();
  };
  EXPECT_FALSE(is_split(columns(1, 100, 128, {})));
  EXPECT_FALSE(is_split(softmax(2, 1 << 18, true, {})));
  EXPECT_FALSE(is_split(norm(4096, 4096, {})));
  EXPECT_TRUE(is_split(columns(1, 16384, 4096, {})));
  EXPECT_FALSE(split_reductions(columns(1, 16384, 4096, {}).kernel, Dialect::kOpenCL, {}));
}

}  // namespace
}  // namespace backplane::kernelgen
