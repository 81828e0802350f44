#include "core/cpython/frame/hook.h"

#include <cxxabi.h>

#include <exception>
#include <utility>

#include "core/base/c_stack.h"
#include "core/cpython/frame/running_frame.h"
#include "core/cpython/frame/watched.h"

extern "C" {
// Exported by CPython, declared in a header that C++ does not compile.
PyObject* _PyEval_EvalFrameDefault(PyThreadState*, _PyInterpreterFrame*, int);  // NOLINT
}

namespace backplane::cpython {

namespace {

thread_local Evaluator* t_evaluator = nullptr;

// Under the GIL. What was installed before the first region, where that is not CPython's own.
int g_active_regions = 0;
_PyFrameEvalFunction g_foreign = nullptr;

// The frame that the foreign function has in its hands: it may give it back to ours.
thread_local _PyInterpreterFrame* t_passed_on = nullptr;

// Plain calls of Python functions take no C stack, and CPython counts none of its own depth for
// them; behind a hook each call does. The program is not to notice up to the depth that Python
// allows by default, and then some.
class FreeDepth {
#if PY_VERSION_HEX >= 0x030C0000
 public:
  explicit FreeDepth(PyThreadState* thread) : thread_(t_depth < kMostFree ? thread : nullptr) {
    ++t_depth;
    if (thread_) thread_->c_recursion_remaining += kUnits;
  }
  ~FreeDepth() {
    --t_depth;
    if (thread_) thread_->c_recursion_remaining -= kUnits;
  }
  FreeDepth(const FreeDepth&) = delete;
  FreeDepth& operator=(const FreeDepth&) = delete;

 private:
  static constexpr int kUnits = 2;  // PY_EVAL_C_STACK_UNITS
  static constexpr int kMostFree = 1200;
  static thread_local int t_depth;

  PyThreadState* thread_;
};

thread_local int FreeDepth::t_depth = 0;
#else
 public:
  explicit FreeDepth(PyThreadState*) {}
};
#endif

// CPython's own limit may be far beyond what the C stack holds: its plain calls take none of it.
// Ends the frame with RecursionError then. A generator's frame is not ours to end.
bool refuse_too_deep(PyThreadState* thread, _PyInterpreterFrame* frame) {
  if (c_stack_left() >= kLeastStack || content_of(frame).is_generator) return false;
  const UnrunFrame unrun(thread, frame);
  PyErr_SetString(PyExc_RecursionError,
                  "maximum recursion depth exceeded: the thread's C stack is used up (around "
                  "compiled functions each call takes some of it)");
  return true;
}

PyObject* run_by_default(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing) {
  if (refuse_too_deep(thread, frame)) return nullptr;
  const FreeDepth depth(thread);
  return _PyEval_EvalFrameDefault(thread, frame, throwing);
}

// CPython called: no exception of C++ may pass through it.
PyObject* evaluate_behind_barrier(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing) {
  try {
    return t_evaluator->evaluate(thread, frame, throwing);
  } catch (const abi::__forced_unwind&) {
    throw;  // the thread ends
  } catch (const std::exception& error) {
    PyErr_Format(PyExc_RuntimeError, "backplane: running a frame failed: %s", error.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "backplane: running a frame failed");
  }
  return nullptr;
}

PyObject* run_frame(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing) {
  // An exception thrown into a suspended frame is the evaluator's too.
  if (t_evaluator) return evaluate_behind_barrier(thread, frame, throwing);
  if (!g_foreign || frame == t_passed_on) return run_by_default(thread, frame, throwing);
  _PyInterpreterFrame* const outer = std::exchange(t_passed_on, frame);
  PyObject* result = g_foreign(thread, frame, throwing);
  t_passed_on = outer;
  return result;
}

_PyFrameEvalFunction current() {
  return _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
}

}  // namespace

PyObject* evaluate_by_default(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing) {
  return run_by_default(thread, frame, throwing);
}

FrameHook installed_frame_hook() {
  const _PyFrameEvalFunction function = current();
  if (function == run_frame) return FrameHook::kOurs;
  return function == _PyEval_EvalFrameDefault ? FrameHook::kNone : FrameHook::kForeign;
}

Region::Region(Evaluator& evaluator) : outer_(std::exchange(t_evaluator, &evaluator)) {
  ++g_active_regions;
  // Ours already, too, where another hook put it back that had replaced it.
  if (installed_frame_hook() == FrameHook::kOurs) return;
  g_foreign = installed_frame_hook() == FrameHook::kForeign ? current() : nullptr;
  _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), run_frame);
}

Region::~Region() {
  t_evaluator = outer_;
  if (--g_active_regions > 0) return;
  const _PyFrameEvalFunction before = std::exchange(g_foreign, nullptr);
  if (installed_frame_hook() == FrameHook::kOurs)
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(),
                                         before ? before : _PyEval_EvalFrameDefault);
}

HookPause::HookPause() : outer_(std::exchange(t_evaluator, nullptr)) {}

HookPause::~HookPause() { t_evaluator = outer_; }

PyObject* call_unhooked(PyObject* callable, PyObject* const* arguments, std::size_t count,
                        PyObject* keyword_names) {
  const HookPause pause;
  return PyObject_Vectorcall(callable, arguments, count, keyword_names);
}

PyObject* evaluate_unhooked(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing) {
  const HookPause pause;
  return evaluate_by_default(thread, frame, throwing);
}

std::optional<PyObject*> evaluate_interruption(PyThreadState* thread, _PyInterpreterFrame* frame,
                                               int throwing) {
  if (!is_interruption(thread, content_of(frame).function)) return std::nullopt;
  return evaluate_unhooked(thread, frame, throwing);
}

}  // namespace backplane::cpython
