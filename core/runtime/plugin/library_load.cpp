#include "core/runtime/plugin/library_load.h"

#ifndef BOOST_DLL_USE_STD_FS
#define BOOST_DLL_USE_STD_FS
#endif
#include <dlfcn.h>
#include <link.h>

#include <boost/dll/shared_library.hpp>
#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/base/fork.h"
#include "core/runtime/host/error.h"

namespace backplane::runtime {

namespace {

using SharedLibrary = boost::dll::shared_library;

Status refuse(std::string text) { return {Code::kInvalidArgument, std::move(text)}; }

struct Kept {
  std::mutex& mutex = fork_mutex();
  std::vector<std::unique_ptr<SharedLibrary>> libraries;
  std::vector<LibraryFile> files;  // /proc/PID/fd/N stays what debuggers were told
  std::vector<const char*> names;  // that the loader had given
  std::map<std::pair<std::string, std::string>, Library> sealed;  // by path and hash
};
Kept& kept() {
  static auto* const made = new Kept;
  return *made;
}

// The loader's own words out of Boost's "... (dlerror system message: TEXT): Bad file descriptor".
std::string_view loader_text(std::string_view text) {
  constexpr std::string_view kBefore = "(dlerror system message: ";
  const std::size_t begin = text.find(kBefore);
  const std::size_t end = text.rfind("): ");
  if (begin == std::string::npos || end == std::string::npos || end < begin + kBefore.size())
    return text;
  return text.substr(begin + kBefore.size(), end - begin - kBefore.size());
}

Status load_failed(const std::exception& exception) {
  const std::string_view text = loader_text(exception.what());
  return refuse("the loader says: " + copy_text({text.data(), text.size()}) +
                "; install what is missing, or ask the vendor for a build for this system");
}

std::unique_ptr<SharedLibrary> open_shared(const std::string& path) {
  using boost::dll::load_mode::rtld_local;
  using boost::dll::load_mode::rtld_now;
  return std::make_unique<SharedLibrary>(path, rtld_now | rtld_local);
}

Library entry_of(const SharedLibrary& library) {
  return {library.native(), &library.get<void(bp_negotiation*)>(BP_ENTRY_NAME)};
}

Library keep(std::unique_ptr<SharedLibrary> library, const Library& entry) {
  const std::lock_guard lock(kept().mutex);
  kept().libraries.push_back(std::move(library));
  return entry;
}

std::string with_origin(const std::string& part, const std::string& origin) {
  for (const std::string_view word : {"$ORIGIN", "${ORIGIN}"})
    if (part.starts_with(word)) return origin + part.substr(word.size());
  return part;
}

// The loader takes $ORIGIN for the folder of the copy, so what lies beside the library is loaded
// first; the loader then finds it by its soname.
Status load_needed(const LibraryFile& file, const LibraryFacts& facts) {
  std::error_code error;
  const std::string origin = std::filesystem::canonical(file.path(), error).parent_path().string();
  if (error) return refuse("its folder is not to be found (" + error.message() + ")");
  for (const std::string& name : facts.needed) {
    for (const std::string& part : facts.run_paths) {
      const std::string path = with_origin(part, origin) + "/" + name;
      if (!std::filesystem::exists(path, error)) continue;
      if (part.starts_with('$')) {
        auto library = open_shared(path);
        const std::lock_guard lock(kept().mutex);
        kept().libraries.push_back(std::move(library));
      }
      break;
    }
  }
  return {};
}

// From here on dladdr, debuggers and whoever opens that path again find the library under it.
void give_name(void* handle, const std::string& path) {
  link_map* map = nullptr;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return;
  kept().names.push_back(map->l_name);
  map->l_name = ::strdup(path.c_str());
}

}  // namespace

Result<Library> load_by_path(const LibraryFile& file, const std::string& sha256) {
  try {
    auto library = open_shared(file.path());
    const Library entry = entry_of(*library);
    const Library result = keep(std::move(library), entry);
    if (!file.is_mapped_at(reinterpret_cast<const void*>(result.negotiate)) ||
        !file.is_still(sha256))
      return refuse("the file changed while it was loaded, or since; start again");
    return result;
  } catch (const std::exception& exception) {
    return load_failed(exception);
  }
}

Result<Library> load_sealed(const LibraryFile& file, const LibraryFacts& facts,
                            const std::string& sha256) {
  const std::pair<std::string, std::string> key(file.path(), sha256);
  {
    const std::lock_guard lock(kept().mutex);
    if (const auto found = kept().sealed.find(key); found != kept().sealed.end())
      return found->second;
  }
  BP_ASSIGN_OR_RETURN(LibraryFile copy, file.sealed_copy());
  BP_ASSIGN_OR_RETURN(const std::string copied, copy.sha256());
  if (copied != sha256) return refuse("the file changed while it was loaded; start again");
  try {
    BP_RETURN_IF_ERROR(load_needed(file, facts));
    auto library = open_shared(copy.descriptor_path());
    const Library entry = entry_of(*library);
    const Library result = keep(std::move(library), entry);
    const std::lock_guard lock(kept().mutex);
    give_name(result.handle, file.path());
    kept().files.push_back(std::move(copy));
    return kept().sealed.emplace(key, result).first->second;
  } catch (const std::exception& exception) {
    return load_failed(exception);
  }
}

}  // namespace backplane::runtime
