// Instructions that call, and generators' first step.
#include <opcode.h>

#include "core/torch/interpret/frame_state.h"

namespace backplane::capture {

namespace {

using cpython::Instruction;
using cpython::Ref;

// Stack: NULL and the callable, or a method and its object; then the arguments.
Flow call(FrameState& state, int count) {
  const bool is_method = state.peek(count + 2) != nullptr;
  PyObject* callable = is_method ? state.peek(count + 2) : state.peek(count + 1);
  const int total = count + (is_method ? 1 : 0);
  PyObject* names = state.keyword_names;
  state.keyword_names = nullptr;
  const auto positional = static_cast<std::size_t>(total) -
                          static_cast<std::size_t>(names ? PyTuple_GET_SIZE(names) : 0);
  PyObject* result = state.interpreter.call(callable, state.top - total, positional, names);
  state.drop_to(state.depth() - count - 2);
  if (!result) return Flow::kError;
  state.push(result);
  return Flow::kNext;
}

// What an iterable gives, as an own tuple; null with an error set.
PyObject* tuple_of(FrameState& state, PyObject* iterable) {
  World& world = state.world;
  if (PyTuple_CheckExact(iterable) && !world.is_outside(iterable)) return Py_NewRef(iterable);
  const Ref list = Ref::steal(PyList_New(0));
  if (!list) return nullptr;
  if (PyObject* changed = world.seen_list(iterable)) iterable = changed;
  if (world.is_outside(iterable) && (PyTuple_CheckExact(iterable) || PyList_CheckExact(iterable))) {
    // Items as they are: what the callee does with them is seen outside.
    world.guards().guard_length(world.source_of(iterable), Py_SIZE(iterable));
    for (Py_ssize_t i = 0; i < Py_SIZE(iterable); ++i) {
      const Ref index = Ref::steal(PyLong_FromSsize_t(i));
      const Ref value = Ref::steal(state.interpreter.item(iterable, index.get()));
      if (!value || PyList_Append(list.get(), value.get()) != 0) return nullptr;
    }
    return PyList_AsTuple(list.get());
  }
  const Ref iterator = Ref::steal(state.interpreter.iterator(iterable));
  while (iterator) {
    const Ref value = Ref::steal(state.interpreter.next(iterator.get()));
    if (!value) break;
    if (PyList_Append(list.get(), value.get()) != 0) return nullptr;
  }
  if (PyErr_Occurred()) {
    if (world.stopped() || !PyErr_ExceptionMatches(PyExc_StopIteration)) return nullptr;
    PyErr_Clear();
  }
  return PyList_AsTuple(list.get());
}

// Stack: NULL, the callable, its arguments as an iterable, perhaps keywords as a dict.
Flow call_with_containers(FrameState& state, bool has_keywords) {
  const Ref keywords = has_keywords ? state.take() : Ref();
  Ref positional = state.take();
  const Ref callable = state.take();
  state.pop();
  World& world = state.world;
  positional = Ref::steal(tuple_of(state, positional.get()));
  if (!positional) return Flow::kError;
  std::vector<PyObject*> arguments;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(positional.get()); ++i)
    arguments.push_back(PyTuple_GET_ITEM(positional.get(), i));
  const std::size_t count = arguments.size();
  Ref names;
  std::vector<Ref> held;
  if (keywords && PyDict_Check(keywords.get()) && PyDict_GET_SIZE(keywords.get()) != 0) {
    if (!world.expose_items(keywords.get())) return Flow::kError;
    names = Ref::steal(PyTuple_New(PyDict_GET_SIZE(keywords.get())));
    Py_ssize_t position = 0, i = 0;
    PyObject *key, *value;
    while (PyDict_Next(keywords.get(), &position, &key, &value)) {
      PyTuple_SET_ITEM(names.get(), i++, Py_NewRef(key));
      held.push_back(Ref::steal(world.admit(Py_NewRef(value), "keywords", 2)));
      if (!held.back()) return Flow::kError;
      arguments.push_back(held.back().get());
    }
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(names.get()); ++k)
      if (!PyUnicode_Check(PyTuple_GET_ITEM(names.get(), k))) {
        PyErr_SetString(PyExc_TypeError, "keywords must be strings");
        return Flow::kError;
      }
  } else if (keywords && !PyDict_Check(keywords.get())) {
    world.stop("the program gives keywords as a mapping that is no dict");
    return Flow::kError;
  }
  PyObject* result = state.interpreter.call(callable.get(), arguments.data(), count, names.get());
  if (!result) return Flow::kError;
  state.push(result);
  return Flow::kNext;
}

}  // namespace

// Behind a break the list is one from outside.
Flow list_to_tuple(FrameState& state) {
  const Ref list = state.take();
  return push_own(state, tuple_of(state, list.get()));
}

Flow run_call_instruction(FrameState& state, const Instruction& it, bool& out_handled) {
  out_handled = true;
  switch (it.opcode) {
    case KW_NAMES:
      state.keyword_names = state.constant(it.argument);
      return Flow::kNext;
    case CALL:
      return call(state, it.argument);
    case CALL_FUNCTION_EX:
      return call_with_containers(state, (it.argument & 1) != 0);
    default:
      out_handled = false;
      return Flow::kNext;
  }
}

}  // namespace backplane::capture
