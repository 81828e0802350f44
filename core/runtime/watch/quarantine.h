// Plugins that ended a process: told at the next start, and left out until somebody asks for them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace backplane::runtime {

struct Crash {
  std::string sha256, name;          // of the library
  std::string reason;                // "SIGSEGV", "exit()"
  std::string call;                  // "acme:0: execute (aten.mm)"
  std::int64_t pid = 0, when_s = 0;  // when it ended, since 1970

  // "process 12 ended by SIGSEGV inside of acme:0: execute (aten.mm) at 2026-01-31 12:00:00 UTC"
  std::string text() const;
};

// Reads the boards of processes that are gone, once per process: a crash is told and quarantined.
void read_earlier_crashes();

// What is quarantined now, oldest first.
std::vector<Crash> quarantined();

// The message completes "PLUGIN was refused: ". $BACKPLANE_QUARANTINE=off lets all in.
Status check_quarantine(std::string_view sha256);

// Lets the plugins of that name in again; answers how many libraries that were.
Result<std::size_t> release_quarantined(std::string_view name);

}  // namespace backplane::runtime
