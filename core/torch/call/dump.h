// Readable files about a compiled function: a folder for it, and one in that for each entry.
#pragma once

#include <Python.h>
//
#include <filesystem>
#include <string>

#include "core/torch/call/entry.h"

namespace backplane::call {

class Dump {
 public:
  Dump() = default;  // writes nothing
  // `folder`, empty for nothing, exists; `function` is the compiled function's name.
  Dump(const std::string& folder, const std::string& function);

  bool is_on() const { return !folder_.empty(); }
  // guards.txt, graph.txt, graph.ir, original.txt, modified.txt and break.txt of an entry. Codes
  // may be null.
  void write_entry(const std::string& name, const Entry& entry, PyObject* original,
                   PyObject* modified, const std::string& break_reason);
  // Appends to breaks.txt or recompiles.txt of the function.
  void note(const char* file, const std::string& text);

 private:
  void write(const std::filesystem::path& path, const std::string& text, bool appends = false);

  std::filesystem::path folder_;
};

}  // namespace backplane::call
