#include "core/runtime/isolate/isolation.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <set>
#include <utility>

#include "core/base/fork.h"

namespace backplane::runtime {

namespace {
struct Asked {
  std::mutex& mutex = fork_mutex();
  std::set<std::string, std::less<>> names;
};
Asked& asked() {
  static Asked* const made = new Asked;
  return *made;
}
}  // namespace

void ask_for_isolation(std::string plugin) {
  const std::lock_guard lock(asked().mutex);
  asked().names.insert(std::move(plugin));
}

bool is_isolation_asked(std::string_view plugin) {
  const char* const text = std::getenv("BACKPLANE_ISOLATION");
  std::string_view left = text != nullptr ? text : "";
  if (left == "process") return true;
  while (!left.empty()) {
    const std::string_view name = left.substr(0, left.find(','));
    if (name == plugin) return true;
    left.remove_prefix(std::min(left.size(), name.size() + 1));
  }
  const std::lock_guard lock(asked().mutex);
  return asked().names.contains(plugin);
}

}  // namespace backplane::runtime
