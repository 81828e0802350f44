// The patterns of `match` that ask objects: classes and mappings with keys.
#include <opcode.h>

#include "core/torch/interpret/frame_state.h"

namespace backplane::capture {

namespace {

using cpython::Instruction;
using cpython::Ref;

// Null with an error set, or None where the pattern does not match.
PyObject* values_of_keys(FrameState& state, PyObject* subject, PyObject* keys) {
  const Py_ssize_t count = PyTuple_GET_SIZE(keys);
  Ref values = Ref::steal(PyTuple_New(count));
  for (Py_ssize_t i = 0; values && i < count; ++i) {
    PyObject* key = PyTuple_GET_ITEM(keys, i);
    const int found = state.interpreter.contains(subject, key);
    if (found < 0) return nullptr;
    if (!found) return Py_NewRef(Py_None);
    PyObject* value = state.interpreter.item(subject, key);
    if (!value) return nullptr;
    PyTuple_SET_ITEM(values.get(), i, value);
  }
  if (values) state.world.own(values.get());
  return values.release();
}

// The names of a class's positional patterns; null without an error: the one is the object itself.
Ref positional_names(FrameState& state, PyObject* type, int count) {
  static PyObject* const name = PyUnicode_InternFromString("__match_args__");
  const char* const class_name = reinterpret_cast<PyTypeObject*>(type)->tp_name;
  Ref names = Ref::steal(state.interpreter.attribute(type, name));
  const bool missing =
      !names && !state.world.stopped() && PyErr_ExceptionMatches(PyExc_AttributeError);
  if (missing) PyErr_Clear();
  if (!names && !missing) return {};
  const bool is_itself =
      missing && PyType_HasFeature(reinterpret_cast<PyTypeObject*>(type), _Py_TPFLAGS_MATCH_SELF);
  if (names && !PyTuple_CheckExact(names.get())) {
    PyErr_Format(PyExc_TypeError, "%s.__match_args__ must be a tuple (got %s)", class_name,
                 Py_TYPE(names.get())->tp_name);
    return {};
  }
  const Py_ssize_t allowed = names ? PyTuple_GET_SIZE(names.get()) : is_itself ? 1 : 0;
  if (allowed < count)
    PyErr_Format(PyExc_TypeError, "%s() accepts %d positional sub-pattern%s (%d given)", class_name,
                 static_cast<int>(allowed), allowed == 1 ? "" : "s", count);
  return names;
}

// As values_of_keys.
PyObject* parts_of_instance(FrameState& state, PyObject* subject, PyObject* type, int count,
                            PyObject* keywords) {
  if (!PyType_Check(type)) {
    PyErr_SetString(PyExc_TypeError, "called match pattern must be a type");
    return nullptr;
  }
  const int is_instance = is_instance_of(subject, type);
  if (is_instance < 0 || state.world.stopped()) return nullptr;
  if (!is_instance) return Py_NewRef(Py_None);
  const Ref names = count > 0 ? positional_names(state, type, count) : Ref();
  if (PyErr_Occurred()) return nullptr;
  const Ref parts = Ref::steal(PyList_New(0));
  const auto add = [&](PyObject* owned) {
    const Ref value = Ref::steal(owned);
    return value && PyList_Append(parts.get(), value.get()) == 0;
  };
  for (Py_ssize_t i = 0; i < count + PyTuple_GET_SIZE(keywords); ++i) {
    PyObject* name = i >= count ? PyTuple_GET_ITEM(keywords, i - count)
                     : names    ? PyTuple_GET_ITEM(names.get(), i)
                                : nullptr;
    if (!name) {
      if (!add(Py_NewRef(subject))) return nullptr;
      continue;
    }
    if (add(state.interpreter.attribute(subject, name))) continue;
    if (state.world.stopped() || !PyErr_ExceptionMatches(PyExc_AttributeError)) return nullptr;
    PyErr_Clear();
    return Py_NewRef(Py_None);
  }
  Ref tuple = Ref::steal(PyList_AsTuple(parts.get()));
  if (tuple) state.world.own(tuple.get());
  return tuple.release();
}

}  // namespace

Flow run_match_instruction(FrameState& state, const Instruction& it, bool& out_handled) {
  out_handled = true;
  switch (it.opcode) {
    case MATCH_KEYS: {
      PyObject* values = values_of_keys(state, state.peek(2), state.peek(1));
      if (!values) return Flow::kError;
      state.push(values);
      return Flow::kNext;
    }
    case MATCH_CLASS: {
      const Ref keywords = state.take(), type = state.take(), subject = state.take();
      PyObject* parts =
          parts_of_instance(state, subject.get(), type.get(), it.argument, keywords.get());
      if (!parts) return Flow::kError;
      state.push(parts);
      return Flow::kNext;
    }
    default:
      out_handled = false;
      return Flow::kNext;
  }
}

}  // namespace backplane::capture
