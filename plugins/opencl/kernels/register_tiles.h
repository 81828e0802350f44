// How many sums of a product a work-item may keep in a CPU's registers.
#pragma once

#include <algorithm>
#include <cstdint>

namespace backplane::opencl {

// Rows of a tile that is so many vectors wide; `sums` as in DeviceFacts::product_sums.
inline std::int64_t most_rows(std::int64_t sums, std::int64_t vectors) {
  constexpr std::int64_t kMost = 14;
  return std::clamp<std::int64_t>(sums / vectors, 1, kMost);
}

}  // namespace backplane::opencl
