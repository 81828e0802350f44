// Instructions that move values, and jumps.
#include <opcode.h>

#include <algorithm>

#include "core/torch/interpret/frame_state.h"

namespace backplane::capture {

namespace {

using cpython::Instruction;
using cpython::Ref;

Flow unbound(FrameState& state, int index, bool is_free) {
  if (is_free)
    PyErr_Format(PyExc_NameError,
                 "cannot access free variable '%U' where it is not associated with a value in "
                 "enclosing scope",
                 state.local_name(index));
  else
    PyErr_Format(PyExc_UnboundLocalError,
                 "cannot access local variable '%U' where it is not associated with a value",
                 state.local_name(index));
  return Flow::kError;
}

// One of the places where the frame holds the object is given up.
bool let_go(FrameState& state, PyObject* object) {
  if (!object) return true;
  const auto held =
      std::count(state.locals, state.base, object) + std::count(state.base, state.top, object);
  return held > 1 || state.world.let_go(object);
}

// The cells of the function's closure, each with the path to it.
Flow copy_free_variables(FrameState& state, int count) {
  PyObject* function = state.content.function;
  PyObject* closure = PyFunction_GET_CLOSURE(function);
  PyCodeObject* code = state.content.code;
  const SourceId source = state.world.source_of(function);
  const int first = code->co_nlocalsplus - count;
  for (int i = 0; i < count; ++i) {
    PyObject* cell = PyTuple_GET_ITEM(closure, i);
    PyObject* known = nullptr;
    if (source == kNoSource)
      known = Py_NewRef(cell);
    else
      known = state.world.read(
          cell, state.world.guards().sources().add(SourceKind::kClosure, source, nullptr, i));
    if (!known) return Flow::kError;
    state.locals[first + i] = known;
  }
  return Flow::kNext;
}

Flow load_cell(FrameState& state, int index) {
  PyObject* cell = state.locals[index];
  PyObject* content = PyCell_GET(cell);
  const SourceId source = state.world.source_of(cell);
  if (const Effects::Found written = state.world.effects().find(cell, nullptr); written.found) {
    if (!written.value) return unbound(state, index, index >= state.content.code->co_nlocals);
    state.push(Py_NewRef(written.value));
    return Flow::kNext;
  }
  if (!content) {
    if (source != kNoSource) state.world.guards().guard_empty_cell(source);
    return unbound(state, index, index >= state.content.code->co_nlocals);
  }
  PyObject* value = Py_NewRef(content);
  if (source != kNoSource) {
    Py_DECREF(value);
    value = state.world.read(
        content, state.world.guards().sources().add(SourceKind::kCellContent, source, nullptr));
  }
  if (!value) return Flow::kError;
  state.push(value);
  return Flow::kNext;
}

Flow store_cell(FrameState& state, int index, PyObject* owned) {
  PyObject* cell = state.locals[index];
  if (state.world.is_outside(cell)) {
    const Ref value = Ref::steal(owned);
    if (!value) {
      if (load_cell(state, index) == Flow::kError) return Flow::kError;
      Py_DECREF(state.pop());
    }
    return state.interpreter.store_cell(cell, value.get()) ? Flow::kNext : Flow::kError;
  }
  PyObject* old = PyCell_GET(cell);
  if (!owned && !old) return unbound(state, index, true);
  PyCell_SET(cell, owned);
  Py_XDECREF(old);
  return Flow::kNext;
}

}  // namespace

Flow load_local(FrameState& state, int index) {
  if (!state.locals[index]) return unbound(state, index, false);
  state.push(Py_NewRef(state.locals[index]));
  return Flow::kNext;
}

Flow jump(FrameState& state, const Instruction& it) {
  state.at = static_cast<std::size_t>(it.target);
  return Flow::kJumped;
}

Flow jump_on_truth(FrameState& state, const Instruction& it, bool wanted, bool keeps) {
  const Ref value = state.take();
  const int is_true = state.interpreter.truth(value.get());
  if (is_true < 0) return Flow::kError;
  if ((is_true != 0) != wanted) return Flow::kNext;
  if (keeps) state.push(Py_NewRef(value.get()));
  return jump(state, it);
}

Flow jump_on_none(FrameState& state, const Instruction& it, bool wanted) {
  const Ref value = state.take();
  return (value.get() == Py_None) == wanted ? jump(state, it) : Flow::kNext;
}

Flow run_stack_instruction(FrameState& state, const Instruction& it, bool& out_handled) {
  out_handled = true;
  const int argument = it.argument;
  switch (it.opcode) {
    case NOP:
    case RESUME:
      return Flow::kNext;
    case POP_TOP:
      if (!let_go(state, state.peek(1))) return Flow::kError;
      Py_XDECREF(state.pop());
      return Flow::kNext;
    case PUSH_NULL:
      state.push(nullptr);
      return Flow::kNext;
    case COPY:
      state.push(Py_XNewRef(state.peek(argument)));
      return Flow::kNext;
    case SWAP:
      std::swap(state.peek(1), state.peek(argument));
      return Flow::kNext;
    case LOAD_CONST:
      state.world.share(state.constant(argument));
      state.push(Py_NewRef(state.constant(argument)));
      return Flow::kNext;
    case LOAD_FAST:
    case LOAD_CLOSURE:
      return load_local(state, argument);
    case STORE_FAST:
      if (!let_go(state, state.locals[argument])) return Flow::kError;
      Py_XSETREF(state.locals[argument], state.pop());
      return Flow::kNext;
    case DELETE_FAST:
      if (!state.locals[argument]) return unbound(state, argument, false);
      if (!let_go(state, state.locals[argument])) return Flow::kError;
      Py_CLEAR(state.locals[argument]);
      return Flow::kNext;
    case MAKE_CELL: {
      PyObject* cell = PyCell_New(state.locals[argument]);
      if (!cell) return Flow::kError;
      state.world.own(cell);
      Py_XSETREF(state.locals[argument], cell);
      return Flow::kNext;
    }
    case COPY_FREE_VARS:
      return copy_free_variables(state, argument);
    case LOAD_DEREF:
      return load_cell(state, argument);
    case STORE_DEREF:
      return store_cell(state, argument, state.pop());
    case DELETE_DEREF:
      return store_cell(state, argument, nullptr);
    case JUMP_FORWARD:
    case JUMP_BACKWARD:
    case JUMP_BACKWARD_NO_INTERRUPT:
      return jump(state, it);
    case RETURN_VALUE:
      return Flow::kReturn;
    case YIELD_VALUE:
      return Flow::kYield;
    default:
      out_handled = false;
      return Flow::kNext;
  }
}

}  // namespace backplane::capture
