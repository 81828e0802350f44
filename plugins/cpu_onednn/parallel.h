// Loops over the OpenMP team that the process shares. Work below kSmallWork runs in the caller.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace backplane::onednn {

// In element operations; a parked team costs tens of microseconds to wake.
inline constexpr std::int64_t kSmallWork = 32 * 1024;

inline int team_size(std::int64_t units, std::int64_t work) {
  if (work < kSmallWork || units < 2 || omp_in_parallel()) return 1;
  return static_cast<int>(std::min<std::int64_t>(omp_get_max_threads(), units));
}

// body(thread, begin, end) over even parts of [0, units). `work` is the cost of all of it.
template <class F>
void parallel_ranges(std::int64_t units, std::int64_t work, F&& body) {
  const int team = team_size(units, work);
  if (team <= 1) {
    body(0, std::int64_t{0}, units);
    return;
  }
#pragma omp parallel num_threads(team)
  {
    const std::int64_t thread = omp_get_thread_num(), count = omp_get_num_threads();
    body(static_cast<int>(thread), units * thread / count, units * (thread + 1) / count);
  }
}

}  // namespace backplane::onednn
