#pragma once

#include <pybind11/pybind11.h>

namespace backplane::python {

// plugin_entries, plugin_info, load_policy, quarantined and their kin of torch_backplane._C.
void register_plugins(pybind11::module_& m);

}  // namespace backplane::python
