#include "tools/plugin_device.h"

#include <charconv>
#include <filesystem>

#include "core/runtime/plugin/plugin.h"
#include "core/runtime/plugin/registry.h"

namespace backplane::tools {

Result<runtime::Device*> open_device(std::string_view name,
                                     const std::vector<std::string>& folders) {
  runtime::Registry& registry = runtime::Registry::instance();
  for (const std::string& folder : folders) {
    std::error_code error;
    const std::string absolute = std::filesystem::absolute(folder, error).string();
    BP_RETURN_IF_ERROR(registry.add_path(error ? folder : absolute, "command line"));
  }
  const std::size_t colon = name.find(':');
  std::uint32_t index = 0;
  if (colon != std::string_view::npos) {
    const std::string_view digits = name.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (error != std::errc() || end != digits.data() + digits.size())
      return Status(Code::kInvalidArgument,
                    "\"" + std::string(name) + "\": want NAME or NAME:INDEX.");
  }
  BP_ASSIGN_OR_RETURN(runtime::Plugin * plugin, registry.find(name.substr(0, colon)));
  return plugin->device(index);
}

}  // namespace backplane::tools
