// Our own front end for Python: capture, entries, what ran as plain Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace backplane::python {

void register_frontend(pybind11::module_& module);

}  // namespace backplane::python
