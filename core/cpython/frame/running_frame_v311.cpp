#include <Python.h>

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000

#include "core/cpython/frame/running_frame.h"

#include "core/cpython/bytecode/internals.h"

namespace backplane::cpython {

struct RunningFrame::Link {
  _PyCFrame cframe;
};

FrameContent content_of(_PyInterpreterFrame* frame) {
  FrameContent content;
  content.code = frame->f_code;
  content.function = reinterpret_cast<PyObject*>(frame->f_func);
  content.globals = frame->f_globals;
  content.builtins = frame->f_builtins;
  content.locals = frame->localsplus;
  content.first_unit = static_cast<int>(frame->prev_instr - _PyCode_CODE(frame->f_code)) + 1;
  content.is_generator = frame->owner == FRAME_OWNED_BY_GENERATOR;
  content.stack_depth = frame->stacktop - frame->f_code->co_nlocalsplus;
  return content;
}

// As the entry and the exits of _PyEval_EvalFrameDefault.
RunningFrame::RunningFrame(PyThreadState* thread, _PyInterpreterFrame* frame)
    : thread_(thread), frame_(frame), link_(std::make_unique<Link>()) {
  link_->cframe.use_tracing = thread->cframe->use_tracing;
  link_->cframe.previous = thread->cframe;
  frame->previous = thread->cframe->current_frame;
  link_->cframe.current_frame = frame;
  thread->cframe = &link_->cframe;
  frame->is_entry = true;
  frame->stacktop = -1;
  entered_ = Py_EnterRecursiveCall("") == 0;
}

RunningFrame::~RunningFrame() {
  if (entered_) Py_LeaveRecursiveCall();
  thread_->cframe = link_->cframe.previous;
  thread_->cframe->current_frame = frame_->previous;
}

void RunningFrame::set_position(int unit) {
  frame_->prev_instr = _PyCode_CODE(frame_->f_code) + unit;
}

int RunningFrame::position() const {
  return static_cast<int>(frame_->prev_instr - _PyCode_CODE(frame_->f_code));
}

void RunningFrame::add_traceback() {
  // A frame that has not reached its RESUME is not to be seen.
  if (_PyFrame_IsIncomplete(frame_)) return;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyFrameObject* object = PyEval_GetFrame();
  PyErr_Restore(type, value, trace);
  if (object) PyTraceBack_Here(object);
}

void RunningFrame::suspend(int stack_depth) {
  PyGenObject* generator = _PyFrame_GetGenerator(frame_);
  generator->gi_frame_state = FRAME_SUSPENDED;
  frame_->stacktop = frame_->f_code->co_nlocalsplus + stack_depth;
}

void RunningFrame::finish() { frame_->stacktop = frame_->f_code->co_nlocalsplus; }

UnrunFrame::~UnrunFrame() = default;  // its caller ends it

}  // namespace backplane::cpython

#endif
