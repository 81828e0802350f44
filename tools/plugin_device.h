// Devices by the names that users write.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/plugin/device.h"

namespace backplane::tools {

// "NAME" or "NAME:INDEX", among the plugins of `folders` and those that the registry finds itself.
Result<runtime::Device*> open_device(std::string_view name,
                                     const std::vector<std::string>& folders);

}  // namespace backplane::tools
