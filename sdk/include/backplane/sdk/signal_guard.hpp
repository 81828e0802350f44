// Drivers and compilers (LLVM in PoCL, NVRTC) install signal handlers when they start. The
// process's own come back at the end of the scope.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>

namespace backplane::sdk {

// Through the kernel's own call: the C library's adds a flag of its own to what it sets, and the
// action would not be the one that was there.
class SignalGuard {
 public:
  SignalGuard() {
    for (int s = 1; s < kCount; ++s) known_[at(s)] = read(s, before_[at(s)]);
  }
  ~SignalGuard() {
    for (int s = 1; s < kCount; ++s) {
      Action now{};
      if (known_[at(s)] && read(s, now) && now != before_[at(s)])
        syscall(SYS_rt_sigaction, s, before_[at(s)].data(), nullptr, kMaskBytes);
    }
  }
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

 private:
  static constexpr int kCount = 65;
  static constexpr std::size_t kMaskBytes = 8;
  using Action = std::array<std::byte, 64>;  // at least the kernel's struct
  static std::size_t at(int s) { return static_cast<std::size_t>(s); }
  static bool read(int s, Action& out) {
    return syscall(SYS_rt_sigaction, s, nullptr, out.data(), kMaskBytes) == 0;
  }
  std::array<Action, kCount> before_{};
  std::array<bool, kCount> known_{};
};

}  // namespace backplane::sdk
