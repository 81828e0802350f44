#include "kernels/simd/vector_library.h"

#include <dlfcn.h>

namespace backplane::onednn {

void* vector_library_symbol(const char* name) {
  static void* const library = dlopen("libmvec.so.1", RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : dlsym(library, name);
}

}  // namespace backplane::onednn
