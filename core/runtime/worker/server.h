// The worker's side: loads one plugin and calls it as its parent asks.
#pragma once

#include <string>

#include "core/runtime/isolate/channel.h"
#include "core/runtime/isolate/shared_memory.h"

namespace backplane::runtime {

// Returns never: the process ends with `control`, over which channels come, one per thread that is
// to serve. `plugin_path` is loaded at the first question, whose answer says what became of it.
[[noreturn]] void serve_plugin(const std::string& plugin_path, SharedMapping memory,
                               Channel control);

}  // namespace backplane::runtime
