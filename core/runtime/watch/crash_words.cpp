#include "core/runtime/watch/crash_words.h"

#include <execinfo.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>

#include "core/base/fork.h"
#include "core/runtime/watch/call_board.h"

namespace backplane::runtime {

namespace {

constexpr std::array kSignals{SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
std::array<struct sigaction, kSignals.size()> before;

struct Code {
  std::atomic<std::uintptr_t> begin, end;
  SharedText<64> name;
};
std::array<Code, CallBoard::kPlugins> codes;
std::atomic<std::size_t> code_count{0};

// Everything from here to on_fatal runs inside of a signal handler: no lock, no allocation.
class Words {
 public:
  void add(const char* text) {
    const std::size_t size = std::min(std::strlen(text), text_.size() - size_);
    std::memcpy(text_.data() + size_, text, size);
    size_ += size;
  }
  void write() const {
    if (::write(STDERR_FILENO, text_.data(), size_) < 0) return;
  }

 private:
  std::array<char, 512> text_;
  std::size_t size_ = 0;
};

std::uintptr_t instruction(const void* context) {
  const auto& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return static_cast<std::uintptr_t>(machine.gregs[REG_RIP]);
#else
  return static_cast<std::uintptr_t>(machine.pc);
#endif
}

CallSlot* slot_of_this_thread(CallBoard& board) {
  const auto self = static_cast<std::uint32_t>(::syscall(SYS_gettid));
  for (CallSlot& slot : board.slots)
    if (slot.thread.load() == self && slot.is_inside()) return &slot;
  return nullptr;
}

// The nodes that some thread of the program waits for, or else asked for last: what "acme:0" is
// asked for belongs to acme. False: none.
bool find_nodes(const CallBoard& board, const char* plugin, std::array<char, 128>& out) {
  const std::size_t size = std::strlen(plugin);
  for (const bool waits : {true, false})
    for (const CallSlot& slot : board.slots) {
      if (slot.thread.load() == 0 || slot.is_inside() != waits) continue;
      std::array<char, 64> who;
      slot.who.get(who.data());
      if (std::strncmp(who.data(), plugin, size) != 0 || (who[size] != ':' && who[size] != 0))
        continue;
      slot.detail.get(out.data());
      if (out[0] != 0) return true;
    }
  return false;
}

const Code* find_code(std::uintptr_t address) {
  const std::size_t count = std::min(code_count.load(), codes.size());
  for (std::size_t i = 0; i < count; ++i)
    if (address >= codes[i].begin.load() && address < codes[i].end.load()) return &codes[i];
  return nullptr;
}

// The innermost code of a plugin on this thread's stack. Where the unwinder itself faults, the
// handler comes here again, and looks no further.
const Code* find_caller() {
  static std::atomic<bool> is_looking{false};
  if (is_looking.exchange(true)) return nullptr;
  std::array<void*, 128> frames;
  const int count = ::backtrace(frames.data(), static_cast<int>(frames.size()));
  const Code* found = nullptr;
  // Return addresses may lie just behind the code of a call that never returns.
  for (int i = 0; i < count && found == nullptr; ++i)
    found = find_code(reinterpret_cast<std::uintptr_t>(frames[static_cast<std::size_t>(i)]) - 1);
  is_looking = false;
  return found;
}

// Outside of calls, in a thread that a plugin started or while the process ends, its code is all
// that names it.
CallSlot* slot_of_code(CallBoard& board, std::uintptr_t address) {
  const Code* code = find_code(address);
  if (code == nullptr) code = find_caller();
  if (code == nullptr) return nullptr;
  std::array<char, 64> name;
  code->name.get(name.data());
  CallSlot& slot = board.of_foreign_threads;
  slot.who.set(name.data());
  const bool is_main = ::syscall(SYS_gettid) == ::getpid();
  slot.entry.set(is_main ? "outside of a call" : "a thread of its own");
  std::array<char, 128> nodes;
  slot.detail.set(!is_main && find_nodes(board, name.data(), nodes) ? nodes.data() : "");
  slot.sequence.store(1);
  return &slot;
}

void say(const CallSlot& slot, int number) {
  std::array<char, 128> text;
  Words words;
  const char* const name = ::sigabbrev_np(number);
  words.add("backplane: SIG");
  words.add(name != nullptr ? name : "?");
  words.add(" inside of plugin ");
  slot.who.get(text.data());
  words.add(text.data());
  words.add(": ");
  slot.entry.get(text.data());
  words.add(text.data());
  slot.detail.get(text.data());
  if (text[0] != 0) {
    words.add(" (");
    words.add(text.data());
    words.add(")");
  }
  words.add("; the process ends\n");
  words.write();
}

void on_fatal(int number, siginfo_t* info, void* context) {
  const int error = errno;
  if (CallBoard* const board = board_now()) {
    CallSlot* slot = slot_of_this_thread(*board);
    if (slot == nullptr) slot = slot_of_code(*board, instruction(context));
    if (slot != nullptr && slot->ended_by.exchange(number) == 0) {
      board->end_s.store(static_cast<std::int64_t>(std::time(nullptr)));
      say(*slot, number);
    }
  }
  for (std::size_t i = 0; i < kSignals.size(); ++i)
    if (kSignals[i] == number) ::sigaction(number, &before[i], nullptr);
  // A fault happens again when this returns, what somebody sent does not.
  if (info->si_code <= 0)
    ::syscall(SYS_tgkill, ::getpid(), static_cast<pid_t>(::syscall(SYS_gettid)), number);
  errno = error;
}

}  // namespace

void install_crash_words() {
  static std::mutex& mutex = fork_mutex();
  static bool is_done = false;
  const std::lock_guard lock(mutex);
  if (std::exchange(is_done, true)) return;
  const char* const asked = std::getenv("BACKPLANE_CRASH_WORDS");
  if (asked != nullptr && std::string_view(asked) == "0") return;
  std::array<void*, 4> frames;  // the unwinder is loaded now, and not in a handler
  static_cast<void>(::backtrace(frames.data(), static_cast<int>(frames.size())));
  struct sigaction action {};
  action.sa_sigaction = on_fatal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &action, &before[i]);
}

void note_code(std::string_view name, std::uintptr_t begin, std::uintptr_t end) {
  static std::mutex& mutex = fork_mutex();
  const std::lock_guard lock(mutex);
  const std::size_t at = code_count.load();
  if (at >= codes.size()) return;
  codes[at].name.set(name);
  codes[at].begin.store(begin);
  codes[at].end.store(end);
  code_count.store(at + 1);
}

}  // namespace backplane::runtime
