#include "core/runtime/plugin/plugin.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "core/base/log.h"
#include "core/runtime/host/error.h"
#include "core/runtime/host/host_services.h"
#include "core/runtime/host/process_state.h"
#include "core/runtime/isolate/isolated_plugin.h"
#include "core/runtime/isolate/isolation.h"
#include "core/runtime/plugin/device.h"
#include "core/runtime/plugin/library_facts.h"
#include "core/runtime/plugin/library_load.h"
#include "core/runtime/plugin/load_policy.h"
#include "core/runtime/plugin/plugin_call.h"
#include "core/runtime/plugin/plugin_table.h"
#include "core/runtime/watch/call_board.h"
#include "core/runtime/watch/crash_words.h"
#include "core/runtime/watch/patience.h"
#include "core/runtime/watch/quarantine.h"

namespace backplane::runtime {

namespace {

// What this host speaks. Before 1.0 a minor may break; 0.3 only added to 0.2.
constexpr std::uint32_t kHostMin = BP_VERSION(0, 2);
constexpr std::uint32_t kHostMax = BP_ABI_VERSION;

constexpr std::uint32_t kDeviceLimit = 1024;

#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint32_t kHostSanitizer = BP_SANITIZER_ADDRESS;
#elif defined(__SANITIZE_THREAD__)
constexpr std::uint32_t kHostSanitizer = BP_SANITIZER_THREAD;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr std::uint32_t kHostSanitizer = BP_SANITIZER_ADDRESS;
#elif __has_feature(thread_sanitizer)
constexpr std::uint32_t kHostSanitizer = BP_SANITIZER_THREAD;
#else
constexpr std::uint32_t kHostSanitizer = BP_SANITIZER_NONE;
#endif
#else
constexpr std::uint32_t kHostSanitizer = BP_SANITIZER_NONE;
#endif

std::string sanitizer_name(std::uint32_t kind) {
  switch (kind) {
    case BP_SANITIZER_NONE:
      return "none";
    case BP_SANITIZER_ADDRESS:
      return "address";
    case BP_SANITIZER_THREAD:
      return "thread";
    default:
      return "unknown kind " + std::to_string(kind);
  }
}

std::string who(const PluginNote& note, const std::string& path) {
  return "Plugin '" + note.name + "' (" + path + ")";
}

Status refuse(const PluginNote& note, const std::string& path, Code code, std::string_view text) {
  return {code, who(note, path) + " was refused: " + std::string(text) + "."};
}

// Why ranges do not meet, and who has to move.
std::string ranges_text(std::uint32_t plugin_min, std::uint32_t plugin_max) {
  const bool plugin_newer = plugin_min > kHostMax;
  return "it speaks plugin ABI " + version_range_text(plugin_min, plugin_max) +
         ", this host speaks " + version_range_text(kHostMin, kHostMax) +
         (plugin_newer ? "; update the host (pip install -U torch-backplane)"
                       : "; get a newer build of the plugin, or build it against this release's "
                         "headers");
}

// What the note alone decides, before any code of the library runs.
Status check_note(const PluginNote& note, const std::string& path) {
  if (note.abi_min > kHostMax || note.abi_max < kHostMin) {
    return refuse(note, path, Code::kVersionMismatch, ranges_text(note.abi_min, note.abi_max));
  }
  // A plain plugin works in a sanitized host; the other way round the sanitizer ends the process.
  if (note.sanitizer != BP_SANITIZER_NONE && note.sanitizer != kHostSanitizer) {
    return refuse(note, path, Code::kInvalidArgument,
                  "it is built with sanitizer '" + sanitizer_name(note.sanitizer) +
                      "', this host with '" + sanitizer_name(kHostSanitizer) +
                      "'; build both alike");
  }
  return {};
}

// Calls the entry. The plugin promises not to throw; this is the second line of defence.
Status call_negotiate(const Library& library, bp_negotiation& negotiation, const PluginNote& note,
                      const std::string& path) {
  const CallScope scope(note.name, "negotiate");
  try {
    library.negotiate(&negotiation);
    return {};
  } catch (const std::exception& exception) {
    return refuse(note, path, Code::kInternal,
                  "its negotiation threw an exception (" + what_text(exception.what()) +
                      "); no exception may cross the plugin's boundary");
  } catch (...) {
    return refuse(note, path, Code::kInternal,
                  "its negotiation threw an exception of unknown type; no exception may cross the "
                  "plugin's boundary");
  }
}

Status check_answer(const bp_negotiation& answer, const PluginNote& note, const std::string& path) {
  const std::string said =
      copy_text({answer.message, ::strnlen(answer.message, sizeof(answer.message) - 1)});
  const std::string quote = said.empty() ? "" : "; it says: " + said;
  if (answer.result == BP_NEGOTIATE_VERSION) {
    return refuse(note, path, Code::kVersionMismatch,
                  ranges_text(answer.plugin_min, answer.plugin_max) + quote);
  }
  if (answer.result != BP_NEGOTIATE_OK) {
    return refuse(note, path, Code::kInternal, "its negotiation failed" + quote);
  }
  if (answer.plugin_min != note.abi_min || answer.plugin_max != note.abi_max) {
    return refuse(note, path, Code::kVersionMismatch,
                  "its note says ABI " + version_range_text(note.abi_min, note.abi_max) +
                      ", its negotiation " +
                      version_range_text(answer.plugin_min, answer.plugin_max) +
                      "; state the same range in both");
  }
  const std::uint32_t expected = std::min(kHostMax, answer.plugin_max);
  if (answer.chosen != expected) {
    return refuse(note, path, Code::kVersionMismatch,
                  "its negotiation chose ABI " + version_text(answer.chosen) + ", expected " +
                      version_text(expected) + " (plugin " +
                      version_range_text(answer.plugin_min, answer.plugin_max) + ", host " +
                      version_range_text(kHostMin, kHostMax) + ")");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Plugin>> Plugin::load(const std::string& path,
                                             std::string_view expected_sha256) {
  read_earlier_crashes();
  BP_ASSIGN_OR_RETURN(const LibraryFile file, open_library_file(path));
  BP_ASSIGN_OR_RETURN(const LibraryFacts facts, read_library(file));
  const PluginNote& note = facts.note;
  BP_RETURN_IF_ERROR(check_note(note, path));
  const Result<std::string> hash = file.sha256();
  if (!hash.ok()) return refuse(note, path, hash.status().code(), hash.status().message());
  const std::string& sha256 = *hash;
  if (!expected_sha256.empty() && sha256 != expected_sha256)
    return refuse(note, path, Code::kInvalidArgument,
                  "the file changed since it was first loaded; start again");
  BP_ASSIGN_OR_RETURN(const LoadPolicy policy, read_load_policy());
  if (const Status allowed = check_load(policy, path, sha256, today()); !allowed.ok())
    return refuse(note, path, allowed.code(), allowed.message());
  std::unique_ptr<Plugin> plugin(new Plugin);
  plugin->note_ = note;
  plugin->path_ = path;
  plugin->sha256_ = sha256;
  if (is_isolation_asked(note.name)) {  // one that ended a process may come: it ends its own
    BP_RETURN_IF_ERROR(plugin->load_isolated());
    return plugin;
  }
  if (const Status calm = check_quarantine(sha256); !calm.ok())
    return refuse(note, path, calm.code(), calm.message());

  note_plugin(note.name, sha256);
  install_crash_words();
  start_patience();
  bp_negotiation negotiation{};
  negotiation.magic = BP_NEGOTIATE_MAGIC;
  negotiation.host_min = kHostMin;
  negotiation.host_max = kHostMax;
  negotiation.host = make_host_api(note.name, note.version, sha256);
  Library library;
  {
    const ProcessStateGuard guard("loading " + who(note, path));
    {
      const CallScope scope(note.name, "load");
      Result<Library> loaded =
          policy.asks_for_hashes() ? load_sealed(file, facts, sha256) : load_by_path(file, sha256);
      if (!loaded.ok())
        return refuse(note, path, loaded.status().code(), loaded.status().message());
      library = *loaded;
    }
    for (const LibraryMap::Range& range : LibraryMap::of(library.handle).ranges)
      if (range.executable) note_code(note.name, range.begin, range.end);
    BP_RETURN_IF_ERROR(call_negotiate(library, negotiation, note, path));
  }
  BP_RETURN_IF_ERROR(check_answer(negotiation, note, path));
  Result<bp_plugin_api> table =
      check_table(negotiation.api, LibraryMap::of(library.handle), negotiation.chosen);
  if (!table.ok()) {
    return refuse(note, path, table.status().code(), table.status().message());
  }

  plugin->abi_version_ = negotiation.chosen;
  plugin->api_ = *table;
  plugin->handle_ = negotiation.plugin;
  plugin->process_ = process_id();
  return plugin;
}

Status Plugin::load_isolated() {
  start_patience();
  const CallScope scope(name(), "load");
  Result<IsolatedPlugin*> isolated = IsolatedPlugin::start(name(), path_, sha256_);
  if (!isolated.ok()) {
    const Status& why = isolated.status();
    // What the worker refused it has said in full.
    if (why.message().starts_with(who(note_, path_))) return isolated.take_status();
    return refuse(note_, path_, why.code(), why.message());
  }
  abi_version_ = (*isolated)->abi_version();
  api_ = (*isolated)->api();
  handle_ = (*isolated)->handle();
  is_isolated_ = true;
  process_ = process_id();
  return {};
}

Plugin::~Plugin() {
  const bool is_at_work = std::ranges::any_of(
      devices_, [](const auto& device) { return device != nullptr && device->is_given_up(); });
  devices_.clear();
  if (process_id() != process_ || is_at_work) return;
  const ProcessStateGuard guard("shutdown of plugin '" + name() + "'");
  call_plugin_void(
      {name(), "shutdown", {}}, [&] { api_.shutdown(handle_); },
      [&] { return "plugin '" + name() + "': shutdown"; });
  if (log_enabled("plugins"))
    log_topic("plugins", "backplane: plugin '" + name() + "' was shut down");
}

bool Plugin::is_of_parent() const { return process_id() != process_; }

bool Plugin::is_used() {
  if (is_of_parent()) return true;  // by the parent
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(
      devices_, [](const auto& device) { return device != nullptr && device->is_used(); });
}

std::uint32_t Plugin::device_count() const {
  if (is_of_parent()) return 0;
  std::uint32_t count = 0;
  call_plugin_void(
      {name(), "device_count", {}}, [&] { count = api_.device_count(handle_); },
      [&] { return "plugin '" + name() + "': device_count"; });
  if (count <= kDeviceLimit) return count;
  log(LogLevel::kWarning, "plugin '" + name() + "' reports " + std::to_string(count) +
                              " devices; the first " + std::to_string(kDeviceLimit) + " are used");
  return kDeviceLimit;
}

Result<Device*> Plugin::device(std::uint32_t index) {
  if (is_of_parent()) {
    return Status(Code::kUnsupported,
                  "Plugin '" + name() +
                      "' was loaded before fork(); its devices cannot be used in the child; start "
                      "the child with spawn, or load plugins after the fork.");
  }
  {
    const std::lock_guard lock(mutex_);
    if (index < devices_.size() && devices_[index] != nullptr) return devices_[index].get();
  }
  const std::uint32_t count = device_count();
  if (index >= count) {
    return Status(Code::kInvalidArgument, "Plugin '" + name() + "' has " + std::to_string(count) +
                                              (count == 1 ? " device" : " devices") +
                                              "; there is no device " + std::to_string(index) +
                                              ".");
  }
  {
    std::unique_lock lock(mutex_);
    if (devices_.size() < count) {
      devices_.resize(count);
      opening_.resize(count);
    }
    opened_.wait(lock, [&] { return !opening_[index]; });
    if (devices_[index] != nullptr) return devices_[index].get();
    opening_[index] = true;
  }
  // Whoever waits for the device goes on also where opening it throws.
  struct Opening {
    Plugin& plugin;
    std::uint32_t index;
    ~Opening() {
      const std::lock_guard lock(plugin.mutex_);
      plugin.opening_[index] = false;
      plugin.opened_.notify_all();
    }
  };
  const Opening opening{*this, index};
  Result<std::unique_ptr<Device>> device = Device::open(this, index);
  if (!device.ok()) return device.take_status();
  const std::lock_guard lock(mutex_);
  devices_[index] = std::move(*device);
  return devices_[index].get();
}

bool Plugin::has_open(const bp_device* handle) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(devices_, [handle](const std::unique_ptr<Device>& device) {
    return device != nullptr && device->handle() == handle;
  });
}

}  // namespace backplane::runtime
