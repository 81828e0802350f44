// What a plugin's ELF file says about itself beyond what refuses it; read without loading it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/plugin/library_file.h"
#include "core/runtime/plugin/plugin.h"

namespace backplane::runtime {

struct LibraryFacts {
  PluginNote note;
  std::vector<std::string> needed;     // DT_NEEDED
  std::vector<std::string> run_paths;  // parts of DT_RUNPATH and DT_RPATH
  std::vector<std::string> exports;    // defined, visible to other libraries
  std::vector<std::string> unique;     // of them STB_GNU_UNIQUE: they outlive dlclose
  std::string soname;
  bool has_rpath = false;      // the old form, which comes before LD_LIBRARY_PATH
  bool binds_at_load = false;  // -z now
  bool has_relro = false;
  bool has_build_id = false;
  bool interposes = false;  // DF_1_INTERPOSE or DF_1_GLOBAL
  std::uint64_t tls_bytes = 0;
  bool static_tls = false;  // takes of the block that is shared by all libraries
};

// The file of an absolute path; here messages are whole sentences.
Result<LibraryFile> open_library_file(const std::string& path);
// Every rule of preflight() holds first.
Result<LibraryFacts> read_library(const LibraryFile& file);
Result<LibraryFacts> read_library(const std::string& path);

}  // namespace backplane::runtime
