#include "core/runtime/host/own_directory.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace backplane::runtime {

namespace fs = std::filesystem;

std::string directory_fault(const std::string& directory) {
  if (directory.empty() || directory.front() != '/') return "it is not an absolute path";
  std::error_code error;
  if (!fs::exists(directory, error)) {
    const fs::path parent = fs::path(directory).parent_path();
    fs::create_directories(parent, error);
    if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
      return std::string("it cannot be made (") + std::strerror(errno) + ")";
    }
  }
  struct stat info {};
  if (::lstat(directory.c_str(), &info) != 0) {
    return std::string("it cannot be read (") + std::strerror(errno) + ")";
  }
  if (!S_ISDIR(info.st_mode)) return "it is not a directory";
  if (info.st_uid != ::geteuid()) return "it belongs to another user";
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return "other users may enter it; expected mode 0700 (chmod 700)";
  }
  return {};
}

std::string home_directory() {
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return home;
  passwd entry{};
  passwd* found = nullptr;
  std::string memory(16384, '\0');
  if (::getpwuid_r(::geteuid(), &entry, memory.data(), memory.size(), &found) != 0 ||
      found == nullptr || found->pw_dir == nullptr) {
    return {};
  }
  return found->pw_dir;
}

}  // namespace backplane::runtime
