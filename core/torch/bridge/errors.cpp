#include "core/torch/bridge/errors.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <string>

namespace py = pybind11;

namespace backplane::bridge {

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

void raise_error(std::string_view code, const Status& status) {
  const py::gil_scoped_acquire gil;
  // What the program was interrupted by is raised as it is.
  if (status.code() != Code::kCancelled || PyErr_Occurred() == nullptr) set_error(code, status);
  python_error raised;
  raised.persist();
  throw raised;
}

PyObject* checked(PyObject* result) {
  if (!result) throw python_error();
  return result;
}

}  // namespace backplane::bridge
