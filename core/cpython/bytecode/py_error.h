// The exception that a thread has set. Everything here needs the GIL.
#pragma once

#include "core/cpython/bytecode/py_ref.h"

namespace backplane::cpython {

// One that is set, or none, apart for a while.
class SavedError {
 public:
  SavedError() { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~SavedError() { PyErr_Restore(type_, value_, traceback_); }
  SavedError(const SavedError&) = delete;
  SavedError& operator=(const SavedError&) = delete;

 private:
  PyObject *type_ = nullptr, *value_ = nullptr, *traceback_ = nullptr;
};

// The one that is set, as an object with its traceback; none is set then.
inline Ref take_exception() {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  PyException_SetTraceback(value, traceback ? traceback : Py_None);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return Ref::steal(value);
}

inline void set_exception(const Ref& exception) {
  PyObject* value = exception.get();
  PyErr_Restore(Py_NewRef(Py_TYPE(value)), Py_NewRef(value), PyException_GetTraceback(value));
}

}  // namespace backplane::cpython
