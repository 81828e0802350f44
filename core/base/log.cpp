#include "core/base/log.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <string>

#include "core/base/fork.h"

namespace backplane {

namespace {

constexpr std::string_view kTopics[] = {"all",   "autograd", "breaks",     "bytecode", "cache",
                                        "debug", "fallback", "graph",      "guards",   "joint",
                                        "plan",  "plugins",  "recompiles", "transfers"};

const std::string& topics() {
  static const std::string value = [] {
    const char* env = std::getenv("BACKPLANE_LOG");
    if (env == nullptr) return std::string();
    if (const std::string unknown = describe_unknown_topics(env); !unknown.empty())
      std::fprintf(stderr, "backplane: %s\n", unknown.c_str());
    return "," + std::string(env) + ",";
  }();
  return value;
}

std::mutex& output_mutex() {
  static std::mutex& mutex = fork_mutex(ForkRank::kLast);  // others log with theirs held
  return mutex;
}
// Made when the library is loaded: a child of fork() would wait for ever for what another thread
// was just making.
[[maybe_unused]] const std::mutex& g_output_mutex = output_mutex();
[[maybe_unused]] const std::string& g_topics = topics();

}  // namespace

std::string describe_unknown_topics(std::string_view list) {
  std::string unknown, known;
  while (!list.empty()) {
    const std::string_view topic = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), topic.size() + 1));
    if (topic.empty() || std::ranges::find(kTopics, topic) != std::end(kTopics)) continue;
    unknown += (unknown.empty() ? "'" : ", '") + std::string(topic) + "'";
  }
  if (unknown.empty()) return {};
  for (const std::string_view topic : kTopics)
    known += (known.empty() ? "" : ", ") + std::string(topic);
  return "BACKPLANE_LOG asks for " + unknown + ", which is no topic; there are: " + known + ".";
}

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
