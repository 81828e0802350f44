#include "builders.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <thread>

extern char** environ;

namespace backplane::opencl {
namespace {

constexpr int kLimitMilliseconds = 120000;  // of one request
constexpr std::chrono::seconds kStartLimit{10};

// Beside the plugin; empty where it is not installed.
std::string builder_path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&builder_path), &info) == 0 || !info.dli_fname)
    return {};
  std::string path = info.dli_fname;
  path.resize(path.rfind('/') + 1);
  path += "backplane-opencl-build";
  return access(path.c_str(), X_OK) == 0 ? path : std::string();
}

// Its socket; -1 where none could be started.
int start(std::uint32_t device) {
  const std::string path = builder_path(), number = std::to_string(device);
  int ends[2] = {-1, -1};
  if (path.empty() || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return -1;
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, ends[1], STDIN_FILENO);
  for (const int out : {STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_addopen(&files, out, "/dev/null", O_WRONLY, 0);
  const char* arguments[] = {path.c_str(), number.c_str(), nullptr};
  pid_t process = -1;
  const bool started = posix_spawn(&process, path.c_str(), &files, nullptr,
                                   const_cast<char**>(arguments), environ) == 0;
  posix_spawn_file_actions_destroy(&files);
  close(ends[1]);
  if (!started) {
    close(ends[0]);
    return -1;
  }
  // It leaves a child of its own behind and ends at once: no program finds one that it does not
  // know.
  const auto deadline = std::chrono::steady_clock::now() + kStartLimit;
  for (pid_t ended = 0; ended == 0 || (ended < 0 && errno == EINTR);) {
    ended = waitpid(process, nullptr, WNOHANG);
    if (ended == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (std::chrono::steady_clock::now() > deadline) kill(process, SIGKILL);
  }
  return ends[0];
}

bool send_all(int socket, std::string_view text) {
  while (!text.empty()) {
    const ssize_t done = send(socket, text.data(), text.size(), MSG_NOSIGNAL);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(done));
  }
  return true;
}

// Whether it answered. One that has ended closed its end.
bool receive(int socket, char& out_answer) {
  pollfd waiting{socket, POLLIN, 0};
  int ready = 0;
  do {
    ready = poll(&waiting, 1, kLimitMilliseconds);
  } while (ready < 0 && errno == EINTR);
  return ready > 0 && recv(socket, &out_answer, 1, 0) == 1;
}

std::string text_of(std::string_view options, const BuildRequest& request) {
  std::string text(options);
  for (const std::string& entry : request.entries) text += '\n' + entry;
  text += "\n\n" + request.source;
  const std::uint64_t size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + text;
}

}  // namespace

Builders::~Builders() {
  for (const int socket : sockets_)
    if (socket >= 0) close(socket);
}

bool Builders::build_one(std::size_t builder, const std::string& text) {
  int& socket = sockets_[builder];
  // The second time where the first had ended since its last work.
  for (int attempt = 0; attempt < 2; ++attempt) {
    const bool is_new = socket < 0;
    if (is_new) socket = start(device_);
    if (socket < 0) return false;
    char answer = 0;
    if (send_all(socket, text) && receive(socket, answer)) return answer == '1';
    close(socket);
    socket = -1;
    if (is_new) return false;
  }
  return false;
}

bool Builders::are_running() {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(sockets_, [](int socket) { return socket >= 0; });
}

bool Builders::build(std::string_view options, std::span<const BuildRequest> requests) {
  const std::lock_guard lock(mutex_);
  if (sockets_.size() < requests.size()) sockets_.resize(requests.size(), -1);
  std::vector<char> built(requests.size(), 0);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < requests.size(); ++i)
    threads.emplace_back(
        [&, i] { built[i] = build_one(i, text_of(options, requests[i])) ? 1 : 0; });
  for (std::thread& thread : threads) thread.join();
  return std::find(built.begin(), built.end(), 0) == built.end();
}

}  // namespace backplane::opencl
