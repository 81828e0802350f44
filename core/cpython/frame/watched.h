// Tools that follow a program's frames: a graph would run behind their backs.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace backplane::cpython {

// A debugger, profiler or coverage tool: sys.settrace(), sys.setprofile(), and sys.monitoring where
// this Python has it. Needs the GIL; leaves no error set.
bool is_thread_watched(PyThreadState* thread);
// By a tool that wants events of this code alone.
bool is_code_watched(PyCodeObject* code);

// Whether the frame that starts interrupts the program, in the middle of anything, and is none of
// its own: of a hook that sys.addaudithook() has set (CPython turns tracing off meanwhile), or what
// the garbage collector calls (gc.callbacks).
bool is_interruption(PyThreadState* thread, PyObject* function);

}  // namespace backplane::cpython
