#pragma once

#include <pybind11/pybind11.h>

namespace backplane::python {

// _C.measure_memory: what a step of a program allocates, over time.
void register_memory(pybind11::module_& module);

}  // namespace backplane::python
