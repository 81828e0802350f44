// The dict behind a class, for reading.
#pragma once

#include "core/cpython/bytecode/py_ref.h"

namespace backplane::cpython {

// Borrowed from the class. From 3.12 on, `tp_dict` of a class that C defines may be null.
inline PyObject* dict_of_class(PyTypeObject* type) {
#if PY_VERSION_HEX < 0x030C0000
  return type->tp_dict;
#else
  return Ref::steal(PyType_GetDict(type)).get();
#endif
}

}  // namespace backplane::cpython
