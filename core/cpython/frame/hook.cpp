#include "core/cpython/frame/hook.h"

#include <utility>

extern "C" {
// Exported by CPython, declared in a header that C++ does not compile.
PyObject* _PyEval_EvalFrameDefault(PyThreadState*, _PyInterpreterFrame*, int);  // NOLINT
}

namespace backplane::cpython {

namespace {

thread_local Evaluator* t_evaluator = nullptr;

// Under the GIL.
int g_active_regions = 0;

PyObject* run_frame(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing) {
  // An exception thrown into a suspended frame is the evaluator's too.
  if (!t_evaluator) return _PyEval_EvalFrameDefault(thread, frame, throwing);
  return t_evaluator->evaluate(thread, frame, throwing);
}

_PyFrameEvalFunction current() {
  return _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
}

}  // namespace

PyObject* evaluate_by_default(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing) {
  return _PyEval_EvalFrameDefault(thread, frame, throwing);
}

FrameHook installed_frame_hook() {
  const _PyFrameEvalFunction function = current();
  if (function == run_frame) return FrameHook::kOurs;
  return function == _PyEval_EvalFrameDefault ? FrameHook::kNone : FrameHook::kForeign;
}

Region::Region(Evaluator& evaluator) : outer_(std::exchange(t_evaluator, &evaluator)) {
  ++g_active_regions;
  // Ours already, too, where another hook put it back that had replaced it.
  if (installed_frame_hook() == FrameHook::kNone)
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), run_frame);
  installed_ = installed_frame_hook() == FrameHook::kOurs;
}

Region::~Region() {
  t_evaluator = outer_;
  if (--g_active_regions == 0 && installed_frame_hook() == FrameHook::kOurs)
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), _PyEval_EvalFrameDefault);
}

HookPause::HookPause() : outer_(std::exchange(t_evaluator, nullptr)) {}

HookPause::~HookPause() { t_evaluator = outer_; }

}  // namespace backplane::cpython
