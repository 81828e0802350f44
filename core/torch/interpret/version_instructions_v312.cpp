#include <Python.h>

#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000

#include <opcode.h>

#include "core/cpython/bytecode/opcodes.h"
#include "core/torch/interpret/frame_state.h"

namespace backplane::capture {

namespace {

using cpython::Instruction;
using cpython::Ref;

// Of CALL_INTRINSIC_1; from an internal header.
constexpr int kStopIterationError = 3;
constexpr int kUnaryPositive = 5;
constexpr int kListToTuple = 6;

Flow load_and_clear(FrameState& state, int index) {
  state.push(std::exchange(state.locals[index], nullptr));
  return Flow::kNext;
}

Flow slice(FrameState& state, bool stores) {
  const Ref stop = state.take(), start = state.take(), container = state.take();
  const Ref value = stores ? state.take() : Ref();
  const Ref key = Ref::steal(PySlice_New(start.get(), stop.get(), nullptr));
  if (!key) return Flow::kError;
  state.world.own(key.get());
  if (!stores) return push_result(state, state.interpreter.item(container.get(), key.get()));
  return state.interpreter.set_item(container.get(), key.get(), value.get()) ? Flow::kNext
                                                                             : Flow::kError;
}

// Stack: what the program calls `super`, the class, the object.
Flow super_attribute(FrameState& state, const Instruction& it) {
  const Ref object = state.take(), type = state.take(), callable = state.take();
  PyObject* arguments[2] = {type.get(), object.get()};
  const bool is_super = callable.get() == reinterpret_cast<PyObject*>(&PySuper_Type);
  // The program wrote no arguments where the second bit is not set.
  const bool has_arguments = (it.argument & 2) != 0;
  const Ref super = Ref::steal(
      is_super && !has_arguments
          ? PyObject_Vectorcall(callable.get(), arguments, 2, nullptr)  // reads their classes alone
          : state.interpreter.call(callable.get(), arguments, has_arguments ? 2 : 0, nullptr));
  if (!super) return Flow::kError;
  state.world.own(super.get());
  if (cpython::loads_method(it.opcode, it.argument)) state.push(nullptr);
  return push_result(state, state.interpreter.attribute(super.get(), state.name(cpython::name_index(
                                                                         it.opcode, it.argument))));
}

// What leaves a generator in place of a StopIteration of its body.
Flow replace_stop_iteration(FrameState& state) {
  const Ref given = state.take();
  if (!PyErr_GivenExceptionMatches(given.get(), PyExc_StopIteration))
    return push_result(state, Py_NewRef(given.get()));
  const Ref error =
      Ref::steal(PyObject_CallFunction(PyExc_RuntimeError, "s", "generator raised StopIteration"));
  if (!error) return Flow::kError;
  PyException_SetCause(error.get(), Py_NewRef(given.get()));
  PyException_SetContext(error.get(), Py_NewRef(given.get()));
  return push_own(state, Py_NewRef(error.get()));
}

// Stack: the receiver of a `yield from`, what was sent to it, what it raised.
Flow end_throw(FrameState& state) {
  PyObject* error = state.peek(1);
  if (!PyErr_GivenExceptionMatches(error, PyExc_StopIteration)) {
    PyErr_SetRaisedException(Py_NewRef(error));
    return Flow::kReraise;
  }
  const Ref value = Ref::steal(PyObject_GetAttrString(error, "value"));
  if (!value) return Flow::kError;
  state.drop_to(state.depth() - 3);
  state.push(Py_NewRef(Py_None));
  return push_result(state, state.world.admit(Py_NewRef(value.get()), "yield from", 2));
}

}  // namespace

Flow run_version_instruction(FrameState& state, const Instruction& it, bool& out_handled) {
  out_handled = true;
  switch (it.opcode) {
    case LOAD_FAST_CHECK:
      return load_local(state, it.argument);
    case LOAD_FAST_AND_CLEAR:
      return load_and_clear(state, it.argument);
    case RETURN_CONST:
      state.world.share(state.constant(it.argument));
      state.push(Py_NewRef(state.constant(it.argument)));
      return Flow::kReturn;
    case POP_JUMP_IF_FALSE:
      return jump_on_truth(state, it, false, false);
    case POP_JUMP_IF_TRUE:
      return jump_on_truth(state, it, true, false);
    case POP_JUMP_IF_NONE:
      return jump_on_none(state, it, true);
    case POP_JUMP_IF_NOT_NONE:
      return jump_on_none(state, it, false);
    case BINARY_SLICE:
      return slice(state, false);
    case STORE_SLICE:
      return slice(state, true);
    case LOAD_SUPER_ATTR:
      return super_attribute(state, it);
    case SEND: {  // what the receiver returns lies above it, for END_SEND
      PyObject* result = nullptr;
      const PySendResult sent = send(state, result);
      if (!result) return Flow::kError;
      state.push(result);
      return sent == PYGEN_NEXT ? Flow::kNext : jump(state, it);
    }
    case END_SEND: {
      const Ref result = state.take();
      Py_DECREF(state.pop());
      return push_result(state, Py_NewRef(result.get()));
    }
    case CLEANUP_THROW:
      return end_throw(state);
    case CALL_INTRINSIC_1:
      if (it.argument == kStopIterationError) return replace_stop_iteration(state);
      if (it.argument == kUnaryPositive) return unary(state, PyNumber_Positive);
      if (it.argument == kListToTuple) return list_to_tuple(state);
      break;
    default:
      break;
  }
  out_handled = false;
  return Flow::kNext;
}

}  // namespace backplane::capture

#endif
