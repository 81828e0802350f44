// CPython's frame evaluation function (PEP 523), ours while a region is active. Which thread's
// frames it hands to whom is each thread's own affair. Everything here needs the GIL.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>
#include <optional>

struct _PyInterpreterFrame;

namespace backplane::cpython {

// Bytes of C stack that Python behind a hook leaves to what it calls.
inline constexpr std::size_t kLeastStack = 256 << 10;

// Whoever runs frames in the interpreter's place.
class Evaluator {
 public:
  virtual ~Evaluator() = default;
  // As CPython's own: the frame's result, or null with an error set.
  virtual PyObject* evaluate(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing) = 0;
};

// While one lives, the calling thread's new frames go to `evaluator`. The process-wide function is
// set with the first region and set back with the last, if it is still ours. Where another library
// has its hook in place (TorchDynamo leaves it behind after an error of its own), the frames of all
// other threads go on to that one.
class Region {
 public:
  explicit Region(Evaluator& evaluator);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

 private:
  Evaluator* outer_;
};

// While one lives, the calling thread's frames go to CPython, for code that is none of the
// program's.
class HookPause {
 public:
  HookPause();
  ~HookPause();
  HookPause(const HookPause&) = delete;
  HookPause& operator=(const HookPause&) = delete;

 private:
  Evaluator* outer_;
};

// As PyObject_Vectorcall, with the hook paused.
PyObject* call_unhooked(PyObject* callable, PyObject* const* arguments, std::size_t count,
                        PyObject* keyword_names);

PyObject* evaluate_by_default(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing);
// With all that it calls.
PyObject* evaluate_unhooked(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing);

// Runs a frame that interrupts the program (is_interruption), and all that it calls, by CPython.
// Nothing where the frame is the program's.
std::optional<PyObject*> evaluate_interruption(PyThreadState* thread, _PyInterpreterFrame* frame,
                                               int throwing);

enum class FrameHook { kNone, kOurs, kForeign };
FrameHook installed_frame_hook();

}  // namespace backplane::cpython
