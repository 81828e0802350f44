#include "core/runtime/plugin/registry.h"

#include <sys/auxv.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <list>
#include <mutex>
#include <new>
#include <utility>

#include "core/base/fork.h"
#include "core/base/log.h"

namespace backplane::runtime {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPathVariable = "BACKPLANE_PLUGIN_PATH";
constexpr std::string_view kPackageOrigin = "package";
constexpr std::string_view kSystemDirectory = "/usr/lib/backplane/plugins";
constexpr std::string_view kPrefix = "libbackplane_";
constexpr std::string_view kSuffix = ".so";

bool is_privileged() { return ::getauxval(AT_SECURE) != 0; }

// "libbackplane_acme.so" -> "acme": how a file is called whose note cannot be read.
std::string name_from_file(const fs::path& path) {
  std::string name = path.filename().string();
  if (name.starts_with(kPrefix)) name.erase(0, kPrefix.size());
  if (name.ends_with(kSuffix)) name.erase(name.size() - kSuffix.size());
  return name;
}

// Insertions, deletions and replacements between two short names.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row[b.size()];
}

std::string in_quotes(std::string_view text) {
  return "'" + std::string(text.substr(0, 200)) + "'";
}

}  // namespace

struct Registry::State {
  struct Slot {
    PluginEntry entry;
    Status refusal;       // why it was refused, at preflight or at load
    bool usable = false;  // its note was read and the name is its own
    bool loading = false;
    bool was_cut_off = false;  // a thread of the parent was loading it when this process was forked
    std::unique_ptr<Plugin> plugin;
  };

  // Never held over a call into a plugin, nor while one is loaded. Of the process's own registry
  // it is held over fork().
  std::mutex mutex;
  std::condition_variable loaded;
  std::list<Slot> slots;         // in the order of their addition
  std::vector<Plugin*> by_load;  // in the order of loading
  bool searches_directories = false;
  bool searched = false;
  bool is_shut_down = false;

  // Threads that loaded and that waited for them are not in the child. What the loader has done of
  // a library, and which of its constructors have run, nobody knows there.
  void leave_loads_to_parent() {
    new (&loaded) std::condition_variable;
    for (Slot& slot : slots)
      if (std::exchange(slot.loading, false)) slot.was_cut_off = true;
  }
  Slot* find_usable(std::string_view name) {
    for (Slot& slot : slots) {
      if (slot.usable && slot.entry.name == name) return &slot;
    }
    return nullptr;
  }
  Status add_file(const fs::path& path, std::string_view origin);
  Status add_directory(const fs::path& path, std::string_view origin);
  Status unknown_name(std::string_view name);
};

Status Registry::State::add_file(const fs::path& path, std::string_view origin) {
  const std::string text = path.string();
  Result<PluginNote> note = preflight(text);
  const std::lock_guard lock(mutex);
  for (Slot& slot : slots) {
    if (slot.entry.path == text) return slot.refusal;  // known, with what became of it
  }
  Slot slot;
  slot.entry.path = text;
  slot.entry.origin = origin;
  if (note.ok()) {
    slot.entry.name = note->name;
    if (const Slot* first = find_usable(note->name)) {
      slot.refusal = Status(Code::kInvalidArgument,
                            "Plugin " + in_quotes(note->name) + " (" + text +
                                ") was refused: that name is taken by " + first->entry.path + " (" +
                                first->entry.origin + "), which was found first.");
    } else {
      slot.usable = true;
    }
  } else {
    slot.entry.name = name_from_file(path);
    slot.refusal = note.take_status();
  }
  slot.entry.error = slot.refusal.message();
  // The package's own names are not taken unnoticed.
  if (note.ok() && !slot.usable && origin == kPackageOrigin)
    log(LogLevel::kWarning, slot.refusal.message());
  if (log_enabled("plugins")) {
    log_topic("plugins", "backplane: plugin " + in_quotes(slot.entry.name) + " from " + text +
                             " (" + slot.entry.origin + ")" +
                             (slot.entry.error.empty() ? "" : ": " + slot.entry.error));
  }
  Status refusal = slot.refusal;
  slots.push_back(std::move(slot));
  return refusal;
}

Status Registry::State::add_directory(const fs::path& path, std::string_view origin) {
  std::error_code error;
  std::vector<fs::path> files;
  fs::directory_iterator it(path, fs::directory_options::skip_permission_denied, error);
  for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
    const std::string file = it->path().filename().string();
    if (file.starts_with(kPrefix) && file.ends_with(kSuffix)) files.push_back(it->path());
  }
  if (error) {
    return {Code::kNotFound, "The plugin directory " + in_quotes(path.string()) + " (" +
                                 std::string(origin) + ") cannot be read: " + error.message() +
                                 "."};
  }
  std::sort(files.begin(), files.end());  // the order of a directory is nobody's choice
  for (const fs::path& file : files) (void)add_file(file, origin);
  return {};
}

Status Registry::State::unknown_name(std::string_view name) {
  std::string known, nearest;
  std::size_t nearest_distance = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const Slot& slot : slots) {
    if (!slot.usable) continue;
    known += (known.empty() ? "" : ", ") + in_quotes(slot.entry.name);
    const std::size_t distance = edit_distance(name.substr(0, 64), slot.entry.name);
    if (distance >= nearest_distance) continue;
    nearest_distance = distance;
    nearest = slot.entry.name;
  }
  std::string text = "There is no plugin named " + in_quotes(name) + "; ";
  text += known.empty() ? "no plugin was found at all" : "known are " + known;
  if (!nearest.empty()) text += "; did you mean " + in_quotes(nearest) + "?";
  if (nearest.empty()) {
    text += ". Install the package that brings it, or name its directory in " +
            std::string(kPathVariable) + ".";
  }
  return {Code::kNotFound, std::move(text)};
}

Registry::Registry() : state_(std::make_unique<State>()) {}

Registry::~Registry() { shutdown(); }

Registry& Registry::instance() {
  static Registry* const registry = [] {
    auto* made = new Registry;
    made->state_->searches_directories = true;
    hold_over_fork(
        made->state_->mutex, ForkRank::kOuter,
        [](void* state) { static_cast<State*>(state)->leave_loads_to_parent(); },
        made->state_.get());
    const char* paths = is_privileged() ? nullptr : std::getenv(kPathVariable.data());
    std::string_view left = paths != nullptr ? paths : "";
    while (!left.empty()) {
      const std::string_view path = left.substr(0, left.find(':'));
      left.remove_prefix(std::min(left.size(), path.size() + 1));
      if (path.empty()) continue;
      const Status status = made->add_path(std::string(path), kPathVariable);
      if (!status.ok()) {
        log(LogLevel::kWarning, std::string(kPathVariable) + ": " + status.message());
      }
    }
    return made;
  }();
  return *registry;
}

Status Registry::add_path(const std::string& path, std::string_view origin) {
  const fs::path given(path);
  if (!given.is_absolute()) {
    return {Code::kInvalidArgument,
            "The plugin path " + in_quotes(path) + " is not absolute; give the full path."};
  }
  std::error_code ignored;
  if (fs::is_directory(given, ignored)) {
    return state_->add_directory(given.lexically_normal(), origin);
  }
  return state_->add_file(given.lexically_normal(), origin);
}

void Registry::search_directories() {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->searches_directories || std::exchange(state_->searched, true)) return;
  }
  std::error_code ignored;
  const char* home = is_privileged() ? nullptr : std::getenv("HOME");
  if (home != nullptr && home[0] == '/') {
    const fs::path user = fs::path(home) / ".local/share/backplane/plugins";
    if (fs::is_directory(user, ignored)) (void)state_->add_directory(user, "user directory");
  }
  if (fs::is_directory(kSystemDirectory, ignored)) {
    (void)state_->add_directory(kSystemDirectory, "system directory");
  }
}

Result<Plugin*> Registry::find(std::string_view name) {
  search_directories();
  State::Slot* slot = nullptr;
  {
    std::unique_lock lock(state_->mutex);
    slot = state_->find_usable(name);
    if (state_->is_shut_down && (slot == nullptr || slot->plugin == nullptr)) {
      return Status(Code::kInvalidArgument, "Plugins were shut down; none can be used any more.");
    }
    if (slot == nullptr) {
      for (const State::Slot& refused : state_->slots) {
        if (refused.entry.name == name) return refused.refusal;
      }
      return state_->unknown_name(name);
    }
    state_->loaded.wait(lock, [&] { return !slot->loading; });
    if (slot->was_cut_off)
      return Status(Code::kUnsupported,
                    "Plugin " + in_quotes(name) +
                        " was being loaded by another thread when this process was forked; fork "
                        "before or after it is loaded, or start the child with spawn.");
    if (slot->plugin != nullptr) return slot->plugin.get();
    if (!slot->refusal.ok()) return slot->refusal;
    slot->loading = true;
  }
  Result<std::unique_ptr<Plugin>> plugin = Plugin::load(slot->entry.path);
  const std::lock_guard lock(state_->mutex);
  slot->loading = false;
  state_->loaded.notify_all();
  if (!plugin.ok()) {
    slot->refusal = plugin.take_status();
    slot->entry.error = slot->refusal.message();
    return slot->refusal;
  }
  slot->plugin = std::move(*plugin);
  slot->entry.loaded = true;
  state_->by_load.push_back(slot->plugin.get());
  return slot->plugin.get();
}

std::vector<PluginEntry> Registry::entries() {
  search_directories();
  const std::lock_guard lock(state_->mutex);
  std::vector<PluginEntry> result;
  for (const State::Slot& slot : state_->slots) result.push_back(slot.entry);
  return result;
}

void Registry::shutdown() {
  std::vector<std::unique_ptr<Plugin>> plugins;  // in the order of loading
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_shut_down = true;
    for (const Plugin* wanted : state_->by_load) {
      for (State::Slot& slot : state_->slots) {
        if (slot.plugin.get() != wanted || slot.plugin->is_used()) continue;
        plugins.push_back(std::move(slot.plugin));
        slot.entry.loaded = false;
      }
    }
    std::erase_if(state_->by_load, [&](const Plugin* plugin) {
      return std::ranges::any_of(plugins, [&](const auto& gone) { return gone.get() == plugin; });
    });
  }
  while (!plugins.empty()) plugins.pop_back();
}

bool Registry::is_shut_down() {
  const std::lock_guard lock(state_->mutex);
  return state_->is_shut_down;
}

}  // namespace backplane::runtime
