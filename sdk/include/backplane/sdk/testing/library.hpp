// A plugin loaded from its file, as a host does it.
#pragma once

#include <dlfcn.h>
#include <backplane/sdk/testing/session.hpp>

#include <string>

namespace backplane::sdk::testing {

// Stays loaded: threads of a vendor's runtime may live in it.
inline Negotiate load_plugin(const std::string& path) {
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Failure("cannot load the plugin: " + std::string(::dlerror()));
  void* symbol = ::dlsym(library, BP_ENTRY_NAME);
  if (symbol == nullptr) throw Failure(path + " has no symbol " BP_ENTRY_NAME);
  return reinterpret_cast<Negotiate>(symbol);
}

}  // namespace backplane::sdk::testing
