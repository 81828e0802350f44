#include "core/runtime/watch/quarantine.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>

#include "core/base/fork.h"
#include "core/base/log.h"
#include "core/runtime/host/error.h"
#include "core/runtime/watch/call_board.h"

namespace backplane::runtime {

namespace {

namespace fs = std::filesystem;

// Lines of fields between tabs; guarded by a lock on the file itself.
std::string list_path() {
  return state_directory().empty() ? std::string() : state_directory() + "/quarantine";
}

std::string reason_of(std::int32_t ended_by) {
  if (ended_by == kEndedByExit) return "exit()";
  const char* const name = ::sigabbrev_np(ended_by);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(ended_by);
}

std::string line_of(const Crash& crash) {
  return crash.sha256 + "\t" + std::to_string(crash.when_s) + "\t" + std::to_string(crash.pid) +
         "\t" + crash.name + "\t" + crash.reason + "\t" + crash.call + "\n";
}

std::optional<Crash> crash_of(const std::string& line) {
  std::istringstream in(line);
  std::string when, pid;
  Crash out;
  for (std::string* field : {&out.sha256, &when, &pid, &out.name, &out.reason})
    if (!std::getline(in, *field, '\t')) return std::nullopt;
  std::getline(in, out.call);
  const auto number = [](const std::string& text, std::int64_t& value) {
    return std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc();
  };
  if (!number(when, out.when_s) || !number(pid, out.pid)) return std::nullopt;
  return out;
}

// A file descriptor with the list's lock, which ends with it.
class LockedList {
 public:
  explicit LockedList(int flags)
      : fd_(list_path().empty()
                ? -1
                : ::open(list_path().c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600)) {
    if (fd_ >= 0 && ::flock(fd_, LOCK_EX) != 0) close();
  }
  ~LockedList() { close(); }
  LockedList(const LockedList&) = delete;
  LockedList& operator=(const LockedList&) = delete;
  explicit operator bool() const { return fd_ >= 0; }

  std::vector<Crash> read() const {
    std::string text;
    std::array<char, 4096> chunk;
    for (ssize_t got = 0;
         (got = ::pread(fd_, chunk.data(), chunk.size(), static_cast<off_t>(text.size()))) > 0;)
      text.append(chunk.data(), static_cast<std::size_t>(got));
    std::vector<Crash> out;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      if (auto crash = crash_of(line)) out.push_back(std::move(*crash));
    return out;
  }
  bool write(const std::vector<Crash>& crashes) const {
    std::string text;
    for (const Crash& crash : crashes) text += line_of(crash);
    return ::ftruncate(fd_, 0) == 0 &&
           ::pwrite(fd_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  }

 private:
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  int fd_;
};

std::string printable(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == '\t' || c == '\n'; }, ' ');
  return copy_text({text.data(), text.size()});
}

std::vector<Crash> crashes_of(const CallBoard& board) {
  std::vector<Crash> out;
  const auto add = [&](const CallSlot& slot) {
    const std::int32_t ended_by = slot.ended_by.load();
    if (!slot.is_inside() || ended_by == 0) return;
    Crash crash;
    const std::string who = slot.who.text();
    crash.name = printable(who.substr(0, who.find(':')));
    crash.call = printable(slot_text(slot));
    crash.reason = reason_of(ended_by);
    crash.pid = board.pid;
    crash.when_s = board.end_s.load();
    const std::size_t count = std::min<std::size_t>(board.plugin_count.load(), CallBoard::kPlugins);
    for (std::size_t i = 0; i < count; ++i) {
      const LoadedPlugin& plugin = board.plugins[i];
      if (crash.name == plugin.name) crash.sha256 = std::string(plugin.sha256, 64);
    }
    if (!crash.sha256.empty()) out.push_back(std::move(crash));
  };
  for (const CallSlot& slot : board.slots) add(slot);
  add(board.of_foreign_threads);
  return out;
}

// Of one file that a process left, which is gone afterwards: whoever gets its lock removes it.
std::vector<Crash> read_board(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return {};
  struct stat info {};
  std::vector<Crash> out;
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == ::geteuid() &&
      lock_board_file(fd) && ::fstat(fd, &info) == 0 && info.st_nlink != 0) {
    if (info.st_size == sizeof(CallBoard)) {
      void* const memory = ::mmap(nullptr, sizeof(CallBoard), PROT_READ, MAP_PRIVATE, fd, 0);
      if (memory != MAP_FAILED) {
        const auto& board = *static_cast<const CallBoard*>(memory);
        if (std::string_view(board.magic, sizeof board.magic) == kBoardMagic &&
            board.version == kBoardVersion)
          out = crashes_of(board);
        ::munmap(memory, sizeof(CallBoard));
      }
    }
    ::unlink(path.c_str());
  }
  ::close(fd);
  return out;
}

}  // namespace

std::string Crash::text() const {
  const auto when = static_cast<std::time_t>(when_s);
  std::tm parts{};
  ::gmtime_r(&when, &parts);
  std::array<char, 32> clock;
  std::strftime(clock.data(), clock.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return "process " + std::to_string(pid) + " ended by " + reason + " inside of " + call + " at " +
         clock.data();
}

void read_earlier_crashes() {
  static std::mutex& mutex = fork_mutex(ForkRank::kOuter);
  static bool is_done = false;
  const std::lock_guard lock(mutex);
  if (std::exchange(is_done, true)) return;
  if (state_directory().empty()) return;
  const std::int64_t own = ::getpid();
  std::vector<Crash> found;
  std::error_code error;
  fs::directory_iterator it(state_directory() + "/calls", error);
  for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
    // A lock on one's own file would end with this look at it.
    if (it->path().stem() == std::to_string(own)) continue;
    for (Crash& crash : read_board(it->path())) found.push_back(std::move(crash));
  }
  if (found.empty()) return;
  const LockedList list(O_RDWR | O_CREAT);
  if (!list) return;
  std::vector<Crash> all = list.read();
  for (Crash& crash : found) {
    log(LogLevel::kWarning,
        crash.text() + "; plugin '" + crash.name +
            "' is left out until it is built anew, or asked for: backplane doctor --release " +
            crash.name);
    std::erase_if(all, [&](const Crash& known) { return known.sha256 == crash.sha256; });
    all.push_back(std::move(crash));
  }
  if (!list.write(all)) log(LogLevel::kWarning, "cannot write " + list_path());
}

std::vector<Crash> quarantined() {
  const LockedList list(O_RDONLY);
  return list ? list.read() : std::vector<Crash>();
}

Status check_quarantine(std::string_view sha256) {
  const char* const asked = std::getenv("BACKPLANE_QUARANTINE");
  const std::string_view word = asked != nullptr ? asked : "";
  if (word == "off" || word == "0") return {};
  for (const Crash& crash : quarantined())
    if (crash.sha256 == sha256)
      return {Code::kInvalidArgument, crash.text() +
                                          "; to let it in again: backplane doctor --release " +
                                          crash.name + ", or BACKPLANE_QUARANTINE=off"};
  return {};
}

Result<std::size_t> release_quarantined(std::string_view name) {
  const LockedList list(O_RDWR);
  if (!list) return std::size_t{0};
  std::vector<Crash> all = list.read();
  const std::size_t count = std::erase_if(all, [&](const Crash& one) { return one.name == name; });
  if (count != 0 && !list.write(all))
    return Status(Code::kInternal, "Cannot write " + list_path() + ".");
  return count;
}

}  // namespace backplane::runtime
