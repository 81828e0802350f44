// Which plugins there are, found without loading code, loaded at first use.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/plugin/plugin.h"

namespace backplane::runtime {

// A candidate and, once tried, what became of it.
struct PluginEntry {
  std::string name;  // from the note; the file's stem where the note cannot be read
  std::string path;
  std::string origin;  // the rule that found it: "package", "user directory", "explicit path", ...
  std::string error;   // why it was refused; empty while it is fine
  bool loaded = false;
};

// Process-wide. Thread-safe. One broken plugin never hides another.
class Registry {
 public:
  // Never destroyed. It also knows the directories of $BACKPLANE_PLUGIN_PATH (before all others)
  // and, after everything that add_path brought before the first question, the user directory
  // ~/.local/share/backplane/plugins and the system directory /usr/lib/backplane/plugins. A
  // privileged process (AT_SECURE) has the system directory only.
  static Registry& instance();
  Registry();  // empty, searches nothing by itself
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // Adds a file or all `libbackplane_*.so` of a directory. Absolute paths only; the current
  // directory and library path variables are never searched. Later additions of a known name lose.
  // A directory answers with an error only when it cannot be read: its broken files become entries.
  Status add_path(const std::string& path, std::string_view origin);
  // The plugin of that name, loaded and validated; each is loaded once. An unknown name lists what
  // there is, with the nearest name as suggestion; a refused one says why, again at each call.
  Result<Plugin*> find(std::string_view name);
  std::vector<PluginEntry> entries();
  // Closes the devices of plugins of which no object is alive, and shuts those down, last loaded
  // first; the others stay until the process has ended. Afterwards find answers with an error for
  // all but those.
  void shutdown();
  bool is_shut_down();

 private:
  struct State;
  void search_directories();
  std::unique_ptr<State> state_;
};

}  // namespace backplane::runtime
