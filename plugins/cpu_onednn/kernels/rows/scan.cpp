// Running sums and products along a dim, and sorting along one.
#include <backplane/sdk/selection.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/kernel_registry.h"
#include "kernels/rows/block.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

using sdk::KernelCall;
using sdk::StepContext;
using sdk::TensorSpec;

// The lines along one dim of the operand, and where they go in each result.
struct Lines {
  Walk others;  // operand, then results
  std::int64_t length, from_step;
  std::vector<std::int64_t> to_steps;
  Type from;  // elements are converted to the first result's type
  std::vector<Type> to;
};
Lines lines_of(const StepContext& context) {
  const TensorSpec& in = context.operand(0);
  const auto dim = static_cast<std::size_t>(wrap_dim(context.int_or("dim", -1), in.rank()));
  const bool number = in.rank() == 0;
  Shape dims = in.dims;
  std::vector<Shape> strides{in.strides};
  std::vector<std::int64_t> steps;
  std::vector<Type> types;
  for (std::size_t r = 0; r < context.step().results.size(); ++r) {
    if (context.step().results[r] == BP_NONE) continue;
    const TensorSpec& out = context.result(r);
    strides.push_back(out.strides);
    steps.push_back(number ? 0 : out.strides[dim]);
    types.push_back(known_type(out.dtype));
  }
  const std::int64_t length = number ? 1 : in.dims[dim], step = number ? 0 : in.strides[dim];
  if (!number) {
    dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(dim));
    for (Shape& s : strides) s.erase(s.begin() + static_cast<std::ptrdiff_t>(dim));
  }
  dims.push_back(1);  // the cursor walks every other dim
  for (Shape& s : strides) s.push_back(0);
  Lines lines{Walk({}, {}), length, step, steps, known_type(in.dtype), types};
  lines.others.dims = dims;
  lines.others.strides = strides;
  return lines;
}

// f(previous, value) over each line, in double or int64.
template <class T, class F>
MadeKernel scan(const StepContext& context, T start, F f) {
  const Domain domain = std::is_same_v<T, double> ? Domain::kF64 : Domain::kI64;
  return make_kernel([lines = lines_of(context), start, f, domain](const KernelCall& call) {
    const std::int64_t count = lines.others.rows();
    if (count * lines.length == 0) return;
    const ConvertingLoad load(lines.from, lines.to[0], domain);
    const StoreFunction store = store_function(lines.to[0], domain);
    parallel_ranges(
        count, count * lines.length * 4, [&](int, std::int64_t begin, std::int64_t end) {
          constexpr std::int64_t kBlock = ConvertingLoad::kMost;
          T values[kBlock];
          RowCursor<4> at(lines.others, begin);
          for (std::int64_t u = begin; u < end; ++u, at.next()) {
            T running = start;
            for (std::int64_t i = 0; i < lines.length; i += kBlock) {
              const std::int64_t n = std::min(kBlock, lines.length - i);
              load(values,
                   call.operands[0] + (at.offset(0) + i * lines.from_step) * bytes_of(lines.from),
                   lines.from_step, n);
              for (std::int64_t k = 0; k < n; ++k) values[k] = running = f(running, values[k]);
              store(
                  call.results[0] + (at.offset(1) + i * lines.to_steps[0]) * bytes_of(lines.to[0]),
                  lines.to_steps[0], values, n);
            }
          }
        });
  });
}

bool real(const StepContext& context) { return is_float(known_type(context.result().dtype)); }
MadeKernel cumsum(const StepContext& context) {
  if (real(context)) return scan<double>(context, 0, [](double a, double b) { return a + b; });
  return scan<std::int64_t>(context, 0, [](std::int64_t a, std::int64_t b) { return a + b; });
}
MadeKernel cumprod(const StepContext& context) {
  if (real(context)) return scan<double>(context, 1, [](double a, double b) { return a * b; });
  return scan<std::int64_t>(context, 1, [](std::int64_t a, std::int64_t b) { return a * b; });
}
MadeKernel logcumsumexp(const StepContext& context) {
  return scan<double>(context, -std::numeric_limits<double>::infinity(), [](double a, double b) {
    if (a != a || b != b) return a + b;
    const double high = std::max(a, b), low = std::min(a, b);
    return std::isinf(high) ? high : high + std::log1p(std::exp(low - high));
  });
}

enum class Ties : std::uint8_t { kStayInOrder, kAsTopkOfPyTorch };

// Values in order and where they were. `limit` results a line; sorted within them.
MadeKernel ordered(const StepContext& context, bool descending, std::int64_t limit,
                   Ties ties = Ties::kStayInOrder) {
  const Type type = known_type(context.operand(0).dtype);
  return make_kernel([lines = lines_of(context), type, descending, limit,
                      ties](const KernelCall& call) {
    const std::int64_t count = lines.others.rows();
    if (count * lines.length == 0 || limit == 0) return;
    const Domain domain = is_float(type) ? Domain::kF64 : Domain::kI64;
    const auto sort_lines = [&](auto sample, std::int64_t begin, std::int64_t end) {
      using T = decltype(sample);
      std::vector<T> values(static_cast<std::size_t>(lines.length));
      std::vector<std::int64_t> order(values.size());
      RowCursor<4> at(lines.others, begin);
      for (std::int64_t u = begin; u < end; ++u, at.next()) {
        load_function(type, domain)(values.data(), call.operands[0] + at.offset(0) * bytes_of(type),
                                    lines.from_step, lines.length);
        std::iota(order.begin(), order.end(), std::int64_t{0});
        // NaN counts as the largest.
        const auto less = [](T a, T b) { return b != b ? a == a : a < b; };
        const auto comes_first = [&](std::int64_t a, std::int64_t b) {
          const T x = values[static_cast<std::size_t>(a)], y = values[static_cast<std::size_t>(b)];
          return descending ? less(y, x) : less(x, y);
        };
        if (ties == Ties::kStayInOrder)
          std::stable_sort(order.begin(), order.end(), comes_first);
        else
          sdk::select_as_topk(order, limit, comes_first);
        for (std::int64_t i = 0; i < limit; ++i) {
          const std::int64_t from = order[static_cast<std::size_t>(i)];
          if (call.results[0])
            store_function(lines.to[0], domain)(
                call.results[0] + (at.offset(1) + i * lines.to_steps[0]) * bytes_of(lines.to[0]), 1,
                &values[static_cast<std::size_t>(from)], 1);
          if (call.results[1])
            store_function(lines.to[1], Domain::kI64)(
                call.results[1] + (at.offset(2) + i * lines.to_steps[1]) * bytes_of(lines.to[1]), 1,
                &from, 1);
        }
      }
    };
    parallel_ranges(count, count * lines.length * 16,
                    [&](int, std::int64_t begin, std::int64_t end) {
                      if (domain == Domain::kF64)
                        sort_lines(double{}, begin, end);
                      else
                        sort_lines(std::int64_t{}, begin, end);
                    });
  });
}
std::int64_t line_length(const StepContext& context) {
  const TensorSpec& in = context.operand(0);
  return in.rank() == 0
             ? 1
             : in.dims[static_cast<std::size_t>(wrap_dim(context.int_or("dim", -1), in.rank()))];
}
MadeKernel sort(const StepContext& context) {
  return ordered(context, context.node().bool_or("descending", false), line_length(context));
}
MadeKernel topk(const StepContext& context) {
  // Of a tensor without dims that is its element, even where none is asked for.
  const bool is_element = context.operand(0).rank() == 0;
  return ordered(context, context.node().bool_or("largest", true),
                 is_element ? 1 : context.int_or("k", 1), Ties::kAsTopkOfPyTorch);
}

constexpr KernelRow kRows[] = {
    {"aten.cumsum", cumsum}, {"aten.cumprod", cumprod},  {"aten.logcumsumexp", logcumsumexp},
    {"aten.sort", sort},     {"aten.sort.stable", sort}, {"aten.topk", topk},
};

}  // namespace

KernelRows scan_kernels() { return kRows; }

}  // namespace backplane::onednn
