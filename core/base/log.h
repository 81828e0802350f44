// Logging to stderr, filtered by BACKPLANE_LOG: a comma list of topics, or "all". Warnings and
// errors are always written.
#pragma once

#include <string>
#include <string_view>

namespace backplane {

enum class LogLevel { kError = 1, kWarning = 2, kInfo = 3, kDebug = 4 };

// What the list asks for that is no topic, as a warning; empty: nothing.
std::string describe_unknown_topics(std::string_view list);
// Whether a topic was asked for; cheap, read once from the environment.
bool log_enabled(std::string_view topic);
// One or more lines, each prefixed "backplane: ". Thread-safe.
void log(LogLevel level, std::string_view message);
// Writes `message` as it is when the topic is enabled.
void log_topic(std::string_view topic, std::string_view message);

}  // namespace backplane
