// What people read about a compiled function: the log's topics, and files in a folder of its own
// with one in that for each entry.
#pragma once

#include <Python.h>
//
#include <filesystem>
#include <span>
#include <string>

#include "core/torch/entry/entry.h"

namespace backplane::call {

class Dump {
 public:
  Dump() = default;  // writes nothing
  // `folder`, empty for nothing, exists; `function` is the compiled function's name.
  Dump(const std::string& folder, const std::string& function);

  // guards.txt, graph.txt, graph.ir, original.txt, modified.txt and break.txt of an entry. Codes
  // may be null.
  void write_entry(const std::string& name, const Entry& entry, PyObject* original,
                   PyObject* modified, const std::string& break_reason);
  // Logs `text` under `topic`, breaks or recompiles, and appends it to that topic's file.
  void note(const char* topic, const std::string& text);
  // Notes why none of `entries`, the latest first, serves a call; nothing where there is none.
  void note_recompile(const std::string& name, std::span<const Entry* const> entries,
                      const guards::CallArguments& call);

 private:
  bool is_on() const { return !folder_.empty(); }
  void write(const std::filesystem::path& path, const std::string& text, bool appends = false);

  std::filesystem::path folder_;
};

// Under the topics graph and guards.
void log_graph(const std::string& name, const Entry& entry);
void log_guards(const std::string& name, const Entry& entry);

}  // namespace backplane::call
