// Index tensors.
#pragma once

#include "tensor.h"

#include <cstring>

namespace backplane::onednn {

inline bool is_index(bp_dtype dtype) {
  const auto type = type_of(dtype);
  return type == Type::kI64 || type == Type::kI32;
}
inline std::int64_t read_index(Type type, const std::byte* at) {
  if (type == Type::kI64) {
    std::int64_t v;
    std::memcpy(&v, at, sizeof v);
    return v;
  }
  std::int32_t v;
  std::memcpy(&v, at, sizeof v);
  return v;
}

// One index tensor along a row of an iteration space.
struct IndexRow {
  Type type;
  const std::byte* first;
  std::int64_t stride;       // in elements
  std::int64_t limit, step;  // of the indexed dim: its size, and its stride in the indexed tensor
};

// places[i] += index[i] * step. False where an index lies outside of [0, limit), after negative
// ones were counted from the end where `wraps`; places are then not to be used.
[[nodiscard]] inline bool add_places(const IndexRow& row, bool wraps, std::int64_t* places,
                                     std::int64_t n) {
  const auto add = [&](const auto* indices) {
    bool inside = true;
    for (std::int64_t i = 0; i < n; ++i) {
      std::int64_t v = indices[i * row.stride];
      if (wraps && v < 0) v += row.limit;
      inside = inside && v >= 0 && v < row.limit;
      places[i] += v * row.step;
    }
    return inside;
  };
  if (row.type == Type::kI64) return add(reinterpret_cast<const std::int64_t*>(row.first));
  return add(reinterpret_cast<const std::int32_t*>(row.first));
}

// to[i * stride] = from[places[i]], elements of `size` bytes.
inline void copy_from_places(std::int64_t size, std::byte* to, std::int64_t stride,
                             const std::byte* from, const std::int64_t* places, std::int64_t n) {
  with_size(size, [&](auto sample) {
    for (std::int64_t i = 0; i < n; ++i)
      std::memcpy(to + i * stride * static_cast<std::int64_t>(sizeof sample),
                  from + places[i] * static_cast<std::int64_t>(sizeof sample), sizeof sample);
  });
}

inline constexpr std::int64_t kPlaces = 256;  // resolved at once

}  // namespace backplane::onednn
