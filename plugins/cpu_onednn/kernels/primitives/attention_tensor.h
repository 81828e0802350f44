// What attention's forward and backward share: where the heads lie, and packing them as floats.
#pragma once

#include "kernels/simd/vector_table.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace backplane::onednn {

inline constexpr std::int64_t kQueryBlock = 48;  // a multiple of the register tile's rows
inline constexpr std::int64_t kKeyBlock = 256;

inline std::int64_t whole_lanes(std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// A [batch, head, row, column] tensor.
struct Heads {
  Type type = Type::kF32;
  std::int64_t batch = 0, head = 0, row = 0, column = 0;  // strides, in elements
  std::int64_t heads = 1;

  Heads() = default;
  explicit Heads(const sdk::TensorSpec& spec)
      : type(known_type(spec.dtype)),
        batch(spec.strides[0]),
        head(spec.strides[1]),
        row(spec.strides[2]),
        column(spec.strides[3]),
        heads(spec.dims[1]) {}

  template <class B>
  B* at(B* data, std::int64_t b, std::int64_t h, std::int64_t r) const {
    return data + (b * batch + h * head + r * row) * bytes_of(type);
  }
};

// rows x columns as dense floats, `width` apart, zeros up to it; optionally scaled.
inline void pack_rows(const Heads& t, const std::byte* from, std::int64_t rows,
                      std::int64_t columns, float* to, std::int64_t width, float scale = 1) {
  const LoadFunction load = load_function(t.type, Domain::kF32);
  const std::int64_t step = t.row * bytes_of(t.type);
  for (std::int64_t r = 0; r < rows; ++r, from += step, to += width) {
    load(to, from, t.column, columns);
    for (std::int64_t c = columns; c < width; ++c) to[c] = 0;
    if (scale != 1)
      for (std::int64_t c = 0; c < columns; ++c) to[c] *= scale;
  }
}

// rows x columns, turned: element (r, c) to to[c * width + r], zeros for r in [rows, width).
inline void pack_turned(const Heads& t, const std::byte* from, std::int64_t rows,
                        std::int64_t columns, float* to, std::int64_t width) {
  constexpr std::int64_t kStrip = 16;
  float strip[kStrip * 512];
  const LoadFunction load = load_function(t.type, Domain::kF32);
  for (std::int64_t r0 = 0; r0 < width; r0 += kStrip) {
    const std::int64_t height = std::clamp<std::int64_t>(rows - r0, 0, kStrip);
    for (std::int64_t c0 = 0; c0 < columns; c0 += 512) {
      const std::int64_t part = std::min<std::int64_t>(512, columns - c0);
      for (std::int64_t r = 0; r < height; ++r)
        load(strip + r * part, from + ((r0 + r) * t.row + c0 * t.column) * bytes_of(t.type),
             t.column, part);
      for (std::int64_t c = 0; c < part; ++c) {
        float* line = to + (c0 + c) * width + r0;
        for (std::int64_t r = 0; r < height; ++r) line[r] = strip[r * part + c];
        for (std::int64_t r = height; r < kStrip && r0 + r < width; ++r) line[r] = 0;
      }
    }
  }
}

// The additive or boolean mask, or causality, applied to a block of scores.
struct Mask {
  bool present = false, causal = false, boolean = false;
  Type type = Type::kF32;
  std::int64_t batch = 0, head = 0, row = 0, column = 0;

  Mask() = default;
  Mask(const sdk::StepContext& context, std::size_t operand, const Shape& scores);

  // Scores of query `query`, keys [key, key + n).
  void apply(const std::byte* data, std::int64_t b, std::int64_t h, std::int64_t query,
             std::int64_t key, float* scores, std::int64_t n) const {
    const float lowest = -std::numeric_limits<float>::infinity();
    if (causal)
      for (std::int64_t j = std::max<std::int64_t>(query + 1 - key, 0); j < n; ++j)
        scores[j] = lowest;
    if (!present) return;
    const std::byte* from =
        data + (b * batch + h * head + query * row + key * column) * bytes_of(type);
    float values[kKeyBlock];
    load_function(type, Domain::kF32)(values, from, column, n);
    if (boolean) {
      for (std::int64_t j = 0; j < n; ++j) scores[j] = values[j] != 0 ? scores[j] : lowest;
    } else {
      for (std::int64_t j = 0; j < n; ++j) scores[j] += values[j];
    }
  }
};

inline Mask::Mask(const sdk::StepContext& context, std::size_t operand, const Shape& scores)
    : causal(context.node().bool_or("is_causal", false)) {
  if (!context.has_operand(operand)) return;
  const sdk::TensorSpec& spec = context.operand(operand);
  const Shape strides = broadcast_strides(spec, scores);
  present = true;
  type = known_type(spec.dtype);
  boolean = type == Type::kBool;
  batch = strides[0];
  head = strides[1];
  row = strides[2];
  column = strides[3];
}

}  // namespace backplane::onednn
