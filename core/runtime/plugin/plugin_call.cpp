#include "core/runtime/plugin/plugin_call.h"

#include <cstdlib>

#include "core/base/log.h"

namespace backplane::runtime {

std::string thrown_text(const char* what) {
  return "it threw an exception" +
         (what != nullptr ? " (" + what_text(what) + ")" : std::string(" of unknown type")) +
         "; no exception may cross the plugin's boundary";
}

Status thrown_status(const std::string& call, const char* what) {
  return {Code::kInternal, call + " failed: " + thrown_text(what)};
}

void end_for_lost_thread(const std::string& call) noexcept {
  log(LogLevel::kError, call +
                            " ended the thread that called it (pthread_exit or pthread_cancel); a "
                            "thread of the program is not a plugin's to end");
  std::abort();
}

void log_thrown(const Status& status) { log(LogLevel::kWarning, status.message()); }

}  // namespace backplane::runtime
