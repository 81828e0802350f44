// A frame that is run by someone else than CPython's own loop, on CPython's own stack of frames, so
// that super(), sys._getframe() and tracebacks see what they always see. One source file per
// CPython version knows their layout.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <memory>
#include <utility>

struct _PyInterpreterFrame;

namespace backplane::cpython {

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
  int position() const;
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

// A frame that the evaluator got and did not run: from Python 3.12 on it is the evaluator that
// ends each frame, and this does it, unless the frame was handed on.
class UnrunFrame {
 public:
  UnrunFrame(PyThreadState* thread, _PyInterpreterFrame* frame) : thread_(thread), frame_(frame) {}
  ~UnrunFrame();  // NOLINT(performance-trivially-destructible): not in every version of Python
  UnrunFrame(const UnrunFrame&) = delete;
  UnrunFrame& operator=(const UnrunFrame&) = delete;

  _PyInterpreterFrame* hand_on() { return std::exchange(frame_, nullptr); }

 private:
  [[maybe_unused]] PyThreadState* thread_;
  _PyInterpreterFrame* frame_;
};

}  // namespace backplane::cpython
