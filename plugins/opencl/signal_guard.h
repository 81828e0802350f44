// Drivers with a compiler inside (PoCL: LLVM) install signal handlers when they start. The process's own
// come back at the end of the scope.
#pragma once

#include <csignal>

#include <array>

namespace backplane::opencl {

class SignalGuard {
 public:
  SignalGuard() {
    for (int s = 1; s < kCount; ++s) known_[s] = sigaction(s, nullptr, &before_[s]) == 0;
  }
  ~SignalGuard() {
    for (int s = 1; s < kCount; ++s)
      if (known_[s]) sigaction(s, &before_[s], nullptr);
  }
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

 private:
  static constexpr int kCount = 32;
  std::array<struct sigaction, kCount> before_{};
  std::array<bool, kCount> known_{};
};

}  // namespace backplane::opencl
