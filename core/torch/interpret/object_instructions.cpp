// Instructions that ask objects: attributes, items, operators, iteration, imports.
#include <opcode.h>

#include <array>
#include <cmath>
#include <string_view>

#include "core/cpython/bytecode/opcodes.h"
#include "core/cpython/frame/hook.h"
#include "core/torch/guards/content.h"
#include "core/torch/interpret/frame_state.h"

namespace backplane::capture {

namespace {

using cpython::Instruction;
using cpython::Ref;

using Binary = PyObject* (*)(PyObject*, PyObject*);

PyObject* power(PyObject* a, PyObject* b) { return PyNumber_Power(a, b, Py_None); }
PyObject* power_in_place(PyObject* a, PyObject* b) { return PyNumber_InPlacePower(a, b, Py_None); }

// By the instruction's argument; the second half works in place.
constexpr std::array<Binary, 26> kBinary{
    PyNumber_Add,
    PyNumber_And,
    PyNumber_FloorDivide,
    PyNumber_Lshift,
    PyNumber_MatrixMultiply,
    PyNumber_Multiply,
    PyNumber_Remainder,
    PyNumber_Or,
    power,
    PyNumber_Rshift,
    PyNumber_Subtract,
    PyNumber_TrueDivide,
    PyNumber_Xor,
    PyNumber_InPlaceAdd,
    PyNumber_InPlaceAnd,
    PyNumber_InPlaceFloorDivide,
    PyNumber_InPlaceLshift,
    PyNumber_InPlaceMatrixMultiply,
    PyNumber_InPlaceMultiply,
    PyNumber_InPlaceRemainder,
    PyNumber_InPlaceOr,
    power_in_place,
    PyNumber_InPlaceRshift,
    PyNumber_InPlaceSubtract,
    PyNumber_InPlaceTrueDivide,
    PyNumber_InPlaceXor,
};
constexpr int kFirstInPlace = 13;

// A class of C whose objects change where they stand by such an operator.
bool changes_in_place(PyObject* object) {
  const PyTypeObject* type = guards::base_in_c(Py_TYPE(object));
  if (is_primitive(object) || is_fixed(object) || guards::is_tensor(object) ||
      guards::is_immutable_value(object) || PyTuple_Check(object) || PyFrozenSet_Check(object))
    return false;
  return type->tp_as_number || type->tp_as_sequence;
}

// What operators look at: a list or a dict of the program's own is only taken apart, but for one
// that a text prints.
bool expose_operands(World& world, PyObject* left, PyObject* right, Binary operation) {
  const bool prints = (operation == PyNumber_Remainder || operation == PyNumber_InPlaceRemainder) &&
                      (PyUnicode_Check(left) || PyBytes_Check(left) || PyByteArray_Check(left));
  const auto expose = [&](PyObject* object) {
    const bool is_taken_apart = !prints && (PyList_Check(object) || PyDict_Check(object));
    return (is_taken_apart && world.is_own(object)) || world.expose(object);
  };
  return expose(left) && expose(right);
}

bool is_of_library(PyObject* object, std::string_view prefix) {
  return std::string_view(guards::base_in_c(Py_TYPE(object))->tp_name).starts_with(prefix);
}

// The context decides how Decimal rounds and what it raises.
bool needs_context(World& world, PyObject* operand) {
  if (!is_of_library(operand, "decimal.")) return false;
  world.stop("the program calculates with Decimal, whose context decides");
  return true;
}

// A setting of NumPy decides what happens where a number of its own is not finite.
bool depends_on_errstate(World& world, PyObject* left, PyObject* right, PyObject* result) {
  if (!is_of_library(left, "numpy.") && !is_of_library(right, "numpy.")) return false;
  bool is_finite = result != nullptr;
  if (result != nullptr && PyNumber_Check(result) && !PyComplex_Check(result)) {
    const Ref number = Ref::steal(PyNumber_Float(result));
    PyErr_Clear();
    is_finite = !number || std::isfinite(PyFloat_AS_DOUBLE(number.get()));
  }
  if (is_finite) return false;
  PyErr_Clear();
  world.stop("a number of NumPy that is not finite");
  return true;
}

Flow binary(FrameState& state, int argument) {
  const Ref right = state.take(), left = state.take();
  World& world = state.world;
  if (argument >= kFirstInPlace && world.defers_effects() && PyList_CheckExact(left.get()) &&
      world.is_outside(left.get())) {
    PyObject* list = world.changed_list(left.get());
    if (!list || !world.expose(right.get())) return Flow::kError;
    const Ref changed = Ref::steal(kBinary[static_cast<std::size_t>(argument)](list, right.get()));
    if (!changed) return Flow::kError;
    if (changed.get() != list)
      return push_result(state, world.admit(Py_NewRef(changed.get()), "an operator", 2));
    return push_result(state, Py_NewRef(left.get()));
  }
  if (argument >= kFirstInPlace && world.is_outside(left.get()) && changes_in_place(left.get())) {
    world.stop(std::string("the program changes a ") + Py_TYPE(left.get())->tp_name +
               " from outside");
    return Flow::kError;
  }
  const Binary operation = kBinary[static_cast<std::size_t>(argument)];
  if (!expose_operands(world, left.get(), right.get(), operation)) return Flow::kError;
  if (needs_context(world, left.get()) || needs_context(world, right.get())) return Flow::kError;
  Ref result = Ref::steal(operation(left.get(), right.get()));
  if (depends_on_errstate(world, left.get(), right.get(), result.get())) return Flow::kError;
  return push_result(state, world.admit(result.release(), "an operator"));
}

Flow compare(FrameState& state, int argument) {
  const Ref right = state.take(), left = state.take();
  for (PyObject* side : {left.get(), right.get()})
    if (!guards::compares_by_identity(side) && !state.world.expose(side)) return Flow::kError;
  state.world.note_compared(left.get());
  state.world.note_compared(right.get());
  // Objects without a comparison of their own are equal where they are one. Numbers and texts are
  // so by their values.
  if (!is_primitive(left.get()) && !is_primitive(right.get()))
    state.world.guard_identity_of(left.get(), right.get());
  return push_result(
      state,
      state.world.admit(PyObject_RichCompare(left.get(), right.get(), argument), "a comparison"));
}

// A module that is there already; running one would be an effect.
Flow import(FrameState& state, PyObject* name) {
  const Ref from_list = state.take(), level = state.take();
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* found = PyDict_GetItemWithError(modules, name);
  if (PyLong_AsLong(level.get()) != 0 || !found || !PyModule_Check(found)) {
    state.world.stop("the program imports a module");
    return Flow::kError;
  }
  guards::Sources& sources = state.world.guards().sources();
  state.world.guards().guard_identity(
      sources.add(SourceKind::kDictItem, sources.add(SourceKind::kConstant, kNoSource, modules),
                  name),
      found);
  const cpython::HookPause pause;
  const Ref module = Ref::steal(
      PyImport_ImportModuleLevelObject(name, state.content.globals, Py_None, from_list.get(), 0));
  return push_result(state, module ? state.world.read_constant(module.get()) : nullptr);
}

Flow for_iter(FrameState& state, const Instruction& it) {
  PyObject* value = state.interpreter.next(state.peek(1));
  if (value) {
    state.push(value);
    return Flow::kNext;
  }
  if (PyErr_Occurred()) {
    if (state.world.stopped() || !PyErr_ExceptionMatches(PyExc_StopIteration)) return Flow::kError;
    PyErr_Clear();
  }
  Py_DECREF(state.pop());
  state.at = static_cast<std::size_t>(it.target + cpython::skipped_at_loop_end());
  return Flow::kJumped;
}

Flow push_flag(FrameState& state, unsigned long flag) {
  state.push(Py_NewRef(PyType_HasFeature(Py_TYPE(state.peek(1)), flag) ? Py_True : Py_False));
  return Flow::kNext;
}

}  // namespace

Flow push_result(FrameState& state, PyObject* owned) {
  if (!owned) return Flow::kError;
  state.push(owned);
  return Flow::kNext;
}

Flow unary(FrameState& state, PyObject* (*function)(PyObject*)) {
  const Ref operand = state.take();
  if (needs_context(state.world, operand.get()) || !state.world.expose(operand.get()))
    return Flow::kError;
  return push_result(state, state.world.admit(function(operand.get()), "an operator"));
}

PySendResult send(FrameState& state, PyObject*& out_result) {
  const Ref value = state.take();
  PyObject* result = nullptr;
  const Interpreter::TakerScope scope(state.interpreter, Taker::kInterpreter);
  const PySendResult sent = PyIter_Send(state.peek(1), value.get(), &result);
  out_result = sent == PYGEN_ERROR ? nullptr : state.world.admit(result, "yield from");
  return sent;
}

Flow run_object_instruction(FrameState& state, const Instruction& it, bool& out_handled) {
  out_handled = true;
  Interpreter& interpreter = state.interpreter;
  const int argument = it.argument;
  switch (it.opcode) {
    case LOAD_GLOBAL:
      if (argument & 1) state.push(nullptr);
      return push_result(state,
                         interpreter.global(state.content.globals, state.content.builtins,
                                            state.name(cpython::name_index(it.opcode, argument))));
    case STORE_GLOBAL:
    case DELETE_GLOBAL: {
      const Ref value = it.opcode == STORE_GLOBAL ? state.take() : Ref();
      return interpreter.store_global(state.content.globals, state.content.builtins,
                                      state.name(argument), value.get())
                 ? Flow::kNext
                 : Flow::kError;
    }
    case LOAD_ATTR:
    case LOAD_METHOD: {
      const Ref owner = state.take();
      if (cpython::loads_method(it.opcode, argument)) state.push(nullptr);
      return push_result(
          state,
          interpreter.attribute(owner.get(), state.name(cpython::name_index(it.opcode, argument))));
    }
    case STORE_ATTR: {
      const Ref owner = state.take(), value = state.take();
      return interpreter.set_attribute(owner.get(), state.name(argument), value.get())
                 ? Flow::kNext
                 : Flow::kError;
    }
    case DELETE_ATTR: {
      const Ref owner = state.take();
      return interpreter.set_attribute(owner.get(), state.name(argument), nullptr) ? Flow::kNext
                                                                                   : Flow::kError;
    }
    case BINARY_SUBSCR: {
      const Ref key = state.take(), container = state.take();
      return push_result(state, interpreter.item(container.get(), key.get()));
    }
    case STORE_SUBSCR: {
      const Ref key = state.take(), container = state.take(), value = state.take();
      return interpreter.set_item(container.get(), key.get(), value.get()) ? Flow::kNext
                                                                           : Flow::kError;
    }
    case DELETE_SUBSCR: {
      const Ref key = state.take(), container = state.take();
      return interpreter.set_item(container.get(), key.get(), nullptr) ? Flow::kNext : Flow::kError;
    }
    case BINARY_OP:
      return binary(state, argument);
    case UNARY_NEGATIVE:
      return unary(state, PyNumber_Negative);
    case UNARY_INVERT:
      return unary(state, PyNumber_Invert);
    case UNARY_NOT: {
      const Ref operand = state.take();
      const int is_true = interpreter.truth(operand.get());
      return push_result(state, is_true < 0 ? nullptr : PyBool_FromLong(!is_true));
    }
    case COMPARE_OP:
      return compare(state, cpython::comparison_of(argument));
    case IS_OP: {
      const Ref right = state.take(), left = state.take();
      state.world.guard_identity_of(left.get(), right.get());
      state.push(PyBool_FromLong((left.get() == right.get()) != (argument != 0)));
      return Flow::kNext;
    }
    case CONTAINS_OP: {
      const Ref container = state.take(), value = state.take();
      const int found = interpreter.contains(container.get(), value.get());
      return push_result(state,
                         found < 0 ? nullptr : PyBool_FromLong((found != 0) != (argument != 0)));
    }
    case GET_LEN: {
      if (!state.world.expose(state.peek(1))) return Flow::kError;
      const Py_ssize_t length = PyObject_Length(state.peek(1));
      return push_result(state, length < 0 ? nullptr : PyLong_FromSsize_t(length));
    }
    case GET_ITER: {
      const Ref object = state.take();
      return push_result(state, interpreter.iterator(object.get()));
    }
    case GET_YIELD_FROM_ITER: {
      if (PyGen_CheckExact(state.peek(1)) && state.world.is_own(state.peek(1))) return Flow::kNext;
      const Ref object = state.take();
      return push_result(state, interpreter.iterator(object.get()));
    }
    case FOR_ITER:
      return for_iter(state, it);
    case MATCH_MAPPING:
      return push_flag(state, Py_TPFLAGS_MAPPING);
    case MATCH_SEQUENCE:
      return push_flag(state, Py_TPFLAGS_SEQUENCE);
    case IMPORT_NAME:
      return import(state, state.name(argument));
    case IMPORT_FROM:
      return push_result(state, interpreter.attribute(state.peek(1), state.name(argument)));
    default:
      out_handled = false;
      return Flow::kNext;
  }
}

}  // namespace backplane::capture
