// Loads a checked library for the rest of the process: threads and exit handlers of a vendor's
// runtime may outlive any unloading, so nothing is ever closed. docs/design/loading.md has why.
#pragma once

#include <backplane/plugin.h>

#include <string>

#include "core/base/status.h"
#include "core/runtime/plugin/library_facts.h"

namespace backplane::runtime {

// A loaded library and the one function that is called by name.
struct Library {
  void* handle = nullptr;  // dlopen's
  void (*negotiate)(bp_negotiation*) = nullptr;
};

// By its path, as any program would; afterwards the loaded file is `file`, with that hash, or the
// answer is an error. Code of another file may have run by then. Messages complete "PLUGIN was
// refused: ".
Result<Library> load_by_path(const LibraryFile& file, const std::string& sha256);

// A sealed copy of what has that hash, and nothing else: for policies that let hashes decide. What
// it needs from beside itself ($ORIGIN) is loaded by path before.
Result<Library> load_sealed(const LibraryFile& file, const LibraryFacts& facts,
                            const std::string& sha256);

}  // namespace backplane::runtime
