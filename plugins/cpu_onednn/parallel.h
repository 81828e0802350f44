// Loops over the OpenMP team that the process shares. Work below kSmallWork runs in the caller.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace backplane::onednn {

// The thread sanitizer cannot see in which order libgomp lets threads run: it is told. One place
// serves all teams, since a worker reads where its own team's things are only after it began.
namespace team_order {
#ifdef __SANITIZE_THREAD__
inline char begun, ended;
inline void before_team() { __tsan_release(&begun); }
inline void begin_worker() { __tsan_acquire(&begun); }
inline void end_worker() { __tsan_release(&ended); }
inline void after_team() { __tsan_acquire(&ended); }
// What libgomp hands to its workers is written behind `before_team`.
#define BP_ORDERED_TEAM __attribute__((no_sanitize("thread")))
#else
inline void before_team() {}
inline void begin_worker() {}
inline void end_worker() {}
inline void after_team() {}
#define BP_ORDERED_TEAM
#endif
}  // namespace team_order

// body(thread, count) on each thread of a team.
template <class F>
BP_ORDERED_TEAM void run_team(int team, F&& body) {
  team_order::before_team();
#pragma omp parallel num_threads(team)
  {
    team_order::begin_worker();
    body(std::int64_t{omp_get_thread_num()}, std::int64_t{omp_get_num_threads()});
    team_order::end_worker();
  }
  team_order::after_team();
}

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
  run_team(team, [&](std::int64_t thread, std::int64_t count) {
    body(static_cast<int>(thread), units * thread / count, units * (thread + 1) / count);
  });
}

}  // namespace backplane::onednn
