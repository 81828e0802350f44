// Blobs of executables on disk, keyed by content. Safe for several processes and for torn files:
// a file is written aside and renamed, carries length and checksum, and is rebuilt when it is not
// what it says. Directory: $BACKPLANE_CACHE_DIR, else ~/.cache/backplane, mode 0700, never shared.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace backplane::runtime {

class DiskCache {
 public:
  // Null when caching is off (BACKPLANE_CACHE=0, an unusable directory, a privileged process).
  static DiskCache* instance();
  // Makes the directory when it is missing. One that is not ours alone is not used: a warning, and
  // every call finds nothing.
  explicit DiskCache(std::string directory, std::uint64_t limit_bytes = std::uint64_t{1} << 30);

  // The blob, or nothing: missing, torn or foreign files count as missing and are removed.
  std::optional<std::string> get(std::string_view key);
  // Failures (disk full, permissions) are logged once and otherwise ignored.
  void put(std::string_view key, std::string_view blob);
  const std::string& directory() const { return directory_; }
  bool usable() const { return usable_; }

 private:
  std::string path_of(std::string_view key) const;
  void warn_once(const std::string& text);
  void trim();

  std::string directory_;
  std::uint64_t limit_bytes_;  // of all files; beyond it the longest unused go
  bool usable_ = false;
  std::atomic<bool> warned_{false};
  std::atomic<std::uint64_t> written_bytes_{0};  // since the last trim
};

// Hex SHA-256.
std::string sha256_hex(std::string_view bytes);

}  // namespace backplane::runtime
