#include "driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace plugin {
namespace {

void* open(const char* variable, const char* usual) {
  const char* const own = std::getenv(variable);
  if (void* library = ::dlopen(own != nullptr ? own : usual, RTLD_NOW | RTLD_LOCAL)) return library;
  throw std::runtime_error("no device: " + std::string(::dlerror()) + " (" + variable +
                           " can name another place)");
}
void* entry(void* library, const char* name) {
  if (void* found = ::dlsym(library, name)) return found;
  throw std::runtime_error("no device: the library is too old, it has no " + std::string(name));
}

}  // namespace

#define PLUGIN_ENTRY(name, ...) \
  made.name = reinterpret_cast<Function<__VA_ARGS__>>(entry(library, #name));

const Driver& driver() {
  static const Driver opened = [] {
    void* const library = open("@NAME@_DRIVER", "libcuda.so.1");
    Driver made;
    PLUGIN_DRIVER(PLUGIN_ENTRY)
    return made;
  }();
  return opened;
}

const Compiler& compiler() {
  static const Compiler opened = [] {
    void* const library = open("@NAME@_COMPILER", "libnvrtc.so");
    Compiler made;
    PLUGIN_COMPILER(PLUGIN_ENTRY)
    return made;
  }();
  return opened;
}

}  // namespace plugin
