#include "core/runtime/host/handles.h"

#include <pthread.h>

#include <atomic>
#include <deque>
#include <exception>
#include <utility>

#include "core/base/fork.h"
#include "core/base/log.h"

namespace backplane::runtime {

namespace {

// tag 8, kind 4, generation 28, index 24. The tag makes it no address of any process, so that a
// plugin that looks into one crashes at that place.
static_assert(sizeof(std::uintptr_t) == 8);
constexpr std::uintptr_t kTag = std::uintptr_t{0xb9} << 56;
constexpr std::uintptr_t kTagMask = std::uintptr_t{0xff} << 56;
constexpr std::uint32_t kGenerationMask = (1u << 28) - 1;
constexpr std::size_t kPlaceLimit = std::size_t{1} << 24;
constexpr std::uint32_t kNone = ~0u;
constexpr std::uint32_t kReportLimit = 32;

std::atomic<CurrentCall (*)()> current_call{nullptr};

struct Place {
  void* object = nullptr;  // null: free
  std::uint32_t generation = 0, next_free = kNone;
  HandleKind kind{};
  std::string owner;
};

struct Table {
  std::mutex& mutex = fork_mutex(ForkRank::kLast);
  std::deque<Place> places;
  std::uint32_t free = kNone;
};

// Never destroyed: plugins' threads outlive static objects.
Table& table() {
  static Table* const made = new Table;
  return *made;
}

std::uint32_t index_of(std::uintptr_t value) { return value & (kPlaceLimit - 1); }
std::uint32_t generation_of(std::uintptr_t value) { return (value >> 24) & kGenerationMask; }
HandleKind kind_of(std::uintptr_t value) { return static_cast<HandleKind>((value >> 52) & 0xf); }

std::uintptr_t open(HandleKind kind, void* object, std::string_view owner) {
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  const bool is_new = all.free == kNone;
  if (is_new && all.places.size() == kPlaceLimit) return 0;
  const auto index = is_new ? static_cast<std::uint32_t>(all.places.size()) : all.free;
  if (is_new) all.places.emplace_back();
  Place& place = all.places[index];
  place.owner = owner;
  if (!is_new) all.free = place.next_free;
  place.object = object;
  place.kind = kind;
  place.generation = (place.generation + 1) & kGenerationMask;
  return kTag | static_cast<std::uintptr_t>(kind) << 52 | std::uintptr_t{place.generation} << 24 |
         index;
}

}  // namespace

std::mutex& handle_mutex() { return table().mutex; }

Handle::Handle(HandleKind kind, void* object, std::string_view owner) noexcept
    : value_([&]() -> std::uintptr_t {
        try {
          return open(kind, object, owner);
        } catch (const std::exception&) {  // out of memory
          return 0;
        }
      }()) {}

Handle::~Handle() {
  if (value_ == 0) return;
  const std::lock_guard lock(handle_mutex());
  close();
}

void Handle::close() {
  const std::uintptr_t value = std::exchange(value_, 0);
  if (value == 0) return;
  Table& all = table();
  const std::uint32_t index = index_of(value);
  all.places[index].object = nullptr;
  all.places[index].next_free = all.free;
  all.free = index;
}

FoundHandle find_handle(HandleKind kind, const void* handle, std::string_view user) {
  const auto value = reinterpret_cast<std::uintptr_t>(handle);
  if (value == 0) return {nullptr, "is NULL"};
  const Table& all = table();
  if ((value & kTagMask) != kTag || index_of(value) >= all.places.size())
    return {nullptr, "was not made by the host"};
  if (kind_of(value) != kind) return {nullptr, "is a handle of another kind"};
  const Place& place = all.places[index_of(value)];
  if (place.object == nullptr || place.generation != generation_of(value) || place.kind != kind)
    return {nullptr, "was released, or the call that it was for has ended"};
  if (!user.empty() && !place.owner.empty() && user != place.owner)
    return {nullptr, "belongs to another plugin"};
  return {place.object, nullptr};
}

void set_current_call(CurrentCall (*ask)()) { current_call = ask; }

std::string calling_plugin() {
  const auto ask = current_call.load();
  return ask != nullptr ? ask().plugin : std::string();
}

std::string report_misuse(std::string_view plugin, std::string_view entry, std::string_view text) {
  const auto ask = current_call.load();
  const std::string call = ask != nullptr ? ask().text : std::string();
  std::string said = "plugin";
  if (!plugin.empty()) said.append(" '").append(plugin).append("'");
  if (!call.empty()) said.append(" (").append(call).append(")");
  if (plugin.empty() && call.empty()) said += " in a thread of its own";
  said.append(": ").append(entry).append(": ").append(text);
  static std::atomic<std::uint32_t> reports{0};
  const std::uint32_t before = reports.fetch_add(1, std::memory_order_relaxed);
  if (before < kReportLimit) log(LogLevel::kError, said);
  if (before == kReportLimit) log(LogLevel::kError, "further misuse by plugins is not told");
  return said;
}

}  // namespace backplane::runtime
