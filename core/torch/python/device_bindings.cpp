#include "core/torch/python/device_bindings.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <limits>
#include <string>

#include "core/runtime/plugin/plugin.h"
#include "core/runtime/plugin/registry.h"
#include "core/torch/device/counters.h"
#include "core/torch/device/devices.h"
#include "core/torch/device/generator.h"
#include "core/torch/device/operation.h"
#include "core/torch/device/registration.h"

namespace py = pybind11;

namespace backplane::python {

namespace {

// (code, message), or None when all is well.
py::object describe(const Status& status) {
  if (status.ok()) return py::none();
  return py::make_tuple(std::string(code_name(status.code())), status.message());
}

// One beyond what torch can count stays one that there is not.
c10::DeviceIndex index_of(int index) {
  return static_cast<c10::DeviceIndex>(
      std::clamp<int>(index, -1, std::numeric_limits<c10::DeviceIndex>::max()));
}

py::tuple describe(const runtime::Device& device) {
  return py::make_tuple(device.plugin().name(), device.index());
}

py::object add_device(const std::string& plugin_name, int index) {
  Result<c10::DeviceIndex> added = [&]() -> Result<c10::DeviceIndex> {
    const py::gil_scoped_release no_gil;
    BP_ASSIGN_OR_RETURN(runtime::Plugin* const plugin,
                        runtime::Registry::instance().find(plugin_name));
    BP_ASSIGN_OR_RETURN(runtime::Device* const device,
                        plugin->device(static_cast<std::uint32_t>(index)));
    return device::add_device(*device);
  }();
  if (!added.ok()) return describe(added.status());
  return py::int_(static_cast<int>(*added));
}

py::list devices() {
  py::list out;
  for (int i = 0; i < device::device_count(); ++i)
    out.append(describe(device::device_at(static_cast<c10::DeviceIndex>(i)).device()));
  return out;
}

py::dict operator_counts() {
  py::dict fallbacks;
  std::uint64_t total = 0;
  for (const device::FallbackCount& one : device::fallback_counts()) {
    fallbacks[py::str(one.op)] = py::make_tuple(one.count, one.reason);
    total += one.count;
  }
  py::dict out;
  out["plugin_ops"] = device::plugin_op_count();
  out["fallback_ops"] = total;
  out["fallbacks"] = fallbacks;
  return out;
}

}  // namespace

void register_device_bindings(py::module_& module) {
  module.def("register_device", [] { return describe(device::register_device()); });
  module.def("is_device_registered", device::is_registered);
  module.def("add_device", torch::wrap_pybind_function(add_device), py::arg("plugin"),
             py::arg("index"));
  module.def("devices", torch::wrap_pybind_function(devices));
  module.def("device_at", torch::wrap_pybind_function([](int index) {
               return describe(device::device_at(index_of(index)).device());
             }));
  module.def("device_count", device::device_count);
  module.def("in_bad_fork", device::in_bad_fork);
  module.def("check_process", torch::wrap_pybind_function(device::check_process));
  module.def("current_device", [] { return static_cast<int>(device::current_device()); });
  module.def("exchange_device", torch::wrap_pybind_function([](int index) {
               if (index >= 0) device::device_at(index_of(index));
               return static_cast<int>(device::exchange_device(index_of(index)));
             }));
  module.def("default_generator", torch::wrap_pybind_function([](int index) {
               return device::default_generator(index_of(index));
             }));
  module.def("operator_counts", operator_counts);
  module.def("operation_count", device::operation_count);
  module.def("reset_operator_counts", device::reset_op_counts);
}

}  // namespace backplane::python
