// Whether two objects are of one type and one value, asked without running code of the program.
#pragma once

#include <Python.h>

namespace backplane::guards {

// NaN equals itself, -0.0 is not 0.0. False for objects whose comparison might run such code, but
// for one and the same.
bool same_value(PyObject* a, PyObject* b);

// Of two tuples, item by item.
bool same_items(PyObject* a, PyObject* b);

}  // namespace backplane::guards
