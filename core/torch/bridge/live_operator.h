// An operator of PyTorch that may be removed and registered anew while somebody holds it, as a
// reloaded extension does.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>

namespace backplane::bridge {

// How many operators have been removed so far: a reference to one is good while this stays.
std::uint64_t operator_removals();

class LiveOperator {
 public:
  explicit LiveOperator(c10::OperatorHandle handle);

  // What goes by its name now. Throws c10::Error where that is nothing. Thread-safe.
  c10::OperatorHandle get() const;

 private:
  c10::OperatorHandle handle_;
  c10::OperatorName name_;
  std::uint64_t removals_;  // of any operator, when `handle_` was good
};

}  // namespace backplane::bridge
