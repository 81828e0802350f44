#include "libraries.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
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

// libnvrtc.so.N in `folder`, the newest first.
void add_nvrtc_of(const fs::path& folder, std::vector<std::string>& out) {
  std::error_code none;
  std::vector<std::pair<int, std::string>> found;
  for (const auto& file : fs::directory_iterator(folder, none)) {
    const std::string name = file.path().filename();
    constexpr std::string_view kBegin = "libnvrtc.so.";
    if (name.starts_with(kBegin) && name.find('.', kBegin.size()) == std::string::npos)
      found.emplace_back(std::atoi(name.c_str() + kBegin.size()), file.path());
  }
  std::sort(found.rbegin(), found.rend());
  for (auto& [major, path] : found) out.push_back(std::move(path));
}

// The folder of an environment's packages that `library` lies in, and those above it.
void add_nvrtc_near(const fs::path& library, std::vector<std::string>& out) {
  std::error_code none;
  for (fs::path at = library.parent_path(); at.has_relative_path(); at = at.parent_path()) {
    if (!fs::is_directory(at / "nvidia", none)) continue;
    std::vector<fs::path> packages;
    for (const auto& package : fs::directory_iterator(at / "nvidia", none))
      packages.push_back(package.path());
    std::sort(packages.rbegin(), packages.rend());  // cuda_nvrtc (12), cu13
    for (const fs::path& package : packages) add_nvrtc_of(package / "lib", out);
  }
}

int add_of_torch(dl_phdr_info* info, std::size_t, void* out) {
  const std::string path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  if (path.ends_with("/torch/lib/libtorch_python.so"))
    add_nvrtc_near(path, *static_cast<std::vector<std::string>*>(out));
  return 0;
}

std::vector<std::string> nvrtc_places() {
  if (const char* own = set_variable("BACKPLANE_CUDA_NVRTC")) return {own};
  std::vector<std::string> places;
  Dl_info self{};
  if (::dladdr(reinterpret_cast<const void*>(&nvrtc_places), &self) != 0)
    add_nvrtc_near(self.dli_fname, places);
  ::dl_iterate_phdr(add_of_torch, &places);
  if (const char* home = set_variable("CUDA_HOME")) add_nvrtc_of(fs::path(home) / "lib64", places);
  add_nvrtc_of("/usr/local/cuda/lib64", places);
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"})
    places.emplace_back(name);
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
  for (const std::string& place : nvrtc_places()) {
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

}  // namespace

const Driver& driver() {
  static const Driver opened = load_driver();
  return opened;
}
const Nvrtc& nvrtc() {
  static const Nvrtc opened = load_nvrtc();
  return opened;
}

}  // namespace backplane::cuda
