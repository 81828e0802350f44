#include "core/runtime/plugin/plugin.h"

#ifndef BOOST_DLL_USE_STD_FS
#define BOOST_DLL_USE_STD_FS
#endif
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/dll/shared_library.hpp>
#include <cerrno>
#include <cstring>
#include <exception>

#include "core/base/log.h"
#include "core/runtime/host/error.h"
#include "core/runtime/host/host_services.h"
#include "core/runtime/host/process_state.h"
#include "core/runtime/host/sha256.h"
#include "core/runtime/isolate/isolated_plugin.h"
#include "core/runtime/isolate/isolation.h"
#include "core/runtime/plugin/device.h"
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

Result<std::string> hash_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Status(Code::kInvalidArgument, "Cannot read " + path + ".");
  Sha256 hash;
  std::string chunk(std::size_t{1} << 20, '\0');
  ssize_t got = 0;
  while ((got = ::read(fd, chunk.data(), chunk.size())) != 0) {
    if (got > 0) {
      hash.update({chunk.data(), static_cast<std::size_t>(got)});
    } else if (errno != EINTR) {
      break;
    }
  }
  ::close(fd);
  if (got < 0) return Status(Code::kInvalidArgument, "Cannot read " + path + ".");
  return to_hex(hash.finish());
}

// Tells one content of a path from another without reading it.
struct FileStamp {
  dev_t device = 0;
  ino_t inode = 0;
  off_t size = 0;
  std::int64_t modified_s = 0, modified_ns = 0;
  bool operator==(const FileStamp&) const = default;
};

FileStamp stamp_of(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return {};
  return {info.st_dev, info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
}

// A loaded library and the one function that is called by name.
struct Library {
  void* handle = nullptr;
  void (*negotiate)(bp_negotiation*) = nullptr;
};

// The loader's own words out of Boost's "... (dlerror system message: TEXT): Bad file descriptor".
std::string_view loader_text(std::string_view text) {
  constexpr std::string_view kBefore = "(dlerror system message: ";
  const std::size_t begin = text.find(kBefore);
  const std::size_t end = text.rfind("): ");
  if (begin == std::string::npos || end == std::string::npos || end < begin + kBefore.size())
    return text;
  return text.substr(begin + kBefore.size(), end - begin - kBefore.size());
}

// Opens the library for the rest of the process: threads and exit handlers of a vendor's runtime
// may outlive any unloading, so nothing is ever closed.
Result<Library> open_library(const PluginNote& note, const std::string& path) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::unique_ptr<boost::dll::shared_library>>;
  const CallScope scope(note.name, "load");
  try {
    using boost::dll::load_mode::rtld_local;
    using boost::dll::load_mode::rtld_now;
    auto library = std::make_unique<boost::dll::shared_library>(path, rtld_now | rtld_local);
    const Library result{library->native(), &library->get<void(bp_negotiation*)>(BP_ENTRY_NAME)};
    const std::lock_guard lock(mutex);
    kept->push_back(std::move(library));
    return result;
  } catch (const std::exception& exception) {
    const std::string_view text = loader_text(exception.what());
    return refuse(note, path, Code::kInvalidArgument,
                  "the loader says: " + copy_text({text.data(), text.size()}) +
                      "; install what is missing, or ask the vendor for a build for this system");
  }
}

// Calls the entry. The plugin promises not to throw; this is the second line of defence.
Status call_negotiate(const Library& library, bp_negotiation& negotiation, const PluginNote& note,
                      const std::string& path) {
  const CallScope scope(note.name, "negotiate");
  try {
    library.negotiate(&negotiation);
    return {};
  } catch (const std::exception& exception) {
    const std::string_view text = exception.what();
    return refuse(note, path, Code::kInternal,
                  "its negotiation threw an exception (" + copy_text({text.data(), text.size()}) +
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

Result<std::unique_ptr<Plugin>> Plugin::load(const std::string& path) {
  read_earlier_crashes();
  const FileStamp stamp = stamp_of(path);
  BP_ASSIGN_OR_RETURN(PluginNote note, preflight(path));
  BP_RETURN_IF_ERROR(check_note(note, path));
  BP_ASSIGN_OR_RETURN(std::string sha256, hash_file(path));
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
    BP_ASSIGN_OR_RETURN(library, open_library(note, path));
    for (const LibraryMap::Range& range : LibraryMap::of(library.handle).ranges)
      if (range.executable) note_code(note.name, range.begin, range.end);
    if (stamp_of(path) != stamp) {
      return refuse(note, path, Code::kInvalidArgument,
                    "the file changed while it was loaded; start again");
    }
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
  Result<IsolatedPlugin*> isolated = IsolatedPlugin::start(name(), path_);
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

bool Plugin::is_used() {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(
      devices_, [](const auto& device) { return device != nullptr && device->is_used(); });
}

std::uint32_t Plugin::device_count() const {
  if (process_id() != process_) return 0;
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
  if (process_id() != process_) {
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

}  // namespace backplane::runtime
