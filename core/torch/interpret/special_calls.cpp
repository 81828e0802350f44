// Built-in functions that the interpreter does itself, because they ask objects in turn.
#include <string>

#include "core/torch/interpret/interpreter.h"
#include "core/torch/interpret/library_functions.h"
#include "core/torch/world/c_functions.h"

namespace backplane::capture {

namespace {

using cpython::Ref;

PyObject* hash_function() {
  static PyObject* const function = PyDict_GetItemString(PyEval_GetBuiltins(), "hash");
  return function;
}

// Without what a subclass says.
Py_ssize_t length_in_c(PyObject* object) {
  if (PyDict_Check(object)) return PyDict_GET_SIZE(object);
  return PyAnySet_Check(object) ? PySet_GET_SIZE(object) : Py_SIZE(object);
}

}  // namespace

PyObject* Interpreter::call_special(int special, PyObject* const* arguments, std::size_t count) {
  const auto kind = static_cast<CFunctionKind>(special);
  switch (kind) {
    case CFunctionKind::kGetattr:
    case CFunctionKind::kHasattr: {
      if (count < 2 || !PyUnicode_Check(arguments[1])) break;
      PyObject* value = attribute(arguments[0], arguments[1]);
      if (world_.stopped()) {
        Py_XDECREF(value);
        return world_.stop("");
      }
      const bool missing = !value && PyErr_ExceptionMatches(PyExc_AttributeError);
      if (kind == CFunctionKind::kHasattr) {
        if (!value && !missing) return nullptr;
        PyErr_Clear();
        Py_XDECREF(value);
        return PyBool_FromLong(!missing);
      }
      if (!missing || count < 3) return value;
      PyErr_Clear();
      return Py_NewRef(arguments[2]);
    }
    case CFunctionKind::kSetattr:
      if (count != 3) break;
      return set_attribute(arguments[0], arguments[1], arguments[2]) ? Py_NewRef(Py_None) : nullptr;
    case CFunctionKind::kDelattr:
      if (count != 2) break;
      return set_attribute(arguments[0], arguments[1], nullptr) ? Py_NewRef(Py_None) : nullptr;
    case CFunctionKind::kNext: {
      PyObject* value = next(arguments[0]);
      if (value || world_.stopped()) return value;
      if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_StopIteration)) return nullptr;
      if (count > 1) {
        PyErr_Clear();
        return Py_NewRef(arguments[1]);
      }
      if (!PyErr_Occurred()) PyErr_SetNone(PyExc_StopIteration);
      return nullptr;
    }
    case CFunctionKind::kHash:
      if (count != 1) break;
      if (!hashes_the_same(arguments[0]))
        return world_.stop("the program asks for a hash that depends on an address");
      if (!world_.expose(arguments[0])) return nullptr;
      return world_.admit(PyObject_CallOneArg(hash_function(), arguments[0]), "hash");
    case CFunctionKind::kVars: {
      static PyObject* const dict_name = PyUnicode_InternFromString("__dict__");
      if (count != 1) break;
      return attribute(arguments[0], dict_name);
    }
    case CFunctionKind::kLocals: {
      PyFrameObject* const frame = count == 0 ? PyEval_GetFrame() : nullptr;
      if (!frame) break;
      const Ref code = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
      if (reinterpret_cast<PyCodeObject*>(code.get())->co_nfreevars != 0)
        return world_.stop("the program asks for all variables of an inner function");
      PyObject* locals = PyEval_GetLocals();
      if (!locals) break;
      world_.own(locals);
      return Py_NewRef(locals);
    }
    case CFunctionKind::kId: {
      if (count == 1 && only_compares_addresses(PyEval_GetFrame())) {
        return world_.address_of(arguments[0]);
      }
      // The guards keep an object from outside, and its address with it.
      const SourceId source = count == 1 ? world_.source_of(arguments[0]) : kNoSource;
      if (source == kNoSource) return world_.stop("the program asks for the address of an object");
      world_.guards().guard_identity(source, arguments[0]);
      return PyLong_FromVoidPtr(arguments[0]);
    }
    case CFunctionKind::kIter:
      if (count == 1) return iterator(arguments[0]);
      break;
    case CFunctionKind::kLen: {
      PyObject* object = count == 1 ? unproxied(arguments[0]) : nullptr;
      if (!object) break;
      if (PyObject* list = world_.seen_list(object))
        return PyLong_FromSsize_t(PyList_GET_SIZE(list));
      const SourceId source = world_.source_of(object);
      const bool has_items = PyDict_Check(object) || PyList_Check(object) ||
                             PyTuple_Check(object) || PyAnySet_Check(object);
      if (!has_items && source != kNoSource) {
        if (!world_.expose_items(object)) return nullptr;
      } else if (source != kNoSource) {
        if (world_.effects().touches(object) && !world_.expose(object)) return nullptr;
        const Py_ssize_t length = length_in_c(object);
        world_.guards().guard_length(source, length);
      }
      const Py_ssize_t length = PyObject_Length(object);
      if (length < 0 || world_.stopped()) return world_.stopped() ? world_.stop("") : nullptr;
      return PyLong_FromSsize_t(length);
    }
    default:
      break;
  }
  return world_.stop("the program calls a built-in function in an unusual way");
}

}  // namespace backplane::capture
