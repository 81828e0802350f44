// Checks of the function table that a plugin answers with at negotiation.
#pragma once

#include <backplane/plugin.h>

#include <cstdint>
#include <vector>

#include "core/base/status.h"

namespace backplane::runtime {

// Where a loaded library lies in memory.
struct LibraryMap {
  struct Range {
    std::uintptr_t begin, end;
    bool executable;
  };
  std::vector<Range> ranges;  // one per loaded, readable segment

  // `handle` is dlopen's.
  static LibraryMap of(void* handle);
  bool contains(const void* memory, std::size_t bytes) const;
  bool contains_code(void (*function)()) const;
};

// A zero-filled copy of the table, or what is wrong with it: it lies in the library, its size is
// plausible, required entries are there, groups are whole, every entry is code of the library.
// The message completes "PLUGIN was refused: ".
Result<bp_plugin_api> check_table(const bp_plugin_api* table, const LibraryMap& library,
                                  std::uint32_t chosen_version);

// "0.1"; "0.1 to 0.3".
std::string version_text(std::uint32_t version);
std::string version_range_text(std::uint32_t min, std::uint32_t max);

}  // namespace backplane::runtime
