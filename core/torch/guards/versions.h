// Numbers by which CPython tells that a dict or a class is as it was.
#pragma once

#include <Python.h>
//
#include <cstdint>

namespace backplane::guards {

// Never given twice, to no other dict either. Deprecated in 3.12, where dicts still have it.
inline const std::uint64_t* address_of_version(PyObject* dict) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return &reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#pragma GCC diagnostic pop
}
inline std::uint64_t version_of_dict(PyObject* dict) { return *address_of_version(dict); }

// 0: the class has none now.
inline unsigned int version_of_class(PyTypeObject* type) {
  return PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0;
}

// A class whose instances cannot be given another. A module can.
inline bool keeps_its_instances(PyTypeObject* type) {
  return !PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && type != &PyModule_Type;
}

}  // namespace backplane::guards
