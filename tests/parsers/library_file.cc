// Any file: refused with a reason, or read within its bounds.
#include <cstdlib>

#include "core/runtime/plugin/library_facts.h"
#include "core/runtime/plugin/plugin.h"
#include "tests/parsers/fuzz_target.h"
#include "tests/parsers/memory_file.h"

BACKPLANE_FUZZ_TARGET(library_file) {
  using namespace backplane::runtime;  // NOLINT(google-build-using-namespace)
  const backplane::parsers::MemoryFile file(data, size);
  const auto note = preflight(file.path());
  if (!note.ok() && note.status().message().empty()) std::abort();
  (void)read_library(file.path()).ok();
  return 0;
}
