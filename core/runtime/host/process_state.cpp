#include "core/runtime/host/process_state.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "core/base/fork.h"
#include "core/base/log.h"

namespace backplane::runtime {

namespace {

std::atomic<pid_t> current_pid{0};

bool same_action(const struct sigaction& a, const struct sigaction& b) {
  // sa_handler and sa_sigaction share their place. The kernel fills 64 bits of the mask, no more.
  return a.sa_sigaction == b.sa_sigaction && a.sa_flags == b.sa_flags &&
         std::memcmp(&a.sa_mask, &b.sa_mask, 8) == 0;
}

std::int64_t clock_now(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Of the runtime itself; as long as the process.
struct OwnThread {
  std::atomic<pid_t> process{0}, id{0};
  std::atomic<clockid_t> clock{0};
};
OwnThread own_thread;

std::int64_t own_thread_time() {
  return own_thread.process == ::getpid() ? clock_now(own_thread.clock) : 0;
}

bool is_another_running() {
  struct Close {
    void operator()(DIR* folder) const { ::closedir(folder); }
  };
  const std::unique_ptr<DIR, Close> tasks(::opendir("/proc/self/task"));
  if (tasks == nullptr) return true;
  const std::string self = std::to_string(::syscall(SYS_gettid)),
                    own = std::to_string(own_thread.id);
  while (const dirent* const task = ::readdir(tasks.get())) {
    if (task->d_name[0] == '.' || self == task->d_name || own == task->d_name) continue;
    std::ifstream file("/proc/self/task/" + std::string(task->d_name) + "/stat");
    std::string text;
    std::getline(file, text);  // the name, in parentheses, may have any character
    const std::size_t name_end = text.rfind(") ");
    if (name_end != std::string::npos && text[name_end + 2] == 'R') return true;
  }
  return false;
}

thread_local std::uint32_t program_runs = 0;
constexpr std::chrono::milliseconds kStoppingTime{2};

// Whether this thread alone ran since: what has changed then, this thread has changed. The system
// adds up what a thread ran when it stops, so who still runs is asked first, and after a moment: a
// thread says that it waits before it has stopped.
class Alone {
 public:
  bool is_still() const {
    if (program_runs != program_runs_) return false;
    std::this_thread::sleep_for(kStoppingTime);
    if (is_another_running()) return false;
    const std::int64_t all = clock_now(CLOCK_PROCESS_CPUTIME_ID) - all_;
    const std::int64_t of_others =
        all - (clock_now(CLOCK_THREAD_CPUTIME_ID) - own_) - (own_thread_time() - runtime_);
    // Below 0 by the time between the readings; where timers of the process tick, the system's sums
    // lag and say nothing.
    constexpr std::int64_t kReadingsNs = 100'000;
    return of_others <= 0 && of_others >= -kReadingsNs;
  }

 private:
  const std::uint32_t program_runs_ = program_runs;
  const std::int64_t own_ = clock_now(CLOCK_THREAD_CPUTIME_ID);
  const std::int64_t runtime_ = own_thread_time();
  const std::int64_t all_ = clock_now(CLOCK_PROCESS_CPUTIME_ID);
};

// From /proc, because umask() can only be read by changing it for all threads. -1: unknown.
int read_umask() {
  const int fd = ::open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  std::array<char, 512> text{};
  const ssize_t size = ::read(fd, text.data(), text.size() - 1);
  ::close(fd);
  if (size <= 0) return -1;
  const char* line = std::strstr(text.data(), "\nUmask:");
  return line == nullptr ? -1 : static_cast<int>(std::strtol(line + 7, nullptr, 8));
}

}  // namespace

// A plugin that changes the state in every call must not flood the log.
void warn_once(const std::string& text) {
  static std::mutex& mutex = fork_mutex();
  static auto* const seen = new std::set<std::string>;
  {
    const std::lock_guard lock(mutex);
    constexpr std::size_t kLimit = 1000;
    if (seen->size() >= kLimit || !seen->insert(text).second) return;
  }
  log(LogLevel::kWarning, text);
}

void write_fp_control(const FpControl& control) {
#if defined(__x86_64__)
  const auto x87 = static_cast<std::uint16_t>(control.words >> 32);
  __asm__ volatile("fldcw %0" : : "m"(x87));
  _mm_setcsr(static_cast<std::uint32_t>(control.words));
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"(control.words));
#else
  (void)control;
#endif
}

void restore_fp_control(const FpControl& before, std::string_view call) {
  if (read_fp_control() == before) return;
  write_fp_control(before);
  warn_once(std::string(call) +
            " changed the floating-point control state (flush-to-zero, rounding or exception "
            "masks); it was restored; the plugin must leave it as it found it");
}

void note_program_runs() { ++program_runs; }

void note_own_thread() {
  clockid_t clock{};
  if (::pthread_getcpuclockid(::pthread_self(), &clock) != 0) return;
  own_thread.clock = clock;
  own_thread.id = static_cast<pid_t>(::syscall(SYS_gettid));
  own_thread.process = ::getpid();
}

struct ProcessStateGuard::State {
  ~State() {
    if (folder >= 0) ::close(folder);
  }
  FpControl fp;
  std::array<struct sigaction, 65> actions{};  // by signal number
  std::string locale;
  locale_t thread_locale = nullptr;
  int umask = -1;
  int folder = -1;  // the working directory; -1: unknown
  Alone alone;
};

// Whether the working directory is another one than that.
bool has_moved(int folder) {
  struct stat before {
  }, now{};
  return folder >= 0 && ::fstat(folder, &before) == 0 &&
         (::stat(".", &now) != 0 || now.st_ino != before.st_ino || now.st_dev != before.st_dev);
}

ProcessStateGuard::ProcessStateGuard(std::string call)
    : call_(std::move(call)), before_(std::make_unique<State>()) {
  before_->fp = read_fp_control();
  for (int number = 1; number < 65; ++number) {
    ::sigaction(number, nullptr, &before_->actions[static_cast<std::size_t>(number)]);
  }
  const char* locale = std::setlocale(LC_ALL, nullptr);
  before_->locale = locale != nullptr ? locale : "C";
  before_->thread_locale = ::uselocale(nullptr);
  before_->umask = read_umask();
  before_->folder = ::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
}

ProcessStateGuard::~ProcessStateGuard() {
  restore_fp_control(before_->fp, call_);
  if (::uselocale(nullptr) != before_->thread_locale) {
    ::uselocale(before_->thread_locale);
    warn_once(call_ + " changed the thread's locale; it was restored");
  }
  std::vector<int> numbers;
  std::string changed;
  const auto add = [&](const std::string& what) {
    changed += (changed.empty() ? "" : ", ") + what;
  };
  for (int number = 1; number < 65; ++number) {
    struct sigaction now {};
    if (::sigaction(number, nullptr, &now) != 0 ||
        same_action(now, before_->actions[static_cast<std::size_t>(number)]))
      continue;
    const char* const name = ::sigabbrev_np(number);
    add("the handler of " + (name ? "SIG" + std::string(name) : std::to_string(number)));
    numbers.push_back(number);
  }
  const char* const locale = std::setlocale(LC_ALL, nullptr);
  const bool is_other_locale = locale == nullptr || before_->locale != locale;
  if (is_other_locale)
    add("the locale from '" + before_->locale + "' to '" + (locale != nullptr ? locale : "") + "'");
  const int mask = read_umask();
  const bool is_other_mask = mask >= 0 && before_->umask >= 0 && mask != before_->umask;
  if (is_other_mask) add("the umask");
  const bool is_elsewhere = has_moved(before_->folder);
  if (is_elsewhere) add("the working directory");
  if (changed.empty()) return;
  if (!before_->alone.is_still()) {
    warn_once("inside of " + call_ + ", in which other code of the program ran as well, changed: " +
              changed + "; that stays; if the plugin did it, it must not");
    return;
  }
  for (const int number : numbers)
    ::sigaction(number, &before_->actions[static_cast<std::size_t>(number)], nullptr);
  if (is_other_locale) std::setlocale(LC_ALL, before_->locale.c_str());
  if (is_other_mask) ::umask(static_cast<mode_t>(before_->umask));
  if (is_elsewhere && ::fchdir(before_->folder) != 0) changed += " (to which there is no way back)";
  warn_once(
      call_ + " changed " + changed +
      "; what was there before was put back; the plugin must leave such things as it found them");
}

pid_t process_id() {
  const pid_t known = current_pid.load(std::memory_order_relaxed);
  if (known != 0) [[likely]]
    return known;
  static const int registered = ::pthread_atfork(
      nullptr, nullptr, [] { current_pid.store(::getpid(), std::memory_order_relaxed); });
  (void)registered;
  current_pid.store(::getpid(), std::memory_order_relaxed);
  return current_pid.load(std::memory_order_relaxed);
}

}  // namespace backplane::runtime
