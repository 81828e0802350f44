// Switches of the process that a program may ask for by a function in C. An answer is a constant of
// the program, and the function is asked again by its guards. Those that nearly every program
// depends on without asking are in thread_state.h.
#pragma once

#include <span>

namespace backplane::guards {

struct Switch {
  const char* module;
  const char* function;
};

std::span<const Switch> switches();

}  // namespace backplane::guards
