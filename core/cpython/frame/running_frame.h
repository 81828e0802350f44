// A frame that is run by someone else than CPython's own loop, on CPython's own stack of frames, so
// that super(), sys._getframe() and tracebacks see what they always see. Python 3.11.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <memory>

struct _PyInterpreterFrame;

namespace backplane::cpython {

// False where this version's frames are not known here: RunningFrame must not be made.
bool can_run_frames();

// What code, function and namespaces a frame that has not run yet has. All borrowed.
struct FrameContent {
  PyCodeObject* code = nullptr;
  PyObject* function = nullptr;
  PyObject* globals = nullptr;
  PyObject* builtins = nullptr;
  PyObject** locals = nullptr;  // co_nlocalsplus of them, then the value stack
  int first_unit = 0;           // where it goes on, in code units
  int stack_depth = 0;          // values on the stack of a resumed generator
  bool is_generator = false;
};
FrameContent content_of(_PyInterpreterFrame* frame);

// Links the frame in; unlinks it. Null with RecursionError set where the stack is too deep.
class RunningFrame {
 public:
  RunningFrame(PyThreadState* thread, _PyInterpreterFrame* frame);
  ~RunningFrame();
  RunningFrame(const RunningFrame&) = delete;
  RunningFrame& operator=(const RunningFrame&) = delete;

  bool entered() const { return entered_; }
  // The instruction that runs, in code units: for line numbers and tracebacks.
  void set_position(int unit);
  // Before an error leaves the frame or reaches a handler.
  void add_traceback();
  // The generator gives a value and keeps its stack.
  void suspend(int stack_depth);
  // The stack is empty and locals are the caller's to clear.
  void finish();

 private:
  struct Link;

  PyThreadState* thread_;
  _PyInterpreterFrame* frame_;
  std::unique_ptr<Link> link_;
  bool entered_ = false;
};

}  // namespace backplane::cpython
