#include "core/torch/guards/same_value.h"

#include <torch/csrc/Device.h>

#include <cstring>

#include "core/cpython/bytecode/py_ref.h"

namespace backplane::guards {

namespace {

bool same_float(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// Ranges of the same numbers are equal, and yet have other ends.
bool same_ends(PyObject* a, PyObject* b) {
  for (const char* name : {"start", "stop", "step"}) {
    const cpython::Ref x = cpython::Ref::steal(PyObject_GetAttrString(a, name)),
                       y = cpython::Ref::steal(PyObject_GetAttrString(b, name));
    const int equal = x && y ? PyObject_RichCompareBool(x.get(), y.get(), Py_EQ) : -1;
    if (equal < 0) PyErr_Clear();
    if (equal != 1) return false;
  }
  return true;
}

bool compares_in_c(PyObject* object) {
  return PyLong_CheckExact(object) || PyUnicode_CheckExact(object) || PyBytes_CheckExact(object) ||
         THPDevice_Check(object);
}

}  // namespace

bool same_value(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyFloat_CheckExact(a)) return same_float(PyFloat_AS_DOUBLE(a), PyFloat_AS_DOUBLE(b));
  if (PyComplex_CheckExact(a)) {
    const Py_complex x = PyComplex_AsCComplex(a), y = PyComplex_AsCComplex(b);
    return same_float(x.real, y.real) && same_float(x.imag, y.imag);
  }
  if (PyRange_Check(a)) return same_ends(a, b);
  if (!compares_in_c(a)) return false;
  const int equal = PyObject_RichCompareBool(a, b, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

bool same_items(PyObject* a, PyObject* b) {
  const Py_ssize_t count = PyTuple_GET_SIZE(a);
  if (count != PyTuple_GET_SIZE(b)) return false;
  for (Py_ssize_t i = 0; i < count; ++i)
    if (!same_value(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
  return true;
}

}  // namespace backplane::guards
