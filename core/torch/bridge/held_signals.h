// What handlers of signals raise reaches the program, never a library that is busy for a capture:
// that would take it for an error of its own. Everything here needs the GIL.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace backplane::bridge {

// While one lives on the main thread, handlers that signal.signal() has set wait: for
// run_held_signals(), and at last for the program's next instruction behind it. Other threads run
// none.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

 private:
  bool is_outermost_ = false;
};

// Within HeldSignals, around code of others that takes long: handlers run as they come.
class PassedSignals {
 public:
  PassedSignals();
  ~PassedSignals();
  PassedSignals(const PassedSignals&) = delete;
  PassedSignals& operator=(const PassedSignals&) = delete;

  // Whether a handler has raised since: what it raised is set as the Python error, in the place of
  // any other.
  static bool raise_again();

 private:
  bool was_passing_;
};

// Runs the handlers of all signals that have come. False with an error set where one raises.
bool run_held_signals();

}  // namespace backplane::bridge
