#include "core/torch/bridge/errors.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <string>

#include "core/runtime/host/error.h"
#include "core/runtime/host/language.h"

namespace py = pybind11;

namespace backplane::bridge {

namespace {

// Of this thread's own state, which no other one writes to: without the GIL.
bool has_error() {
  const PyThreadState* const state = PyGILState_GetThisThreadState();
  if (state == nullptr) return false;
#if PY_VERSION_HEX >= 0x030C0000
  return state->current_exception != nullptr;
#else
  return state->curexc_type != nullptr;
#endif
}

// Runs no code of Python: a signal's handler would raise into it.
std::string take_error() {
  const py::gil_scoped_acquire gil;
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  std::string text =
      type != nullptr && PyType_Check(type) ? reinterpret_cast<PyTypeObject*>(type)->tp_name : "?";
  PyObject* said = value;
  if (value != nullptr && PyExceptionInstance_Check(value)) {
    PyObject* const arguments = reinterpret_cast<PyBaseExceptionObject*>(value)->args;
    said = arguments != nullptr && PyTuple_GET_SIZE(arguments) != 0 ? PyTuple_GET_ITEM(arguments, 0)
                                                                    : nullptr;
  }
  Py_ssize_t size = 0;
  const char* const data =
      said != nullptr && PyUnicode_Check(said) ? PyUnicode_AsUTF8AndSize(said, &size) : nullptr;
  if (data != nullptr)
    text += ": " + runtime::copy_text({data, static_cast<std::size_t>(size)}, 512);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  PyErr_Clear();
  return text;
}

bool is_ending() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0 || Py_IsInitialized() == 0;
#else
  return _Py_IsFinalizing() != 0 || Py_IsInitialized() == 0;
#endif
}

constexpr runtime::LanguageHooks kHooks{has_error, take_error, is_ending};

}  // namespace

void watch_errors_of_plugins() { runtime::set_language_hooks(&kHooks); }

void set_error(std::string_view code, const Status& status) {
  const bool is_full = status.code() == Code::kOutOfMemory;
  if (is_full) code = "BP-0115";
  std::string text = status.message();
  if (status.code() != Code::kCancelled) text += " (" + std::string(code_name(status.code())) + ")";
  try {
    const py::object kind = py::module_::import("torch_backplane.errors")
                                .attr(is_full                ? "BackplaneOutOfMemoryError"
                                      : refuses_data(status) ? "BackplaneDataError"
                                      : lost_device(status)  ? "BackplaneDeviceLostError"
                                                             : "BackplaneError");
    const py::object error = kind(py::str(code.data(), code.size()), py::str(text));
    PyErr_SetObject(kind.ptr(), error.ptr());
  } catch (py::error_already_set& failed) {
    failed.restore();
  }
}

bool is_raised(const Status& status) {
  return status.code() == Code::kCancelled && PyErr_Occurred() != nullptr;
}

void raise_error(std::string_view code, const Status& status) {
  const py::gil_scoped_acquire gil;
  // What the program was interrupted by is raised as it is.
  if (!is_raised(status)) set_error(code, status);
  python_error raised;
  raised.persist();
  throw raised;
}

bool is_backplane_error() {
  PyObject* const module = PyDict_GetItemString(PyImport_GetModuleDict(), "torch_backplane.errors");
  PyObject* const type = module && PyModule_Check(module)
                             ? PyDict_GetItemString(PyModule_GetDict(module), "BackplaneError")
                             : nullptr;
  return type && PyErr_ExceptionMatches(type);
}

PyObject* checked(PyObject* result) {
  if (!result) throw python_error();
  return result;
}

}  // namespace backplane::bridge
