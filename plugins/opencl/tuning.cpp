// Which register tile is the fastest for products on a CPU device: measured once per device and
// driver.
#include <array>
#include <chrono>
#include <vector>

#include "context.h"
#include "kernels/register_tiles.h"
#include "kernels/text.h"
#include "sealed.h"
#include "signal_guard.h"

namespace backplane::opencl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kRows = 240, kColumns = 192,
                       kDepth = 256;  // whole tiles of all
constexpr int kRuns = 5;
constexpr std::chrono::seconds kLimit{2};  // candidates that come later are left out

// As many sums as a core has registers for, the usual tile first.
std::vector<ProductTile> candidates(std::int64_t sums) {
  std::vector<ProductTile> tiles;
  for (const std::int64_t vectors : {2, 3, 4, 1}) {
    const std::int64_t rows = most_rows(sums, vectors);
    if ((rows > 1 || vectors == 1) && kRows % rows == 0) tiles.push_back({rows, vectors});
  }
  if (prefers_one_vector(sums)) std::swap(tiles.front(), tiles.back());
  return tiles;
}

std::string entry_of(const ProductTile& t) {
  return "tile_" + number(t.rows) + "_" + number(t.vectors);
}

// The inner loop of products, over panels of the tile's width.
std::string print_candidate(const ProductTile& t) {
  std::string s = "__kernel void " + entry_of(t) +
                  "(__global const float* a, __global const float* b, __global float* c) {\n"
                  "  const int i = (int)get_global_id(0) * " +
                  number(t.rows) + ", j = (int)get_global_id(1) * " + number(t.vectors * kLanes) +
                  ";\n  b += j * " + number(kDepth) + ";\n";
  for (std::int64_t r = 0; r < t.rows; ++r)
    for (std::int64_t v = 0; v < t.vectors; ++v)
      s += "  float16 c" + number(r) + "_" + number(v) + " = 0.0f;\n";
  s += "  for (int k = 0; k < " + number(kDepth) + "; ++k) {\n";
  for (std::int64_t v = 0; v < t.vectors; ++v)
    s += "    const float16 b" + number(v) + " = BP_LOAD_F32_16(" + number(v) + ", b);\n";
  for (std::int64_t r = 0; r < t.rows; ++r) {
    s += "    { const float x = a[(i + " + number(r) + ") * " + number(kDepth) + " + k];";
    for (std::int64_t v = 0; v < t.vectors; ++v) {
      const std::string sum = "c" + number(r) + "_" + number(v);
      s.append(" ").append(sum).append(" = BP_FMA((float16)(x), b").append(number(v));
      s.append(", ").append(sum).append(");");
    }
    s += " }\n";
  }
  s += "    b += " + number(t.vectors * kLanes) + ";\n  }\n";
  for (std::int64_t r = 0; r < t.rows; ++r)
    for (std::int64_t v = 0; v < t.vectors; ++v)
      s += "  vstore16(c" + number(r) + "_" + number(v) + ", " + number(v) + ", c + (i + " +
           number(r) + ") * " + number(kColumns) + " + j);\n";
  return s + "}\n";
}

std::optional<ProductTile> parse(const std::string& text, const std::vector<ProductTile>& from) {
  for (const ProductTile& t : from)
    if (text == entry_of(t)) return t;
  return std::nullopt;
}

}  // namespace

ProductTile Context::product_tile(bool worth_measuring) {
  const std::lock_guard lock(tile_mutex_);
  if (tile_) return *tile_;
  const std::vector<ProductTile> known = candidates(facts_.product_sums);
  const std::string key = cache_key("tile of products");
  tile_ = parse(get_sealed(key), known);
  if (tile_) return *tile_;
  if (!worth_measuring) return known[0];
  auto measured = measure_tiles();
  tile_ = measured.ok() ? *measured : known[0];
  if (measured.ok()) {
    put_sealed(key, entry_of(*tile_));
  } else {  // no failure of the graph
    const std::string text =
        "the usual tile serves products: " + std::string(measured.status().message());
    sdk::host().log(sdk::host().host, BP_LOG_WARNING, sdk::raw(text));
  }
  return *tile_;
}

Result<ProductTile> Context::measure_tiles() {
  const SignalGuard signals;
  const std::vector<ProductTile> known = candidates(facts_.product_sums);
  std::string source = kernelgen::print_library(kernelgen::Dialect::kOpenCL, kLanes);
  for (const ProductTile& t : known) source += print_candidate(t);
  auto program = build(source, "the measurement of tiles");
  if (!program.ok()) return program.status();
  const std::int64_t elements[] = {kRows * kDepth, kDepth * kColumns, kRows * kColumns};
  std::array<std::shared_ptr<Memory>, 3> memory;
  Status status;
  for (std::size_t i = 0; i < memory.size() && status.ok(); ++i) {
    const std::vector<float> content(static_cast<std::size_t>(elements[i]), 0.5F);
    auto made = constant(content.data(), content.size() * sizeof(float));
    if (made.ok()) memory[i] = std::move(*made);
    status = made.ok() ? Status() : made.status();
  }
  ProductTile best = known[0];
  auto least = Clock::duration::max();
  const auto deadline = Clock::now() + kLimit;
  for (const ProductTile& t : known) {
    if (!status.ok() || Clock::now() > deadline) break;
    cl_int code = CL_SUCCESS;
    cl_kernel kernel = clCreateKernel(*program, entry_of(t).c_str(), &code);
    for (cl_uint i = 0; i < memory.size() && code == CL_SUCCESS; ++i) {
      cl_mem buffer = memory[i]->get();
      code = clSetKernelArg(kernel, i, sizeof(cl_mem), &buffer);
    }
    const std::size_t items[] = {static_cast<std::size_t>(kRows / t.rows),
                                 static_cast<std::size_t>(kColumns / (t.vectors * kLanes))},
                      group[] = {1, 1};
    for (int run = 0; run <= kRuns && code == CL_SUCCESS; ++run) {
      const auto start = Clock::now();
      code = clEnqueueNDRangeKernel(queue_, kernel, 2, nullptr, items, group, 0, nullptr, nullptr);
      if (code == CL_SUCCESS) code = clFinish(queue_);
      const auto spent = Clock::now() - start;
      if (code != CL_SUCCESS || run == 0 || spent >= least) continue;  // the first builds
      least = spent;
      best = t;
    }
    if (kernel != nullptr) clReleaseKernel(kernel);
    if (code != CL_SUCCESS) status = failure("the measurement of tiles", code);
  }
  clReleaseProgram(*program);
  if (!status.ok()) return status;
  return best;
}

}  // namespace backplane::opencl
