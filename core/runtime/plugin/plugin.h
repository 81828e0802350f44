// A loaded plugin library: checked before loading, negotiated, validated, never unloaded.
#pragma once

#include <backplane/plugin.h>
#include <sys/types.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace backplane::runtime {

class Device;

// What the ELF note says; readable without loading the library.
struct PluginNote {
  std::string name, vendor, version;
  std::uint32_t abi_min = 0, abi_max = 0;
  std::uint32_t sanitizer = 0;
};

// Reads headers, segments, note, exports and needed libraries of the file with bounds checks; runs
// no code of it. The error says which rule failed, what was found and what to do next.
Result<PluginNote> preflight(const std::string& path);

class Plugin {
 public:
  // `path` is absolute. Preflight, load (RTLD_NOW | RTLD_LOCAL), negotiate, validate the table.
  // Nothing of a refused file runs before the check that refuses it. `expected_sha256`, where
  // given, is the only content that is taken.
  static Result<std::unique_ptr<Plugin>> load(const std::string& path,
                                              std::string_view expected_sha256 = {});
  // Closes the devices and calls shutdown; the library stays mapped. Does nothing in a forked
  // child.
  ~Plugin();
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  const std::string& name() const { return note_.name; }
  const PluginNote& note() const { return note_; }
  const std::string& path() const { return path_; }
  std::uint32_t abi_version() const { return abi_version_; }
  const bp_plugin_api& api() const { return api_; }  // a zero-filled copy of the plugin's table
  bp_plugin* handle() const { return handle_; }
  // Its library is in a worker process (isolate/isolation.h), and with it the table's entries.
  bool is_isolated() const { return is_isolated_; }
  // Content hash of the file, hex; names the library in caches and certificates.
  const std::string& sha256() const { return sha256_; }

  std::uint32_t device_count() const;
  // Opens the device at its first use; the Plugin owns it. In a forked child that did not open it
  // itself the answer is an error, never a hang.
  Result<Device*> device(std::uint32_t index);
  bool has_open(const bp_device* handle) const;
  // Whether this is a child of fork() whose parent loaded it.
  bool is_of_parent() const;
  // Whether an object of one of its devices is alive.
  bool is_used();

 private:
  Plugin() = default;
  Status load_isolated();
  PluginNote note_;
  std::string path_, sha256_;
  std::uint32_t abi_version_ = 0;
  bp_plugin_api api_{};
  bp_plugin* handle_ = nullptr;
  bool is_isolated_ = false;
  pid_t process_ = 0;         // the one that loaded it
  mutable std::mutex mutex_;  // guards what follows; never held over a plugin call
  std::condition_variable opened_;
  std::vector<std::unique_ptr<Device>> devices_;  // by index, null before the first use
  std::vector<bool> opening_;                     // by index: some thread is in device_open
};

}  // namespace backplane::runtime
