// An interpreter inside of a test program.
#pragma once

#include <gtest/gtest.h>

#include "core/cpython/bytecode/py_ref.h"

#ifdef __SANITIZE_ADDRESS__
// The interpreter keeps what it has at exit.
extern "C" inline const char* __asan_default_options() { return "detect_leaks=0"; }  // NOLINT
#endif

namespace backplane::cpython {

// Tests derive from it: an interpreter lives, and the test's thread holds the GIL.
class WithPython : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (Py_IsInitialized()) return;
    PyConfig config;
    PyConfig_InitIsolatedConfig(&config);
    PyConfig_SetBytesString(&config, &config.home, BACKPLANE_PYTHON_HOME);
    const PyStatus status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status)) GTEST_FAIL() << status.err_msg;
  }

  // The namespace after running source text; prints the error and gives null where that fails.
  static Ref run(const char* source) {
    Ref names = Ref::steal(PyDict_New());
    PyDict_SetItemString(names.get(), "__builtins__", PyEval_GetBuiltins());
    const Ref result = Ref::steal(PyRun_String(source, Py_file_input, names.get(), names.get()));
    if (result) return names;
    PyErr_Print();
    return {};
  }
  // Borrowed.
  static PyObject* get(const Ref& names, const char* name) {
    return PyDict_GetItemString(names.get(), name);
  }
};

}  // namespace backplane::cpython
