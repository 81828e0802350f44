#include "core/runtime/isolate/isolation.h"

#include <algorithm>
#include <cstdlib>

namespace backplane::runtime {

bool is_isolation_asked(std::string_view plugin) {
  const char* const text = std::getenv("BACKPLANE_ISOLATION");
  std::string_view left = text != nullptr ? text : "";
  if (left == "process") return true;
  while (!left.empty()) {
    const std::string_view name = left.substr(0, left.find(','));
    if (name == plugin) return true;
    left.remove_prefix(std::min(left.size(), name.size() + 1));
  }
  return false;
}

}  // namespace backplane::runtime
