#include "core/runtime/plugin/plugin_table.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace backplane::runtime {

namespace {

using Function = void (*)();

enum class Group { kRequired, kOptional, kStreams, kLayouts, kBlobs, kProfile, kImport };

struct TableEntry {
  const char* name;
  std::size_t offset;
  Group group;
};

#define BP_TABLE_ENTRY(name, group) \
  { #name, offsetof(bp_plugin_api, name), Group::group }
constexpr TableEntry kEntries[] = {
    BP_TABLE_ENTRY(device_count, kRequired),
    BP_TABLE_ENTRY(device_describe, kRequired),
    BP_TABLE_ENTRY(device_open, kRequired),
    BP_TABLE_ENTRY(device_close, kRequired),
    BP_TABLE_ENTRY(buffer_create, kRequired),
    BP_TABLE_ENTRY(buffer_release, kRequired),
    BP_TABLE_ENTRY(copy, kRequired),
    BP_TABLE_ENTRY(claims, kRequired),
    BP_TABLE_ENTRY(compile, kRequired),
    BP_TABLE_ENTRY(executable_describe, kRequired),
    BP_TABLE_ENTRY(executable_release, kRequired),
    BP_TABLE_ENTRY(execute, kRequired),
    BP_TABLE_ENTRY(shutdown, kRequired),
    BP_TABLE_ENTRY(device_counters, kOptional),
    BP_TABLE_ENTRY(stream_create, kStreams),
    BP_TABLE_ENTRY(stream_release, kStreams),
    BP_TABLE_ENTRY(event_create, kStreams),
    BP_TABLE_ENTRY(event_release, kStreams),
    BP_TABLE_ENTRY(event_query, kStreams),
    BP_TABLE_ENTRY(event_wait, kStreams),
    BP_TABLE_ENTRY(layout_bytes, kLayouts),
    BP_TABLE_ENTRY(layout_convert, kLayouts),
    BP_TABLE_ENTRY(executable_workspace, kOptional),
    BP_TABLE_ENTRY(executable_save, kBlobs),
    BP_TABLE_ENTRY(blob_check, kBlobs),
    BP_TABLE_ENTRY(executable_load, kBlobs),
    BP_TABLE_ENTRY(profile_begin, kProfile),
    BP_TABLE_ENTRY(profile_end, kProfile),
    BP_TABLE_ENTRY(memory_import, kImport),
    BP_TABLE_ENTRY(stream_import, kImport),
};
#undef BP_TABLE_ENTRY

// The table of version 0.2: pinned by plugin_api/tests, never grows with the struct.
constexpr std::size_t kFirstTableSize = offsetof(bp_plugin_api, profile_end) + sizeof(Function);
// An entry that is added to the header and forgotten here is caught at compile time.
static_assert(offsetof(bp_plugin_api, device_count) + std::size(kEntries) * sizeof(Function) ==
              sizeof(bp_plugin_api));

constexpr std::uint64_t kMustUnderstand = ~std::uint64_t{0} << 32;

Function function_at(const bp_plugin_api& table, const TableEntry& entry) {
  Function function = nullptr;
  std::memcpy(&function, reinterpret_cast<const char*>(&table) + entry.offset, sizeof(function));
  return function;
}

void append(std::string& list, std::string_view name) {
  if (!list.empty()) list += ", ";
  list += name;
}

Status refuse(std::string text) { return {Code::kInvalidArgument, std::move(text)}; }

Status check_groups(const bp_plugin_api& table) {
  constexpr std::pair<Group, std::string_view> kGroups[] = {{Group::kStreams, "streams and events"},
                                                            {Group::kLayouts, "layouts"},
                                                            {Group::kBlobs, "blobs"},
                                                            {Group::kProfile, "profile"},
                                                            {Group::kImport, "import"}};
  for (const auto& [group, name] : kGroups) {
    std::string present, missing;
    for (const TableEntry& entry : kEntries) {
      if (entry.group != group) continue;
      append(function_at(table, entry) != nullptr ? present : missing, entry.name);
    }
    if (!present.empty() && !missing.empty()) {
      std::string text = "its table sets ";
      text.append(present).append(" but not ").append(missing).append("; the group '");
      return refuse(text.append(name).append("' is all or none"));
    }
  }
  return {};
}

}  // namespace

LibraryMap LibraryMap::of(void* handle) {
  struct Search {
    const link_map* library = nullptr;
    LibraryMap map;
  } search;
  link_map* library = nullptr;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, &library) != 0 || library == nullptr) return {};
  search.library = library;
  const auto visit = [](dl_phdr_info* info, std::size_t, void* user) {
    auto& found = *static_cast<Search*>(user);
    if (info->dlpi_addr != found.library->l_addr) return 0;
    const auto dynamic = reinterpret_cast<std::uintptr_t>(found.library->l_ld);
    LibraryMap map;
    bool is_library = false;
    for (std::size_t i = 0; i < info->dlpi_phnum; ++i) {
      const ElfW(Phdr)& segment = info->dlpi_phdr[i];
      const std::uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
      if (segment.p_type == PT_DYNAMIC) is_library = begin == dynamic;
      if (segment.p_type != PT_LOAD || (segment.p_flags & PF_R) == 0) continue;
      map.ranges.push_back({begin, begin + segment.p_memsz, (segment.p_flags & PF_X) != 0});
    }
    if (!is_library) return 0;
    found.map = std::move(map);
    return 1;
  };
  ::dl_iterate_phdr(visit, &search);
  return std::move(search.map);
}

bool LibraryMap::contains(const void* memory, std::size_t bytes) const {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  return std::any_of(ranges.begin(), ranges.end(), [&](const Range& range) {
    return address >= range.begin && address <= range.end && bytes <= range.end - address;
  });
}

bool LibraryMap::contains_code(void (*function)()) const {
  const auto address = reinterpret_cast<std::uintptr_t>(function);
  return std::any_of(ranges.begin(), ranges.end(), [&](const Range& range) {
    return range.executable && address >= range.begin && address < range.end;
  });
}

Result<bp_plugin_api> check_table(const bp_plugin_api* table, const LibraryMap& library,
                                  std::uint32_t chosen_version) {
  if (table == nullptr) return refuse("it negotiated a version and gave no table");
  constexpr std::size_t kHead = offsetof(bp_plugin_api, device_count);
  if (reinterpret_cast<std::uintptr_t>(table) % alignof(bp_plugin_api) != 0 ||
      !library.contains(table, kHead)) {
    return refuse("its table does not lie in the library itself; make it static");
  }
  const std::size_t size = table->struct_size;
  if (size < kFirstTableSize || size > BP_STRUCT_SIZE_LIMIT) {
    return refuse("its table has bp_plugin_api.struct_size " + std::to_string(size) +
                  "; expected " + std::to_string(kFirstTableSize) + " (version 0.2) to " +
                  std::to_string(BP_STRUCT_SIZE_LIMIT) + "; set it to sizeof(bp_plugin_api)");
  }
  if (!library.contains(table, size)) {
    return refuse("its table claims " + std::to_string(size) +
                  " bytes (bp_plugin_api.struct_size), which reach beyond the library's memory; "
                  "set it to sizeof(bp_plugin_api)");
  }
  bp_plugin_api copy{};
  std::memcpy(&copy, table, std::min(size, sizeof(copy)));
  copy.struct_size = std::min(size, sizeof(copy));

  if (BP_VERSION_MAJOR(copy.version) != BP_VERSION_MAJOR(chosen_version) ||
      copy.version < chosen_version) {
    return refuse("its table is of version " + version_text(copy.version) +
                  ", the negotiation chose " + version_text(chosen_version));
  }
  if ((copy.flags & kMustUnderstand) != 0) {
    return Status(Code::kUnsupported,
                  "its table has a flag in bits 32 to 63 that this host does not know; update the "
                  "host");
  }
  std::string missing;
  for (const TableEntry& entry : kEntries) {
    if (entry.group == Group::kRequired && function_at(copy, entry) == nullptr) {
      append(missing, entry.name);
    }
  }
  if (!missing.empty()) return refuse("its table lacks the required entries " + missing);
  BP_RETURN_IF_ERROR(check_groups(copy));
  for (const TableEntry& entry : kEntries) {
    const Function function = function_at(copy, entry);
    if (function == nullptr || library.contains_code(function)) continue;
    const auto address = reinterpret_cast<const void*>(function);
    Dl_info owner{};
    const bool known = ::dladdr(address, &owner) != 0 && owner.dli_fname != nullptr;
    const std::string where = library.contains(address, 1) ? "the plugin's data"
                              : known                      ? std::string(owner.dli_fname)
                                                           : "no loaded library";
    return refuse("its entry " + std::string(entry.name) + " points into " + where +
                  "; an entry is a function of the plugin library itself: wrap it in one");
  }
  return copy;
}

std::string version_text(std::uint32_t version) {
  return std::to_string(BP_VERSION_MAJOR(version)) + "." +
         std::to_string(BP_VERSION_MINOR(version));
}

std::string version_range_text(std::uint32_t min, std::uint32_t max) {
  return min == max ? version_text(min) : version_text(min) + " to " + version_text(max);
}

}  // namespace backplane::runtime
