// Files and folders for tests.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace backplane::runtime::testing_files {

// A folder of its own, mode 0700, removed with everything in it.
class TempFolder {
 public:
  TempFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "backplane_XXXXXX").string();
    path_ = ::mkdtemp(path.data()) != nullptr ? path : std::string();
  }
  ~TempFolder() {
    std::error_code ignored;
    ::chmod(path_.c_str(), 0700);
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// Path of a plugin that this folder's CMakeLists.txt builds.
#ifdef BACKPLANE_TESTING_PLUGINS_DIR
inline std::string testing_plugin(std::string_view name) {
  return std::string(BACKPLANE_TESTING_PLUGINS_DIR) + "/libbackplane_" + std::string(name) + ".so";
}
#endif

}  // namespace backplane::runtime::testing_files
