// What new memory holds before anybody writes it.
#pragma once

#include <ATen/Context.h>

namespace backplane::bridge {

// Where programs are to give one result for ever, so do those that read what they never wrote.
inline bool fills_new_memory() {
  const at::Context& context = at::globalContext();
  return context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory();
}

}  // namespace backplane::bridge
