// Instructions that make containers and strings, take them apart, and make functions.
#include <opcode.h>

#include "core/torch/guards/content.h"
#include "core/torch/interpret/frame_state.h"

namespace backplane::capture {

namespace {

using cpython::Instruction;
using cpython::Ref;

Flow build_sequence(FrameState& state, int count, bool is_list) {
  PyObject* made = is_list ? PyList_New(count) : PyTuple_New(count);
  if (!made) return Flow::kError;
  for (int i = count - 1; i >= 0; --i) {
    if (is_list)
      PyList_SET_ITEM(made, i, state.pop());
    else
      PyTuple_SET_ITEM(made, i, state.pop());
  }
  return push_own(state, made);
}

Flow build_set(FrameState& state, int count) {
  Ref made = Ref::steal(PySet_New(nullptr));
  for (int i = count; i > 0; --i) {
    if (!state.world.expose(state.peek(i))) return Flow::kError;
    if (PySet_Add(made.get(), state.peek(i)) != 0) return Flow::kError;
  }
  state.drop_to(state.depth() - count);
  return push_own(state, made.release());
}

Flow build_map(FrameState& state, int count) {
  Ref made = Ref::steal(PyDict_New());
  for (int i = count; i > 0; --i) {
    if (!state.world.expose(state.peek(2 * i))) return Flow::kError;
    if (PyDict_SetItem(made.get(), state.peek(2 * i), state.peek(2 * i - 1)) != 0)
      return Flow::kError;
  }
  state.drop_to(state.depth() - 2 * count);
  return push_own(state, made.release());
}

Flow build_constant_key_map(FrameState& state, int count) {
  const Ref keys = state.take();
  Ref made = Ref::steal(PyDict_New());
  for (int i = 0; i < count; ++i)
    if (PyDict_SetItem(made.get(), PyTuple_GET_ITEM(keys.get(), i), state.peek(count - i)) != 0)
      return Flow::kError;
  state.drop_to(state.depth() - count);
  return push_own(state, made.release());
}

Flow build_string(FrameState& state, int count) {
  const Ref parts = Ref::steal(PyList_New(count));
  for (int i = count - 1; i >= 0; --i) PyList_SET_ITEM(parts.get(), i, state.pop());
  const Ref empty = Ref::steal(PyUnicode_New(0, 0));
  return push_own(state, PyUnicode_Join(empty.get(), parts.get()));
}

Flow build_slice(FrameState& state, int count) {
  const Ref step = count == 3 ? state.take() : Ref();
  const Ref stop = state.take(), start = state.take();
  return push_own(state, PySlice_New(start.get(), stop.get(), step.get()));
}

// What C classes give without a format is their text.
bool has_python_format(PyObject* object) {
  static PyObject* const name = PyUnicode_InternFromString("__format__");
  PyObject* found = _PyType_Lookup(Py_TYPE(object), name);
  return found && PyFunction_Check(found);
}

Flow format(FrameState& state, int argument) {
  const Ref spec = argument & 4 ? state.take() : Ref();
  Ref value = state.take();
  const int conversion = argument & 3;
  // The functions of that name know which texts name addresses.
  if (conversion != 0 || !is_primitive(value.get())) {
    PyObject* given = value.get();
    const bool has_format = spec && conversion == 0;
    if (has_format && !guards::is_immutable_value(given)) {
      state.world.stop("the program formats an object with a format of its own");
      return Flow::kError;
    }
    if (has_format) {
      if (!state.world.expose(given)) return Flow::kError;
    } else {
      static PyObject* const repr = PyDict_GetItemString(PyEval_GetBuiltins(), "repr");
      static PyObject* const ascii = PyDict_GetItemString(PyEval_GetBuiltins(), "ascii");
      static PyObject* const format = PyDict_GetItemString(PyEval_GetBuiltins(), "format");
      PyObject* text = conversion == 2   ? repr
                       : conversion == 3 ? ascii
                       : conversion == 0 && has_python_format(given)
                           ? format
                           : reinterpret_cast<PyObject*>(&PyUnicode_Type);
      value = Ref::steal(state.interpreter.call(text, &given, 1, nullptr));
    }
  }
  return value ? push_own(state, PyObject_Format(value.get(), spec.get())) : Flow::kError;
}

// Feeds what `iterable` gives to `add`.
template <class Add>
Flow feed(FrameState& state, PyObject* iterable, const Add& add) {
  const Ref iterator = Ref::steal(state.interpreter.iterator(iterable));
  if (!iterator) return Flow::kError;
  for (;;) {
    const Ref value = Ref::steal(state.interpreter.next(iterator.get()));
    if (!value) break;
    if (!add(value.get())) return Flow::kError;
  }
  if (!PyErr_Occurred()) return Flow::kNext;
  if (state.world.stopped() || !PyErr_ExceptionMatches(PyExc_StopIteration)) return Flow::kError;
  PyErr_Clear();
  return Flow::kNext;
}

bool iterates_as_dict(PyObject* object) {
  return PyDict_Check(object) && (Py_TYPE(object)->tp_iter == PyDict_Type.tp_iter ||
                                  Py_TYPE(object)->tp_iter == PyODict_Type.tp_iter);
}

Flow update_dict(FrameState& state, PyObject* target, PyObject* source, bool merges) {
  const auto add = [&](PyObject* key, const auto& value_of) {
    if (merges && PyDict_Contains(target, key) == 1) {
      PyErr_Format(PyExc_TypeError, "got multiple values for keyword argument '%S'", key);
      return false;
    }
    const Ref value = Ref::steal(value_of(key));
    return value && PyDict_SetItem(target, key, value.get()) == 0;
  };
  if (iterates_as_dict(source)) {
    if (!state.world.expose_items(source)) return Flow::kError;
    const Ref keys = guards::ordered_keys(source);
    const auto value_of = [&](PyObject* key) {
      return state.world.admit(Py_XNewRef(PyDict_GetItemWithError(source, key)), "a dict", 2);
    };
    for (Py_ssize_t i = 0; keys && i < PyList_GET_SIZE(keys.get()); ++i)
      if (!add(PyList_GET_ITEM(keys.get(), i), value_of)) return Flow::kError;
    return Flow::kNext;
  }
  static PyObject* const keys_name = PyUnicode_InternFromString("keys");
  if (!_PyType_Lookup(Py_TYPE(source), keys_name)) {
    state.world.stop("the program merges an object without keys()");
    return Flow::kError;
  }
  const Ref method = Ref::steal(state.interpreter.attribute(source, keys_name));
  const Ref keys =
      Ref::steal(method ? state.interpreter.call(method.get(), nullptr, 0, nullptr) : nullptr);
  if (!keys) return Flow::kError;
  return feed(state, keys.get(), [&](PyObject* key) {
    return state.world.expose(key) &&
           add(key, [&](PyObject* of) { return state.interpreter.item(source, of); });
  });
}

// All values of an iterable; at most one more than asked for where `limit` is not negative.
Flow collect(FrameState& state, PyObject* iterable, Py_ssize_t limit, std::vector<Ref>& out) {
  const Ref iterator = Ref::steal(state.interpreter.iterator(iterable));
  if (!iterator) return Flow::kError;
  while (limit < 0 || static_cast<Py_ssize_t>(out.size()) <= limit) {
    Ref value = Ref::steal(state.interpreter.next(iterator.get()));
    if (!value) {
      if (!PyErr_Occurred()) return Flow::kNext;
      if (state.world.stopped() || !PyErr_ExceptionMatches(PyExc_StopIteration))
        return Flow::kError;
      PyErr_Clear();
      return Flow::kNext;
    }
    out.push_back(std::move(value));
  }
  return Flow::kNext;
}

Flow unpack(FrameState& state, int count) {
  const Ref sequence = state.take();
  std::vector<Ref> values;
  if (collect(state, sequence.get(), count, values) == Flow::kError) return Flow::kError;
  const auto found = static_cast<int>(values.size());
  if (found < count) {
    PyErr_Format(PyExc_ValueError, "not enough values to unpack (expected %d, got %d)", count,
                 found);
    return Flow::kError;
  }
  if (found > count) {
    PyErr_Format(PyExc_ValueError, "too many values to unpack (expected %d)", count);
    return Flow::kError;
  }
  for (int i = count - 1; i >= 0; --i) state.push(values[static_cast<std::size_t>(i)].release());
  return Flow::kNext;
}

Flow unpack_around(FrameState& state, int argument) {
  const int before = argument & 0xff, after = argument >> 8;
  const Ref sequence = state.take();
  std::vector<Ref> values;
  if (collect(state, sequence.get(), -1, values) == Flow::kError) return Flow::kError;
  const auto found = static_cast<int>(values.size());
  if (found < before + after) {
    PyErr_Format(PyExc_ValueError, "not enough values to unpack (expected at least %d, got %d)",
                 before + after, found);
    return Flow::kError;
  }
  const Ref middle = Ref::steal(PyList_New(found - before - after));
  for (int i = before; i < found - after; ++i)
    PyList_SET_ITEM(middle.get(), i - before, values[static_cast<std::size_t>(i)].release());
  state.world.own(middle.get());
  for (int i = found - 1; i >= found - after; --i)
    state.push(values[static_cast<std::size_t>(i)].release());
  state.push(Py_NewRef(middle.get()));
  for (int i = before - 1; i >= 0; --i) state.push(values[static_cast<std::size_t>(i)].release());
  return Flow::kNext;
}

// A frame that goes on behind a break has got from outside what it was building.
bool is_own(FrameState& state, PyObject* container) {
  if (!state.world.is_outside(container)) return true;
  state.world.stop(std::string("the program goes on building a ") + Py_TYPE(container)->tp_name);
  return false;
}

Flow make_function(FrameState& state, int flags) {
  const Ref code = state.take();
  PyObject* made = PyFunction_New(code.get(), state.content.globals);
  if (!made) return Flow::kError;
  auto* function = reinterpret_cast<PyFunctionObject*>(made);
  if (flags & 8) function->func_closure = state.pop();
  if (flags & 4) function->func_annotations = state.pop();
  if (flags & 2) function->func_kwdefaults = state.pop();
  if (flags & 1) function->func_defaults = state.pop();
  return push_own(state, made);
}

}  // namespace

Flow push_own(FrameState& state, PyObject* made) {
  if (!made) return Flow::kError;
  state.world.own(made);
  state.push(made);
  return Flow::kNext;
}

Flow run_build_instruction(FrameState& state, const Instruction& it, bool& out_handled) {
  out_handled = true;
  const int argument = it.argument;
  switch (it.opcode) {
    case BUILD_TUPLE:
      return build_sequence(state, argument, false);
    case BUILD_LIST:
      return build_sequence(state, argument, true);
    case BUILD_SET:
      return build_set(state, argument);
    case BUILD_MAP:
      return build_map(state, argument);
    case BUILD_CONST_KEY_MAP:
      return build_constant_key_map(state, argument);
    case BUILD_STRING:
      return build_string(state, argument);
    case BUILD_SLICE:
      return build_slice(state, argument);
    case FORMAT_VALUE:
      return format(state, argument);
    case LIST_APPEND: {
      const Ref value = state.take();
      return state.interpreter.append(state.peek(argument), value.get()) ? Flow::kNext
                                                                         : Flow::kError;
    }
    case SET_ADD: {
      if (!is_own(state, state.peek(argument + 1))) return Flow::kError;
      const Ref value = state.take();
      if (!state.world.expose(value.get())) return Flow::kError;
      return PySet_Add(state.peek(argument), value.get()) == 0 ? Flow::kNext : Flow::kError;
    }
    case MAP_ADD: {
      if (!is_own(state, state.peek(argument + 2))) return Flow::kError;
      const Ref value = state.take(), key = state.take();
      if (!state.world.expose(key.get())) return Flow::kError;
      return PyDict_SetItem(state.peek(argument), key.get(), value.get()) == 0 ? Flow::kNext
                                                                               : Flow::kError;
    }
    case LIST_EXTEND: {
      if (!is_own(state, state.peek(argument + 1))) return Flow::kError;
      const Ref iterable = state.take();
      PyObject* list = state.peek(argument);
      return feed(state, iterable.get(),
                  [&](PyObject* value) { return PyList_Append(list, value) == 0; });
    }
    case SET_UPDATE: {
      if (!is_own(state, state.peek(argument + 1))) return Flow::kError;
      const Ref iterable = state.take();
      PyObject* set = state.peek(argument);
      return feed(state, iterable.get(), [&](PyObject* value) {
        return state.world.expose(value) && PySet_Add(set, value) == 0;
      });
    }
    case DICT_UPDATE:
    case DICT_MERGE: {
      if (!is_own(state, state.peek(argument + 1))) return Flow::kError;
      const Ref source = state.take();
      return update_dict(state, state.peek(argument), source.get(), it.opcode == DICT_MERGE);
    }
    case UNPACK_SEQUENCE:
      return unpack(state, argument);
    case UNPACK_EX:
      return unpack_around(state, argument);
    case MAKE_FUNCTION:
      return make_function(state, argument);
    default:
      out_handled = false;
      return Flow::kNext;
  }
}

}  // namespace backplane::capture
