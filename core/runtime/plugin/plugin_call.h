// The one way into a plugin's code. What the plugin leaves of the floating-point state is put back,
// and an exception, which no plugin may let out, becomes an error instead of the process's end.
#pragma once

#include <backplane/plugin.h>
#include <cxxabi.h>

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/status.h"
#include "core/runtime/host/error.h"
#include "core/runtime/host/host_services.h"
#include "core/runtime/host/language.h"
#include "core/runtime/host/process_state.h"
#include "core/runtime/watch/call_board.h"

namespace backplane::runtime {

// `what` is null where the exception says nothing. The text completes "CALL failed: ".
std::string thrown_text(const char* what);
Status thrown_status(const std::string& call, const char* what);
// The plugin ended the thread that called it (pthread_exit, pthread_cancel): what waits for that
// thread would wait for good, so the process ends here, with a word. Inside of the call's scope.
[[noreturn]] void end_for_lost_thread(const std::string& call) noexcept;
// Of an entry that cannot fail: to the log.
void log_thrown(const Status& status);

// Where a call goes, for the call board and the log. Outlives the call.
struct CallSite {
  std::string_view who;     // "acme:0", or "acme" of what no device is asked
  std::string_view entry;   // "compile"
  std::string_view detail;  // nodes, or empty
};

// "acme:0: execute (aten.mm)"; empty where a span would say nothing: of entries that only ask or
// give back.
inline std::string span_name(const CallSite& site) {
  if (site.entry == "event_query" || site.entry.ends_with("release")) return {};
  std::string name(site.who);
  name.append(": ").append(site.entry);
  if (!site.detail.empty()) name.append(" (").append(site.detail).append(")");
  return name;
}

// `entry()` is the call, `describe()` its name for errors: "plugin 'x' (x:0): compile".
template <class Entry, class Describe>
Status call_plugin(const CallSite& site, Entry&& entry, Describe&& describe) {
  bp_error* error = nullptr;
  // Also of what an exception does: its text and its end are the plugin's code.
  const CallScope scope(site.who, site.entry, site.detail);
  try {
    const HostSpan span([&] { return span_name(site); });
    const FpGuard guard(site.who);
    const LanguageGuard language(site.who, site.entry);
    error = std::forward<Entry>(entry)();
  } catch (const abi::__forced_unwind&) {  // the thread is cancelled
    if (!language_ends()) end_for_lost_thread(describe());
    throw;
  } catch (const std::exception& exception) {
    return thrown_status(describe(), exception.what());
  } catch (...) {
    return thrown_status(describe(), nullptr);
  }
  if (error == nullptr) [[likely]]
    return {};
  return take_error(error, describe());
}

// Errors name it as the call board does: "acme:0: device_open".
template <class Entry>
Status call_plugin(const CallSite& site, Entry&& entry) {
  return call_plugin(site, std::forward<Entry>(entry),
                     [&] { return std::string(site.who) + ": " + std::string(site.entry); });
}

// An entry without an answer.
template <class Entry, class Describe>
void call_plugin_void(const CallSite& site, Entry&& entry, Describe&& describe) {
  const auto run = [&]() -> bp_error* {
    std::forward<Entry>(entry)();
    return nullptr;
  };
  const Status status = call_plugin(site, run, std::forward<Describe>(describe));
  if (!status.ok()) [[unlikely]]
    log_thrown(status);
}

}  // namespace backplane::runtime
