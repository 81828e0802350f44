#pragma once

#include <pybind11/pybind11.h>

namespace backplane::python {

// _C.record, _C.record_fx and the class Recording.
void register_record(pybind11::module_& module);

}  // namespace backplane::python
