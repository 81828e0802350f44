#include "core/runtime/watch/call_board.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <new>
#include <type_traits>

#include "core/base/fork.h"
#include "core/base/log.h"
#include "core/runtime/host/handles.h"
#include "core/runtime/host/own_directory.h"

namespace backplane::runtime {

namespace {

constexpr std::size_t kSignalStackBytes = std::size_t{64} << 10;

void leave_to_parent(void* none);
std::mutex& board_mutex() {
  static std::mutex* const mutex = [] {
    auto* const made = new std::mutex;
    hold_over_fork(*made, ForkRank::kOuter, leave_to_parent);
    return made;
  }();
  return *mutex;
}
// Made under the mutex; a child of fork() starts without.
std::atomic<CallBoard*> board{nullptr};
std::string* board_path = nullptr;  // empty: in memory alone
void leave_to_parent(void*) {
  board.store(nullptr);
  board_path = nullptr;
  detail::board_number.fetch_add(1);
}

std::string boards_directory() {
  const std::string& state = state_directory();
  if (state.empty()) return {};
  const std::string folder = state + "/calls";
  return directory_fault(folder).empty() ? folder : std::string();
}

void* map_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return MAP_FAILED;
  void* memory = MAP_FAILED;
  if (lock_board_file(fd) && ::ftruncate(fd, sizeof(CallBoard)) == 0)
    memory = ::mmap(nullptr, sizeof(CallBoard), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    ::close(fd);
    ::unlink(path.c_str());
  }
  return memory;  // the descriptor stays open: it holds the lock
}

// A process that ends in order leaves nothing.
void leave_in_order() {
  const std::lock_guard lock(board_mutex());
  const CallBoard* const all = board.load();
  if (all == nullptr || all->pid != ::getpid() || board_path->empty()) return;
  if (all->end_s.load() == 0) ::unlink(board_path->c_str());
}

CallBoard* make_board() {
  static_assert(std::is_trivially_destructible_v<CallBoard>);
  const std::string folder = boards_directory();
  std::string path = folder.empty()
                         ? folder
                         : folder + "/" + std::to_string(::getpid()) + "." +
                               std::to_string(static_cast<long long>(std::time(nullptr)));
  void* memory = path.empty() ? MAP_FAILED : map_file(path);
  if (memory == MAP_FAILED) {
    path.clear();
    alignas(CallBoard) static std::array<std::byte, sizeof(CallBoard)> in_memory;
    in_memory.fill(std::byte{0});  // a child of fork() has its parent's
    memory = in_memory.data();
  }
  auto* const made = static_cast<CallBoard*>(memory);  // zeros are its first state
  made->version = kBoardVersion;
  made->pid = ::getpid();
  std::memcpy(made->magic, kBoardMagic.data(), sizeof made->magic);
  board_path = new std::string(std::move(path));
  return made;
}

// Gives the slot back when the thread ends. Inside of a call, exit() is what ends it: it comes here
// first.
struct ThreadEnd {
  void* stack = nullptr;
  ~ThreadEnd() {
    CallSlot* const slot = detail::thread_slot.board == detail::board_number.load()
                               ? detail::thread_slot.slot
                               : nullptr;
    detail::thread_slot.slot = nullptr;
    if (slot != nullptr && slot->is_inside()) {
      call_board().end_s.store(static_cast<std::int64_t>(std::time(nullptr)));
      slot->ended_by.store(kEndedByExit);
    } else if (slot != nullptr) {
      slot->thread.store(0);
    }
    if (stack == nullptr) return;
    stack_t off{};
    off.ss_flags = SS_DISABLE;
    ::sigaltstack(&off, nullptr);
    ::munmap(stack, kSignalStackBytes);
  }
};

// A crash by too deep a recursion can be told on a stack of its own alone.
void give_signal_stack(ThreadEnd& end) {
  stack_t now{};
  if (end.stack != nullptr || ::sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0)
    return;
  void* const memory = ::mmap(nullptr, kSignalStackBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) return;
  now = {};
  now.ss_sp = memory;
  now.ss_size = kSignalStackBytes;
  if (::sigaltstack(&now, nullptr) == 0)
    end.stack = memory;
  else
    ::munmap(memory, kSignalStackBytes);
}

}  // namespace

namespace detail {

constinit thread_local ThreadSlot thread_slot;
std::atomic<std::uint32_t> board_number{0};

void take_slot() {
  static thread_local ThreadEnd end;
  CallBoard& all = call_board();
  thread_slot.board = board_number.load();
  thread_slot.slot = nullptr;
  const auto self = static_cast<std::uint32_t>(::syscall(SYS_gettid));
  for (CallSlot& slot : all.slots) {
    std::uint32_t nobody = 0;
    if (!slot.thread.compare_exchange_strong(nobody, self)) continue;
    thread_slot.slot = &slot;
    break;
  }
  give_signal_stack(end);
}

}  // namespace detail

std::string slot_text(const CallSlot& slot) {
  const std::string detail = slot.detail.text();
  return slot.who.text() + ": " + slot.entry.text() +
         (detail.empty() ? std::string() : " (" + detail + ")");
}

namespace {

CurrentCall current_call() {
  const detail::ThreadSlot& mine = detail::thread_slot;
  if (mine.slot == nullptr || mine.depth == 0) return {};
  std::string who = mine.slot->who.text();
  // The slot says the outermost call, and may be cut.
  const bool is_sure = mine.depth == 1 && who.size() + 1 < sizeof mine.slot->who;
  return {is_sure ? who.substr(0, who.find(':')) : std::string(), slot_text(*mine.slot)};
}
[[maybe_unused]] const bool is_asked = (set_current_call(current_call), true);

}  // namespace

CallBoard& call_board() {
  static const int registered = std::atexit(leave_in_order);
  (void)registered;
  const std::lock_guard lock(board_mutex());
  if (board.load() == nullptr) {
    board.store(make_board());
    if (detail::board_number.load() == 0) detail::board_number.store(1);
  }
  return *board.load();
}

CallBoard* board_now() { return board.load(); }

bool lock_board_file(int fd) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return ::fcntl(fd, F_SETLK, &lock) == 0;
}

void note_plugin(std::string_view name, std::string_view sha256) {
  CallBoard& all = call_board();
  const std::lock_guard lock(board_mutex());
  const std::uint32_t count = all.plugin_count.load();
  if (count >= CallBoard::kPlugins) return;
  LoadedPlugin& plugin = all.plugins[count];
  name.copy(plugin.name, sizeof plugin.name - 1);
  sha256.copy(plugin.sha256, sizeof plugin.sha256 - 1);
  all.plugin_count.store(count + 1);
}

const std::string& state_directory() {
  static const auto* const found = []() -> const std::string* {
    if (::getauxval(AT_SECURE) != 0) return new std::string;
    const auto given = [](const char* variable) -> std::string {
      const char* const text = std::getenv(variable);
      return text != nullptr && text[0] == '/' ? text : "";
    };
    const char* const asked = std::getenv("BACKPLANE_STATE_DIR");
    if (asked != nullptr && std::string_view(asked) == "off") return new std::string;
    std::string path = given("BACKPLANE_STATE_DIR");
    if (path.empty() && !given("XDG_STATE_HOME").empty())
      path = given("XDG_STATE_HOME") + "/backplane";
    if (path.empty() && !home_directory().empty())
      path = home_directory() + "/.local/state/backplane";
    if (const std::string fault = path.empty() ? "" : directory_fault(path); !fault.empty()) {
      if (path == given("BACKPLANE_STATE_DIR"))
        log(LogLevel::kWarning, "the state directory '" + path + "' is not used: " + fault +
                                    "; a plugin that ends this process is not put into quarantine "
                                    "(set BACKPLANE_STATE_DIR to a directory of your own)");
      path.clear();
    }
    return new std::string(std::move(path));
  }();
  return *found;
}

}  // namespace backplane::runtime
