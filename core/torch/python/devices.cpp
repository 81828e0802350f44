#include "core/torch/python/devices.h"

#include "core/runtime/plugin/plugin.h"
#include "core/runtime/plugin/registry.h"
#include "core/torch/bridge/errors.h"

namespace py = pybind11;

namespace backplane::python {

void raise(const Status& status) {
  // What the program was interrupted by is raised as it is.
  if (bridge::is_raised(status)) throw py::error_already_set();
  const py::object type = py::module_::import("torch_backplane._C").attr("StatusError");
  const py::object error =
      type(py::str(std::string(code_name(status.code()))), py::str(status.message()));
  PyErr_SetObject(type.ptr(), error.ptr());
  throw py::error_already_set();
}

namespace {
Result<runtime::Device*> device_named(const std::string& name, std::uint32_t index) {
  BP_ASSIGN_OR_RETURN(runtime::Plugin* const plugin, runtime::Registry::instance().find(name));
  return plugin->device(index);
}
}  // namespace

std::vector<runtime::Device*> find_devices(const std::vector<std::pair<std::string, int>>& names) {
  std::vector<runtime::Device*> devices;
  for (const auto& [name, index] : names) {
    Result<runtime::Device*> device = [&, &name = name, index = index]() {
      const py::gil_scoped_release no_gil;  // a library that loads may take long
      return device_named(name, static_cast<std::uint32_t>(index));
    }();
    devices.push_back(unwrap(std::move(device)));
  }
  return devices;
}

runtime::Role role_of(const std::string& role) {
  if (role == "forward") return runtime::Role::kForward;
  if (role == "backward") return runtime::Role::kBackward;
  return runtime::Role::kInference;
}

}  // namespace backplane::python
