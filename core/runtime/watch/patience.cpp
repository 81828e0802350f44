#include "core/runtime/watch/patience.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>

#include "core/base/log.h"
#include "core/runtime/host/process_state.h"
#include "core/runtime/watch/call_board.h"

namespace backplane::runtime {

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
constexpr double kDefaultSeconds = 10;
constexpr double kTicks = 8;  // how often it looks while nobody is told yet

Seconds patience() {
  const char* const text = std::getenv("BACKPLANE_PATIENCE");
  if (text == nullptr || *text == 0) return Seconds(kDefaultSeconds);
  return Seconds(std::strtod(text, nullptr));
}

struct Seen {
  std::uint32_t sequence = 0;
  Clock::time_point since;
  Seconds next_word{0};
};

[[noreturn]] void watch(CallBoard& board, Seconds first_word) {
  std::array<Seen, CallBoard::kSlots> seen{};
  const auto tick = std::min(Seconds(1), first_word / kTicks);
  for (;;) {
    std::this_thread::sleep_for(tick);
    const Clock::time_point now = Clock::now();
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const CallSlot& slot = board.slots[i];
      const std::uint32_t sequence = slot.sequence.load(std::memory_order_acquire);
      if (sequence % 2 == 0 || sequence != seen[i].sequence) {
        seen[i] = {sequence, now, first_word};
        continue;
      }
      const Seconds waited = now - seen[i].since;
      if (waited < seen[i].next_word) continue;
      seen[i].next_word = 2 * waited;
      log(LogLevel::kWarning, "still waiting for " + slot_text(slot) + ", " +
                                  std::to_string(std::lround(waited.count())) + " s");
    }
  }
}

}  // namespace

void start_patience() {
  static std::atomic<pid_t> started{0};
  if (started.exchange(process_id()) == process_id()) return;
  const Seconds first_word = patience();
  if (!(first_word > Seconds(0))) return;
  CallBoard& board = call_board();
  // Signals are the program's threads' business.
  sigset_t all, former;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &former);
  static std::atomic<bool> is_known;
  is_known = false;  // in a child of fork()
  std::thread([&board, first_word] {
    note_own_thread();
    is_known = true;
    is_known.notify_one();
    watch(board, first_word);
  }).detach();
  is_known.wait(false);
  ::pthread_sigmask(SIG_SETMASK, &former, nullptr);
}

}  // namespace backplane::runtime
