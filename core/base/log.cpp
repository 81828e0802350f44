#include "core/base/log.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include "core/base/fork.h"

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
  static std::mutex& mutex = fork_mutex(ForkRank::kLast);  // others log with theirs held
  return mutex;
}

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
