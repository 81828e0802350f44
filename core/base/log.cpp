#include "core/base/log.h"

#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

namespace backplane {

namespace {

const std::string& topics() {
  static const std::string value = [] {
    const char* env = std::getenv("BACKPLANE_LOG");
    return env ? "," + std::string(env) + "," : std::string();
  }();
  return value;
}

std::mutex& output_mutex() {
  static auto* const mutex = new std::mutex;  // threads outlive static objects
  return *mutex;
}
// A leaf: registered before other fork handlers, so that it is taken after their locks.
[[maybe_unused]] const int fork_handlers =
    ::pthread_atfork([] { output_mutex().lock(); }, [] { output_mutex().unlock(); },
                     [] { output_mutex().unlock(); });

}  // namespace

bool log_enabled(std::string_view topic) {
  const std::string& all = topics();
  if (all.empty()) return false;
  if (all.find(",all,") != std::string::npos) return true;
  return all.find("," + std::string(topic) + ",") != std::string::npos;
}

void log(LogLevel level, std::string_view message) {
  if (level == LogLevel::kDebug && !log_enabled("debug")) return;
  const std::lock_guard lock(output_mutex());
  std::fprintf(stderr, "backplane: %.*s\n", static_cast<int>(message.size()), message.data());
}

void log_topic(std::string_view topic, std::string_view message) {
  if (!log_enabled(topic)) return;
  const std::lock_guard lock(output_mutex());
  std::fprintf(stderr, "%.*s\n", static_cast<int>(message.size()), message.data());
}

}  // namespace backplane
