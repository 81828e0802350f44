#include "core/runtime/plugin/plugin_call.h"

#include "core/base/log.h"

namespace backplane::runtime {

Status thrown_status(const std::string& call, const char* what) {
  const std::string_view text = what != nullptr ? what : "";
  return {Code::kInternal, call + " failed: it threw an exception" +
                               (what != nullptr ? " (" + copy_text({text.data(), text.size()}) + ")"
                                                : " of unknown type") +
                               "; no exception may cross the plugin's boundary"};
}

void log_thrown(const Status& status) { log(LogLevel::kWarning, status.message()); }

}  // namespace backplane::runtime
