#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

#include "core/runtime/host/host_services.h"

namespace backplane::runtime {

// How long to wait for work that does not end.
class WaitLimit {
 public:
  // Work in the host's memory is waited for without an end: that memory is somebody else's.
  explicit WaitLimit(bool in_host_memory) : has_end_(!in_host_memory) {
    const char* const text = std::getenv("BACKPLANE_DEADLINE");
    const double asked = text != nullptr ? std::strtod(text, nullptr) : 0;
    if (asked > 0) seconds_ = asked;
  }
  // Asked between the slices of the wait; asks the program in turn.
  bool is_over() {
    const double waited = Seconds(Clock::now() - begin_).count();
    if (!is_interrupted_ && wants_interrupt()) {
      is_interrupted_ = true;
      end_soon();
    }
    return has_end_ && waited >= seconds_;
  }
  // Most work ends by itself.
  void end_soon() {
    if (has_end_)
      seconds_ = std::min(seconds_, Seconds(Clock::now() - begin_).count() + kGraceSeconds);
  }
  bool is_interrupted() const { return is_interrupted_; }
  std::string text() const {
    return std::to_string(std::lround(seconds_)) + " s (BACKPLANE_DEADLINE)";
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  static constexpr double kGraceSeconds = 3;  // after Ctrl-C, or a wait that failed
  Clock::time_point begin_ = Clock::now();
  double seconds_ = std::numeric_limits<double>::infinity();
  bool has_end_, is_interrupted_ = false;
};

}  // namespace backplane::runtime
