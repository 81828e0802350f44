#include "core/runtime/isolate/worker_process.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <thread>
#include <utility>

extern "C" char** environ;

namespace backplane::runtime {

namespace {

constexpr int kFirstFree = 10;  // descriptors behind those that a worker inherits
constexpr int kSliceMs = 50;    // between two questions to the program whether it still waits
constexpr auto kByPidfd = static_cast<idtype_t>(3);  // P_PIDFD, which older headers lack
constexpr int kReapMs = 5000, kFinishMs = 2000;

Result<std::string> find_program() {
  const char* const given = ::getauxval(AT_SECURE) == 0 ? std::getenv("BACKPLANE_WORKER") : nullptr;
  if (given != nullptr && given[0] == '/') return std::string(given);
  Dl_info here{};
  ::dladdr(reinterpret_cast<const void*>(&find_program), &here);
  std::error_code error;
  // Of a program that links this statically, dladdr knows what the user wrote.
  const std::filesystem::path self =
      std::filesystem::canonical(here.dli_fname != nullptr ? here.dli_fname : "", error);
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  std::string tried;
  for (const std::filesystem::path& file : {self, program}) {
    if (file.empty()) continue;
    for (const char* relative :
         {"backplane-worker", "bin/backplane-worker", "../../bin/backplane-worker"}) {
      const std::filesystem::path path = (file.parent_path() / relative).lexically_normal();
      if (::access(path.c_str(), X_OK) == 0) return path.string();
      tried += (tried.empty() ? "" : ", ") + path.string();
    }
  }
  return Status(Code::kNotFound,
                "the program backplane-worker was not found (" + tried +
                    "); reinstall torch-backplane, or name it in BACKPLANE_WORKER");
}

// The parent tells of crashes and long calls, and its own state is not the worker's.
std::vector<std::string> worker_environment(std::uint32_t thread_count) {
  constexpr const char* kOwn[] = {
      "BACKPLANE_ISOLATION=", "BACKPLANE_CRASH_WORDS=", "BACKPLANE_PATIENCE=",
      "BACKPLANE_STATE_DIR=", "BACKPLANE_TRACE=",       "BACKPLANE_DEADLINE="};
  std::vector<std::string> out;
  bool has_threads = false;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    bool is_own = false;
    for (const char* own : kOwn) is_own = is_own || text.starts_with(own);
    has_threads = has_threads || text.starts_with("OMP_NUM_THREADS=");
    if (!is_own) out.emplace_back(text);
  }
  out.emplace_back("BACKPLANE_CRASH_WORDS=0");
  out.emplace_back("BACKPLANE_PATIENCE=0");
  out.emplace_back("BACKPLANE_STATE_DIR=off");  // nothing outlives it
  if (!has_threads) out.push_back("OMP_NUM_THREADS=" + std::to_string(thread_count));
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

class SpawnSettings {
 public:
  SpawnSettings() {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawnattr_init(&attributes_);
  }
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  void inherit(int fd, int as) { ::posix_spawn_file_actions_adddup2(&actions_, fd, as); }
  // A group of its own gets no Ctrl-C; signals are as in a fresh program.
  void stand_alone() {
    ::posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    ::posix_spawnattr_setpgroup(&attributes_, 0);
    sigset_t signals;
    ::sigemptyset(&signals);
    ::posix_spawnattr_setsigmask(&attributes_, &signals);
    ::sigfillset(&signals);
    ::posix_spawnattr_setsigdefault(&attributes_, &signals);
  }
  int start(pid_t& pid, std::vector<std::string> words, std::vector<std::string> environment) {
    return ::posix_spawn(&pid, words[0].c_str(), &actions_, &attributes_, pointers(words).data(),
                         pointers(environment).data());
  }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

}  // namespace

Result<std::shared_ptr<WorkerProcess>> WorkerProcess::start(const std::string& plugin_path,
                                                            const SharedMapping& memory,
                                                            std::uint32_t thread_count) {
  BP_ASSIGN_OR_RETURN(const std::string program, find_program());
  const auto no_worker = [&](int error) {
    return Status(Code::kResourceBusy, "cannot start " + program + ": " + std::strerror(error));
  };
  std::shared_ptr<WorkerProcess> made(new WorkerProcess);
  Channel there;
  if (!make_channels(made->control_, there)) return no_worker(errno);
  // Out of the way of the numbers that they get.
  const Channel control(::fcntl(there.fd(), F_DUPFD_CLOEXEC, kFirstFree));
  const Channel shared(::fcntl(memory.fd(), F_DUPFD_CLOEXEC, kFirstFree));
  if (!control || !shared) return no_worker(errno);
  SpawnSettings settings;
  settings.inherit(control.fd(), kWorkerControl);
  settings.inherit(shared.fd(), kWorkerMemory);
  settings.stand_alone();
  const int error =
      settings.start(made->pid_, {program, plugin_path, std::to_string(memory.bytes())},
                     worker_environment(thread_count));
  if (error != 0) {
    made->is_reaped_ = true;
    made->is_alive_ = false;
    return no_worker(error);
  }
  made->pidfd_ = Channel(static_cast<int>(::syscall(SYS_pidfd_open, made->pid_, 0)));
  return made;
}

WorkerProcess::~WorkerProcess() {
  if (pid_ == 0 || is_reaped_) return;
  end_now();
  static_cast<void>(reap(kReapMs));
}

Channel WorkerProcess::take_channel() {
  if (!is_alive()) return {};
  const std::lock_guard lock(mutex_);
  if (!idle_.empty()) {
    Channel channel = std::move(idle_.back());
    idle_.pop_back();
    return channel;
  }
  Channel here, there;
  if (!make_channels(here, there) || !control_.send_descriptor(there.fd())) return {};
  here.set_patience(kSliceMs);
  return here;
}

void WorkerProcess::give_channel(Channel channel) {
  if (!is_alive()) return;
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(channel));
}

void WorkerProcess::kill(std::string why) {
  is_alive_.store(false, std::memory_order_release);
  const std::lock_guard lock(mutex_);
  if (why_killed_.empty()) why_killed_ = std::move(why);
  if (!is_reaped_) end_now();
}

void WorkerProcess::end_now() const {
  if (pidfd_)
    ::syscall(SYS_pidfd_send_signal, pidfd_.fd(), SIGKILL, nullptr, 0);
  else
    ::kill(pid_, SIGKILL);
}

// Another part of the program may have waited for all of its children.
bool WorkerProcess::reap(int timeout_ms) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    constexpr int kHow = WEXITED | WNOHANG;
    const int failed = pidfd_ ? ::waitid(kByPidfd, static_cast<id_t>(pidfd_.fd()), &end_, kHow)
                              : ::waitid(P_PID, static_cast<id_t>(pid_), &end_, kHow);
    if (failed == 0 ? end_.si_pid != 0 : errno != EINTR) {
      if (failed != 0) end_ = {};
      return is_reaped_ = true;
    }
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::string WorkerProcess::how_it_ended() {
  is_alive_.store(false, std::memory_order_release);
  const std::lock_guard lock(mutex_);
  if (!is_reaped_ && !reap(kReapMs)) {
    end_now();  // it closed its end and goes on
    return "by closing its end";
  }
  if (!why_killed_.empty()) return why_killed_;
  if (end_.si_pid == 0) return "in a way that somebody else was told";
  if (end_.si_code == CLD_EXITED) return "with exit status " + std::to_string(end_.si_status);
  const int signal = end_.si_status;
  const char* const name = ::sigabbrev_np(signal);
  std::string text = "by ";
  text += name != nullptr ? "SIG" + std::string(name) : "signal " + std::to_string(signal);
  if (signal == SIGKILL) text += ", as the system does where memory is short";
  return text;
}

void WorkerProcess::finish() {
  is_alive_.store(false, std::memory_order_release);
  const std::lock_guard lock(mutex_);
  control_ = Channel();
  idle_.clear();
  if (is_reaped_ || reap(kFinishMs)) return;
  end_now();
  static_cast<void>(reap(kReapMs));
}

}  // namespace backplane::runtime
