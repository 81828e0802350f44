#include "core/torch/python/devices.h"

#include "core/runtime/plugin/plugin.h"
#include "core/runtime/plugin/registry.h"

namespace py = pybind11;

namespace backplane::python {

void raise(const Status& status) {
  const py::object type = py::module_::import("torch_backplane._C").attr("StatusError");
  const py::object error =
      type(py::str(std::string(code_name(status.code()))), py::str(status.message()));
  PyErr_SetObject(type.ptr(), error.ptr());
  throw py::error_already_set();
}

std::vector<runtime::Device*> find_devices(const std::vector<std::pair<std::string, int>>& names) {
  std::vector<runtime::Device*> devices;
  for (const auto& [name, index] : names) {
    runtime::Plugin* plugin = unwrap(runtime::Registry::instance().find(name));
    devices.push_back(unwrap(plugin->device(static_cast<std::uint32_t>(index))));
  }
  return devices;
}

runtime::Role role_of(const std::string& role) {
  if (role == "forward") return runtime::Role::kForward;
  if (role == "backward") return runtime::Role::kBackward;
  return runtime::Role::kInference;
}

}  // namespace backplane::python
