#include "library.h"

#include <new>

struct lib_context {};

namespace {

constexpr long long kPanel = 8;  // columns that lie together, row after row

long long panels(long long columns) { return (columns + kPanel - 1) / kPanel; }

// Of every element of a weight: where it lies packed.
template <class Visit>
void each(long long depth, long long columns, Visit&& visit) {
  for (long long c = 0; c < columns; ++c)
    for (long long k = 0; k < depth; ++k)
      visit(k, c, (c / kPanel * depth + k) * kPanel + c % kPanel);
}

}  // namespace

extern "C" {

const char* lib_words(lib_code code) {
  switch (code) {
    case LIB_OK:
      return "it went well";
    case LIB_BAD_ARGUMENT:
      return "an argument is wrong";
    case LIB_NO_MEMORY:
      return "there is no memory left";
    default:
      return "it failed";
  }
}

lib_code lib_create(lib_handle* out) {
  *out = new (std::nothrow) lib_context;
  return *out == nullptr ? LIB_NO_MEMORY : LIB_OK;
}
void lib_destroy(lib_handle handle) { delete handle; }

size_t lib_workspace(lib_handle, const lib_product* product) {
  return static_cast<size_t>(product->rows) * sizeof(float) * kPanel;
}

size_t lib_packed_bytes(long long depth, long long columns) {
  return static_cast<size_t>(panels(columns) * kPanel * depth) * sizeof(float);
}

lib_code lib_pack(lib_handle, long long depth, long long columns, const float* weight,
                  long long row_stride, long long column_stride, void* packed) {
  auto* const to = static_cast<float*>(packed);
  for (size_t i = 0; i < lib_packed_bytes(depth, columns) / sizeof(float); ++i) to[i] = 0;
  each(depth, columns, [&](long long k, long long c, long long at) {
    to[at] = weight[k * row_stride + c * column_stride];
  });
  return LIB_OK;
}
lib_code lib_unpack(lib_handle, long long depth, long long columns, const void* packed,
                    float* weight, long long row_stride, long long column_stride) {
  const auto* const from = static_cast<const float*>(packed);
  each(depth, columns, [&](long long k, long long c, long long at) {
    weight[k * row_stride + c * column_stride] = from[at];
  });
  return LIB_OK;
}

lib_code lib_multiply(lib_handle, const lib_product* product, const float* left, const void* packed,
                      const float* bias, float* result, void* workspace) {
  if (product->rows < 0 || product->columns < 0 || product->depth < 0) return LIB_BAD_ARGUMENT;
  const auto* panel = static_cast<const float*>(packed);
  auto* const sums = static_cast<float*>(workspace);
  const long long rows = product->rows, columns = product->columns, depth = product->depth;
  for (long long first = 0; first < columns; first += kPanel, panel += kPanel * depth) {
    for (long long i = 0; i < rows * kPanel; ++i) sums[i] = 0;
    for (long long r = 0; r < rows; ++r)
      for (long long k = 0; k < depth; ++k)
        for (long long i = 0; i < kPanel; ++i)
          sums[r * kPanel + i] += left[r * depth + k] * panel[k * kPanel + i];
    for (long long r = 0; r < rows; ++r)
      for (long long i = 0; i < kPanel && first + i < columns; ++i) {
        const float y = sums[r * kPanel + i] + (product->has_bias ? bias[first + i] : 0.0F);
        const bool cut = product->activation == LIB_RELU && y < 0;
        result[r * columns + first + i] = cut ? 0.0F : y;
      }
  }
  return LIB_OK;
}
}
