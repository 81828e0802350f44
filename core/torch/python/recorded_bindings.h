// RecordedFunction for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace backplane::python {

void register_recorded(pybind11::module_& module);

}  // namespace backplane::python
