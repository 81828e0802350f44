#include <Python.h>

#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000

#include <cstring>

#include "core/cpython/frame/running_frame.h"

#include "core/cpython/bytecode/internals.h"

namespace backplane::cpython {

struct RunningFrame::Link {
  _PyCFrame cframe;
  bool is_suspended = false;
};

namespace {

// From 3.12 on the evaluator ends a frame, not its caller; the functions for it are not exported.

// As CPython's take_ownership(): the frame object outlives the frame, and keeps its variables.
void move_into_object(PyFrameObject* object, _PyInterpreterFrame* frame) {
  const auto size =
      reinterpret_cast<char*>(&frame->localsplus[frame->stacktop]) - reinterpret_cast<char*>(frame);
  Py_INCREF(frame->f_code);
  auto* kept = reinterpret_cast<_PyInterpreterFrame*>(object->_f_frame_data);
  std::memcpy(static_cast<void*>(kept), frame, static_cast<std::size_t>(size));
  object->f_frame = kept;
  kept->owner = FRAME_OWNED_BY_FRAME_OBJECT;
  if (_PyFrame_IsIncomplete(kept))
    kept->prev_instr = _PyCode_CODE(kept->f_code) + kept->f_code->_co_firsttraceable;
  const bool has_caller = _PyFrame_GetFirstComplete(kept->previous) != nullptr;
  kept->previous = nullptr;
  // The frame is unlinked, so that its caller is the current one.
  if (has_caller)
    object->f_back = reinterpret_cast<PyFrameObject*>(
        Py_XNewRef(reinterpret_cast<PyObject*>(PyEval_GetFrame())));
  if (!PyObject_GC_IsTracked(reinterpret_cast<PyObject*>(object))) PyObject_GC_Track(object);
}

// As _PyFrame_ClearExceptCode().
void clear(_PyInterpreterFrame* frame) {
  PyFrameObject* object = std::exchange(frame->frame_obj, nullptr);
  const bool is_kept = object && Py_REFCNT(object) > 1;
  if (is_kept) move_into_object(object, frame);
  Py_XDECREF(object);
  if (!is_kept) {
    for (int i = 0; i < frame->stacktop; ++i) Py_XDECREF(frame->localsplus[i]);
    Py_XDECREF(frame->f_locals);
    Py_DECREF(frame->f_funcobj);
  }
}

// As _PyThreadState_PopFrame().
void pop(PyThreadState* thread, _PyInterpreterFrame* frame) {
  auto** const base = reinterpret_cast<PyObject**>(frame);
  _PyStackChunk* chunk = thread->datastack_chunk;
  if (base != &chunk->data[0]) {
    thread->datastack_top = base;
    return;
  }
  _PyStackChunk* before = chunk->previous;
  thread->datastack_top = &before->data[before->top];
  thread->datastack_chunk = before;
  thread->datastack_limit =
      reinterpret_cast<PyObject**>(reinterpret_cast<char*>(before) + before->size);
  PyObjectArenaAllocator arenas;
  PyObject_GetArenaAllocator(&arenas);
  arenas.free(arenas.ctx, chunk, chunk->size);
}

// What was the generator's handled exception is its resumer's again.
void leave_generator(PyThreadState* thread, PyGenObject* generator, PyFrameState state) {
  generator->gi_frame_state = static_cast<std::int8_t>(state);
  thread->exc_info = generator->gi_exc_state.previous_item;
  generator->gi_exc_state.previous_item = nullptr;
}

// As _PyEvalFrameClearAndPop(), for a frame that is not linked any more.
void end_frame(PyThreadState* thread, _PyInterpreterFrame* frame) {
  const bool is_generator = frame->owner == FRAME_OWNED_BY_GENERATOR;
  if (is_generator) leave_generator(thread, _PyFrame_GetGenerator(frame), FRAME_CLEARED);
  clear(frame);
  if (is_generator) {
    frame->previous = nullptr;  // the generator drops the code
    return;
  }
  Py_DECREF(frame->f_code);
  pop(thread, frame);
}

// As _Py_EnterRecursivePy(). C's own depth is not counted: plain Python calls of Python functions
// do not count there either.
bool enter_python(PyThreadState* thread) {
  if (thread->py_recursion_remaining-- > 0) return true;
  if (thread->recursion_headroom) return thread->py_recursion_remaining > -50;
  ++thread->recursion_headroom;
  PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded");
  --thread->recursion_headroom;
  return false;
}

}  // namespace

FrameContent content_of(_PyInterpreterFrame* frame) {
  FrameContent content;
  content.code = frame->f_code;
  content.function = frame->f_funcobj;
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
  link_->cframe.previous = thread->cframe;
  frame->previous = thread->cframe->current_frame;
  link_->cframe.current_frame = frame;
  thread->cframe = &link_->cframe;
  frame->stacktop = -1;
  entered_ = enter_python(thread);
}

RunningFrame::~RunningFrame() {
  ++thread_->py_recursion_remaining;
  thread_->cframe = link_->cframe.previous;
  if (link_->is_suspended)
    frame_->previous = nullptr;
  else
    end_frame(thread_, frame_);
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
  PyObject* error = PyErr_GetRaisedException();
  PyFrameObject* object = PyEval_GetFrame();
  PyErr_SetRaisedException(error);
  if (object) PyTraceBack_Here(object);
}

void RunningFrame::suspend(int stack_depth) {
  leave_generator(thread_, _PyFrame_GetGenerator(frame_), FRAME_SUSPENDED);
  frame_->stacktop = frame_->f_code->co_nlocalsplus + stack_depth;
  link_->is_suspended = true;
}

void RunningFrame::finish() { frame_->stacktop = frame_->f_code->co_nlocalsplus; }

UnrunFrame::~UnrunFrame() {
  if (frame_) end_frame(thread_, frame_);
}

}  // namespace backplane::cpython

#endif
