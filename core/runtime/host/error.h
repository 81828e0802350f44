// bp_error objects, made and counted by the host, and their translation to Status.
#pragma once

#include <backplane/host.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace backplane::runtime {

// What a failed plugin call says, beyond code and text.
struct PluginError {
  bp_code code = BP_INTERNAL;
  std::string message;
  std::string site;                     // "file:line function", empty when unknown
  std::vector<std::uint32_t> node_ids;  // the nodes it is about
  bool is_valid = false;                // false: success, or no error of the host's
};

// A copy of text that a plugin handed over: at most `limit` bytes, invalid UTF-8 and control
// characters replaced by '?', so that it can stand in a message.
std::string copy_text(bp_string text, std::size_t limit = 4096);

// Of an exception's what(), which may be null.
std::string what_text(const char* what);

bp_error* make_error(bp_code code, std::string_view message);  // owned by the receiver
PluginError read_error(const bp_error* error);
// Takes over `error` (null: success). `call` names what the host was doing: "plugin 'opencl':
// compile". The message keeps the plugin's own text.
Status take_error(bp_error* error, std::string_view call);

// The entries of bp_host_api that deal with errors; used by host_services.cpp.
void fill_error_entries(bp_host_api& table);

}  // namespace backplane::runtime
