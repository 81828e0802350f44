// Exceptions and `with`.
#include <opcode.h>

#include "core/torch/interpret/frame_state.h"

namespace backplane::capture {

namespace {

using cpython::Instruction;
using cpython::Ref;

Flow before_with(FrameState& state) {
  static PyObject* const enter_name = PyUnicode_InternFromString("__enter__");
  static PyObject* const exit_name = PyUnicode_InternFromString("__exit__");
  const Ref manager = state.take();
  const auto special_method = [&](PyObject* name, const char* missing) {
    Ref method = Ref::steal(state.interpreter.special_method(manager.get(), name));
    if (!method && !PyErr_Occurred())
      PyErr_Format(PyExc_TypeError,
                   "'%.200s' object does not support the context manager protocol%s",
                   Py_TYPE(manager.get())->tp_name, missing);
    return method;
  };
  const Ref enter = special_method(enter_name, "");
  if (!enter) return Flow::kError;
  Ref exit = special_method(exit_name, " (missed __exit__ method)");
  if (!exit) return Flow::kError;
  PyObject* entered = state.interpreter.call(enter.get(), nullptr, 0, nullptr);
  if (!entered) return Flow::kError;
  state.push(exit.release());
  state.push(entered);
  return Flow::kNext;
}

// Stack: the exit method, the instruction, the handled exception before, the exception.
Flow with_except_start(FrameState& state) {
  PyObject* value = state.peek(1);
  const Ref trace = Ref::steal(PyException_GetTraceback(value));
  PyObject* arguments[3] = {reinterpret_cast<PyObject*>(Py_TYPE(value)), value,
                            trace ? trace.get() : Py_None};
  if (trace) state.world.own(trace.get());
  PyObject* result = state.interpreter.call(state.peek(4), arguments, 3, nullptr);
  if (!result) return Flow::kError;
  state.push(result);
  return Flow::kNext;
}

Flow raise(FrameState& state, int argument) {
  if (argument == 0) {
    Ref value = Ref::steal(PyErr_GetHandledException());
    if (!value || value.get() == Py_None) {
      PyErr_SetString(PyExc_RuntimeError, "No active exception to reraise");
      return Flow::kError;
    }
    PyObject* type = Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(value.get())));
    PyObject* trace = PyException_GetTraceback(value.get());
    PyErr_Restore(type, value.release(), trace);
    return Flow::kReraise;
  }
  const auto instance = [&](const Ref& given) {
    if (!PyExceptionClass_Check(given.get())) return given;
    return Ref::steal(state.interpreter.call(given.get(), nullptr, 0, nullptr));
  };
  Ref cause = argument == 2 ? state.take() : Ref();
  const Ref value = instance(state.take());
  if (!value) return Flow::kError;
  if (!PyExceptionInstance_Check(value.get())) {
    PyErr_SetString(PyExc_TypeError, "exceptions must derive from BaseException");
    return Flow::kError;
  }
  if (state.world.is_outside(value.get())) {
    state.world.stop("the program raises an exception object from outside");
    return Flow::kError;
  }
  if (cause) {
    cause = instance(cause);
    if (!cause) return Flow::kError;
    if (cause.get() != Py_None && !PyExceptionInstance_Check(cause.get())) {
      PyErr_SetString(PyExc_TypeError, "exception causes must derive from BaseException");
      return Flow::kError;
    }
    PyException_SetCause(value.get(), cause.get() == Py_None ? nullptr : cause.release());
  }
  state.interpreter.note_raised(value.get());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value.get())), value.get());
  return Flow::kError;
}

Flow reraise(FrameState& state, int argument) {
  if (argument != 0) {
    const long unit = PyLong_AsLong(state.peek(argument + 1));
    state.running.set_position(static_cast<int>(unit));
  }
  PyObject* value = state.pop();
  PyErr_Restore(Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(value))), value,
                PyException_GetTraceback(value));
  return Flow::kReraise;
}

bool may_be_caught(PyObject* type) {
  if (!PyTuple_Check(type)) return PyExceptionClass_Check(type);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type); ++i)
    if (!PyExceptionClass_Check(PyTuple_GET_ITEM(type, i))) return false;
  return true;
}

}  // namespace

Flow run_exception_instruction(FrameState& state, const Instruction& it, bool& out_handled) {
  out_handled = true;
  _PyErr_StackItem* handled = state.thread->exc_info;
  switch (it.opcode) {
    case PUSH_EXC_INFO: {
      PyObject* value = state.pop();
      state.push(handled->exc_value ? handled->exc_value : Py_NewRef(Py_None));
      handled->exc_value = Py_NewRef(value);
      state.push(value);
      return Flow::kNext;
    }
    case POP_EXCEPT: {
      PyObject* old = handled->exc_value;
      handled->exc_value = state.pop();
      Py_XDECREF(old);
      return Flow::kNext;
    }
    case CHECK_EXC_MATCH: {
      const Ref type = state.take();
      if (!state.world.expose(type.get())) return Flow::kError;
      if (!may_be_caught(type.get())) {
        PyErr_SetString(PyExc_TypeError,
                        "catching classes that do not inherit from BaseException is not allowed");
        return Flow::kError;
      }
      state.push(PyBool_FromLong(PyErr_GivenExceptionMatches(state.peek(1), type.get())));
      return Flow::kNext;
    }
    case LOAD_ASSERTION_ERROR:
      state.push(Py_NewRef(PyExc_AssertionError));
      return Flow::kNext;
    case RAISE_VARARGS:
      return raise(state, it.argument);
    case RERAISE:
      return reraise(state, it.argument);
    case BEFORE_WITH:
      return before_with(state);
    case WITH_EXCEPT_START:
      return with_except_start(state);
    default:
      out_handled = false;
      return Flow::kNext;
  }
}

}  // namespace backplane::capture
