// Numbers by which CPython tells that a dict or a class is as it was.
#pragma once

#include <Python.h>
//
#include <cstdint>

namespace backplane::guards {

// Never given twice, to no other dict either. 0: not known.
inline std::uint64_t version_of_dict(PyObject* dict) {
#if PY_VERSION_HEX < 0x030C0000
  return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#else
  (void)dict;
  return 0;
#endif
}

// 0: the class has none now.
inline unsigned int version_of_class(PyTypeObject* type) {
  return PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0;
}

// A class whose instances cannot be given another. A module can.
inline bool keeps_its_instances(PyTypeObject* type) {
  return !PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && type != &PyModule_Type;
}

}  // namespace backplane::guards
