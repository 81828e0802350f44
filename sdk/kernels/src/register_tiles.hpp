// How many sums of a product a work-item may keep in a CPU's registers.
#pragma once

#include <algorithm>
#include <cstdint>

namespace backplane::kernels {

// Rows of a tile that is so many vectors wide; `sums` as in DeviceFacts::product_sums. A row of the
// right factor and an element of the left one are in registers as well.
inline std::int64_t most_rows(std::int64_t sums, std::int64_t vectors) {
  constexpr std::int64_t kMost = 14;
  const std::int64_t left = sums * 4 / 3 - vectors - 1;
  return std::clamp<std::int64_t>(std::min(sums, left) / vectors, 1, kMost);
}

// Whether tiles of two vectors hold no more sums than those of one: where registers are few.
inline bool prefers_one_vector(std::int64_t sums) {
  return most_rows(sums, 2) * 2 <= most_rows(sums, 1);
}

// How many vectors of 16 floats a tile is wide. Wider ones, of as many sums, were not faster.
inline std::int64_t usual_vectors(std::int64_t sums) { return prefers_one_vector(sums) ? 1 : 2; }

}  // namespace backplane::kernels
