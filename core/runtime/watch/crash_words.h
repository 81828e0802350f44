// The last words of a process that a plugin ends: who was inside of what, on the screen at once and
// on the call board for the next start.
#pragma once

#include <cstdint>
#include <string_view>

namespace backplane::runtime {

// Once per process, before a library is loaded: handlers of the signals that end a process, in
// front of those that are there. A signal outside of plugins goes on to them without a word.
// $BACKPLANE_CRASH_WORDS=0: none.
void install_crash_words();

// Code of a library that was loaded, so that a crash in one of its own threads has a name.
void note_code(std::string_view name, std::uintptr_t begin, std::uintptr_t end);

}  // namespace backplane::runtime
