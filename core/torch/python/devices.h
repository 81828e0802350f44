// What the binding files share: Status as exception, devices by name.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/plan/compiled_graph.h"
#include "core/runtime/plugin/device.h"

namespace backplane::python {

// torch_backplane._C.StatusError(code, message).
[[noreturn]] void raise(const Status& status);

template <class T>
T unwrap(Result<T> result) {
  if (!result.ok()) raise(result.status());
  return std::move(*result);
}

std::vector<runtime::Device*> find_devices(const std::vector<std::pair<std::string, int>>& names);

runtime::Role role_of(const std::string& role);

}  // namespace backplane::python
