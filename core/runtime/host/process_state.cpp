#include "core/runtime/host/process_state.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

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
  std::string signals;
  for (int number = 1; number < 65; ++number) {
    struct sigaction now {};
    const struct sigaction& before = before_->actions[static_cast<std::size_t>(number)];
    if (::sigaction(number, nullptr, &now) != 0 || same_action(now, before)) continue;
    ::sigaction(number, &before, nullptr);
    const char* name = ::sigabbrev_np(number);
    signals +=
        (signals.empty() ? "" : ", ") + (name ? std::string("SIG") + name : std::to_string(number));
  }
  if (!signals.empty()) {
    warn_once(call_ + " installed signal handlers (" + signals +
              "); the former ones were put back; the plugin must leave them as it found them");
  }
  if (::uselocale(nullptr) != before_->thread_locale) {
    ::uselocale(before_->thread_locale);
    warn_once(call_ + " changed the thread's locale; it was restored");
  }
  const char* locale = std::setlocale(LC_ALL, nullptr);
  if (locale == nullptr || before_->locale != locale) {
    const std::string changed = locale != nullptr ? locale : "";
    std::setlocale(LC_ALL, before_->locale.c_str());
    warn_once(call_ + " changed the locale from '" + before_->locale + "' to '" + changed +
              "'; it was restored");
  }
  const int mask = read_umask();
  if (mask >= 0 && before_->umask >= 0 && mask != before_->umask) {
    ::umask(static_cast<mode_t>(before_->umask));
    warn_once(call_ + " changed the umask; it was restored");
  }
  if (has_moved(before_->folder) && ::fchdir(before_->folder) == 0)
    warn_once(call_ + " changed the working directory; it was restored");
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
