// What a plugin must leave as it found it: floating-point control around every call, signal
// handlers, locale, umask and working directory around load and open. A change is undone and named
// in the log; one of the whole process only where the calling thread alone ran meanwhile, since
// else it may be the program's own.
#pragma once

#include <csignal>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace backplane::runtime {

// Rounding, exception masks, flush-to-zero; not the sticky exception flags.
struct FpControl {
  std::uint64_t words = 0;
  bool operator==(const FpControl&) const = default;
};

inline FpControl read_fp_control() {
#if defined(__x86_64__)
  std::uint16_t x87 = 0;
  __asm__ volatile("fnstcw %0" : "=m"(x87));
  constexpr std::uint32_t kStickyFlags = 0x3f;
  return {(static_cast<std::uint64_t>(x87) << 32) | (_mm_getcsr() & ~kStickyFlags)};
#elif defined(__aarch64__)
  std::uint64_t fpcr = 0;
  __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
  return {fpcr};
#else
  return {};
#endif
}
// A warning about what a plugin does, each text once.
void warn_once(const std::string& text);
void write_fp_control(const FpControl& control);
// Writes `before` back where it differs, and says in the log that `call` changed it.
void restore_fp_control(const FpControl& before, std::string_view call);

// Compares and restores around one call into a plugin; costs 2 ns. `call` outlives the guard.
class FpGuard {
 public:
  explicit FpGuard(std::string_view call) : call_(call), before_(read_fp_control()) {}
  ~FpGuard() {
    if (read_fp_control() != before_) [[unlikely]]
      restore_fp_control(before_, call_);
  }
  FpGuard(const FpGuard&) = delete;
  FpGuard& operator=(const FpGuard&) = delete;

 private:
  std::string_view call_;
  FpControl before_;
};

// FpGuard and the slow rest (some 5 us): around load, negotiation, device open and shutdown.
class ProcessStateGuard {
 public:
  explicit ProcessStateGuard(std::string call);
  ~ProcessStateGuard();
  ProcessStateGuard(const ProcessStateGuard&) = delete;
  ProcessStateGuard& operator=(const ProcessStateGuard&) = delete;

 private:
  struct State;
  std::string call_;
  std::unique_ptr<State> before_;
};

// Inside of a call, in its thread: code of the program itself runs now, as handlers of signals do.
void note_program_runs();
// The calling thread, one that never ends, is the runtime's and changes nothing of the process.
void note_own_thread();

// getpid() without the system call: kept up to date by a fork handler.
pid_t process_id();

}  // namespace backplane::runtime
