#pragma once

#include <pybind11/pybind11.h>

namespace backplane::python {

// The torch device: _C.register_device and what the module torch.backplane is made of.
void register_device_bindings(pybind11::module_& module);

}  // namespace backplane::python
