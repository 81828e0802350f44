#include "libraries.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace backplane::cuda {
namespace {

namespace fs = std::filesystem;

constexpr int kOldestDriver = 11080;  // what it exports is enough for all that api.h lists

const char* set_variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != 0 ? value : nullptr;
}

// The first of `places` that opens; else `why` says what the loader said of the first of all.
void* open_first(const std::vector<std::string>& places, std::string& why) {
  for (const std::string& place : places) {
    if (void* library = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const char* words = ::dlerror();
    if (why.empty()) why = words != nullptr ? std::string(words) : place;
  }
  return nullptr;
}

void* entry(void* library, const char* library_name, const char* name) {
  if (void* found = ::dlsym(library, name)) return found;
  throw std::runtime_error(std::string(library_name) + " is too old: it has no " + name);
}

Driver load_driver() {
  std::vector<std::string> places = {"libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1",
                                     "/usr/local/nvidia/lib/libcuda.so.1",
                                     "/usr/lib/wsl/lib/libcuda.so.1"};
  if (const char* own = set_variable("BACKPLANE_CUDA_DRIVER")) places = {own};
  std::string why;
  void* library = open_first(places, why);
  if (library == nullptr) throw std::runtime_error("no device: no NVIDIA driver (" + why + ")");
  Driver d;
#define BP_CUDA_ENTRY(name, ...) \
  d.name = reinterpret_cast<Function<__VA_ARGS__>>(entry(library, "the NVIDIA driver", #name));
  BP_CUDA_DRIVER(BP_CUDA_ENTRY)
  if (const Code code = d.cuDriverGetVersion(&d.version); code != kSuccess)
    throw std::runtime_error("no device: cuDriverGetVersion failed with CUDA error " +
                             std::to_string(code));
  if (d.version < kOldestDriver)
    throw std::runtime_error("no device: the NVIDIA driver speaks CUDA " +
                             std::to_string(d.version / 1000) + "." +
                             std::to_string(d.version % 1000 / 10) + "; 11.8 or newer is needed");
  return d;
}

// `name`.so.N in `folder`, the newest first.
void add_versions_of(std::string_view name, const fs::path& folder, std::vector<std::string>& out) {
  std::error_code none;
  std::vector<std::pair<int, std::string>> found;
  const std::string begin = std::string(name) + ".so.";
  for (const auto& file : fs::directory_iterator(folder, none)) {
    const std::string own = file.path().filename();
    if (own.starts_with(begin) && own.find('.', begin.size()) == std::string::npos)
      found.emplace_back(std::atoi(own.c_str() + begin.size()), file.path());
  }
  std::sort(found.rbegin(), found.rend());
  for (auto& [major, path] : found) out.push_back(std::move(path));
}

// NVIDIA's wheels in the environments that `library` lies in.
void add_wheels_near(std::string_view name, const fs::path& library,
                     std::vector<std::string>& out) {
  std::error_code none;
  for (fs::path at = library.parent_path(); at.has_relative_path(); at = at.parent_path()) {
    if (!fs::is_directory(at / "nvidia", none)) continue;
    std::vector<fs::path> packages;
    for (const auto& package : fs::directory_iterator(at / "nvidia", none))
      packages.push_back(package.path());
    std::sort(packages.rbegin(), packages.rend());  // cuda_nvrtc and cublas (12), cu13
    for (const fs::path& package : packages) add_versions_of(name, package / "lib", out);
  }
}

// Where torch's extension lies, in a process that has one.
fs::path find_torch() {
  fs::path found;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        const std::string path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
        if (path.ends_with("/torch/lib/libtorch_python.so")) *static_cast<fs::path*>(out) = path;
        return 0;
      },
      &found);
  return found;
}

// Where a library of the toolkit may be; `variable` names another file.
std::vector<std::string> places_of(std::string_view name, const char* variable) {
  if (const char* own = set_variable(variable)) return {own};
  std::vector<std::string> places;
  Dl_info self{};
  if (::dladdr(reinterpret_cast<const void*>(&places_of), &self) != 0)
    add_wheels_near(name, self.dli_fname, places);
  add_wheels_near(name, find_torch(), places);
  if (const char* home = set_variable("CUDA_HOME"))
    add_versions_of(name, fs::path(home) / "lib64", places);
  add_versions_of(name, "/usr/local/cuda/lib64", places);
  for (const char* version : {".so.13", ".so.12"}) places.push_back(std::string(name) + version);
  return places;
}

// Some versions look for a library of theirs by its name alone, though it lies beside them.
void open_builtins(const fs::path& nvrtc_file) {
  std::error_code none;
  for (const auto& file : fs::directory_iterator(nvrtc_file.parent_path(), none)) {
    const std::string name = file.path().filename();
    if (name.starts_with("libnvrtc-builtins.so.") && name.find(".alt.") == std::string::npos)
      ::dlopen(file.path().c_str(), RTLD_NOW | RTLD_LOCAL);
  }
}

Nvrtc load_nvrtc() {
  const int most = driver().version / 1000;
  std::string why;
  for (const std::string& place : places_of("libnvrtc", "BACKPLANE_CUDA_NVRTC")) {
    if (place.find('/') != std::string::npos) open_builtins(place);
    void* library = open_first({place}, why);
    if (library == nullptr) continue;
    Nvrtc n;
#define BP_NVRTC_ENTRY(name, ...) \
  n.name = reinterpret_cast<Function<__VA_ARGS__>>(entry(library, "NVRTC", #name));
    BP_CUDA_NVRTC(BP_NVRTC_ENTRY)
    if (n.nvrtcVersion(&n.major, &n.minor) == kSuccess && n.major <= most) return n;
    why = place + " is of CUDA " + std::to_string(n.major) + ", the driver of " +
          std::to_string(most);
  }
  throw std::runtime_error(
      "no NVRTC, which builds the kernels: install nvidia-cuda-nvrtc with pip, or set "
      "BACKPLANE_CUDA_NVRTC to its file (" +
      why + ")");
}

std::optional<Blas> load_blas() {
  constexpr std::size_t kMajor = 10000;  // of versions: 1000 * major before 13, then 10000
  const auto most = static_cast<std::size_t>(driver().version / 1000);
  std::string why;
  for (const std::string& place : places_of("libcublasLt", "BACKPLANE_CUDA_BLAS")) {
    void* library = open_first({place}, why);
    if (library == nullptr) continue;
    Blas b;
    bool whole = true;
#define BP_BLAS_ENTRY(name, ...)                                             \
  b.name = reinterpret_cast<Function<__VA_ARGS__>>(::dlsym(library, #name)); \
  whole = whole && b.name != nullptr;
    BP_CUDA_BLAS(BP_BLAS_ENTRY)
    if (whole && b.cublasLtGetVersion() / kMajor <= most) return b;
  }
  return std::nullopt;
}

}  // namespace

const Driver& driver() {
  static const Driver opened = load_driver();
  return opened;
}
const Nvrtc& nvrtc() {
  static const Nvrtc opened = load_nvrtc();
  return opened;
}

const Blas* find_blas() {
  static const std::optional<Blas> opened = load_blas();
  return opened ? &*opened : nullptr;
}

}  // namespace backplane::cuda
