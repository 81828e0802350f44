#include "core/runtime/plugin/plugin_call.h"

#include "core/base/log.h"

namespace backplane::runtime {

std::string thrown_text(const char* what) {
  const std::string_view text = what != nullptr ? what : "";
  return "it threw an exception" +
         (what != nullptr ? " (" + copy_text({text.data(), text.size()}) + ")"
                          : std::string(" of unknown type")) +
         "; no exception may cross the plugin's boundary";
}

Status thrown_status(const std::string& call, const char* what) {
  return {Code::kInternal, call + " failed: " + thrown_text(what)};
}

void log_thrown(const Status& status) { log(LogLevel::kWarning, status.message()); }

}  // namespace backplane::runtime
