#include "core/runtime/host/disk_cache.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/log.h"
#include "core/runtime/host/own_directory.h"
#include "core/runtime/host/sha256.h"

namespace backplane::runtime {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".bin";
constexpr std::string_view kAsideSuffix = ".tmp";
constexpr auto kAsideAge = std::chrono::hours(1);  // an older one was left by a process that died

// First bytes of every file; the payload follows and ends the file.
struct FileHeader {
  char magic[8] = {'B', 'P', 'C', 'A', 'C', 'H', 'E', '\0'};
  std::uint32_t version = 1;
  std::uint32_t reserved = 0;
  std::uint64_t payload_bytes = 0;
  Sha256::Digest key{}, payload{};  // of the key, so that a renamed file is found out
};
static_assert(sizeof(FileHeader) == 88);

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // Some file systems report a full disk only here.
  bool close() {
    const int fd = std::exchange(fd_, -1);
    return fd < 0 || ::close(fd) == 0;
  }

 private:
  int fd_;
};

bool read_all(int fd, void* target, std::size_t bytes) {
  auto* out = static_cast<char*>(target);
  while (bytes > 0) {
    const ssize_t got = ::read(fd, out, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    out += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool write_all(int fd, const void* data, std::size_t bytes) {
  const auto* in = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = ::write(fd, in, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    in += put;
    bytes -= static_cast<std::size_t>(put);
  }
  return true;
}

std::string default_directory() {
  const std::string home = home_directory();
  return home.empty() ? home : home + "/.cache/backplane";
}

// What became of one file that should hold `key`.
enum class Reading { kMissing, kUnusable, kGood };

Reading read_blob(const std::string& path, std::string_view key, std::string& out_blob) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd) return errno == ELOOP ? Reading::kUnusable : Reading::kMissing;  // a link is foreign
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != ::geteuid()) {
    return Reading::kUnusable;
  }
  const auto size = static_cast<std::uint64_t>(info.st_size);
  const FileHeader expected;
  FileHeader header;
  if (size < sizeof(header) || !read_all(fd.get(), &header, sizeof(header))) {
    return Reading::kUnusable;
  }
  // The size on disk bounds what is allocated, whatever the header says.
  if (std::memcmp(header.magic, expected.magic, sizeof(header.magic)) != 0 ||
      header.version != expected.version || header.payload_bytes != size - sizeof(header) ||
      header.key != sha256(key)) {
    return Reading::kUnusable;
  }
  std::string blob(header.payload_bytes, '\0');
  if (!read_all(fd.get(), blob.data(), blob.size()) || sha256(blob) != header.payload) {
    return Reading::kUnusable;
  }
  ::futimens(fd.get(), nullptr);  // used now: the last to be trimmed
  out_blob = std::move(blob);
  return Reading::kGood;
}

}  // namespace

DiskCache* DiskCache::instance() {
  // Never destroyed: threads of plugins may still ask while the process exits.
  static DiskCache* const cache = []() -> DiskCache* {
    if (::getauxval(AT_SECURE) != 0) return nullptr;
    const char* enabled = std::getenv("BACKPLANE_CACHE");
    if (enabled != nullptr && std::string_view(enabled) == "0") return nullptr;
    const char* directory = std::getenv("BACKPLANE_CACHE_DIR");
    const bool given = directory != nullptr && directory[0] != '\0';
    auto made = std::make_unique<DiskCache>(given ? directory : default_directory());
    return made->usable() ? made.release() : nullptr;
  }();
  return cache;
}

DiskCache::DiskCache(std::string directory, std::uint64_t limit_bytes)
    : directory_(std::move(directory)), limit_bytes_(limit_bytes) {
  const std::string fault = directory_fault(directory_);
  usable_ = fault.empty();
  if (!usable_) {
    warn_once("the cache directory '" + directory_ + "' is not used: " + fault +
              "; executables are compiled anew in every process (set BACKPLANE_CACHE_DIR to a "
              "directory of your own, or BACKPLANE_CACHE=0)");
  }
}

std::string DiskCache::path_of(std::string_view key) const {
  return directory_ + "/" + sha256_hex(key) + std::string(kSuffix);
}

void DiskCache::warn_once(const std::string& text) {
  if (!warned_.exchange(true)) log(LogLevel::kWarning, text);
}

std::optional<std::string> DiskCache::get(std::string_view key) {
  if (!usable_) return std::nullopt;
  const std::string path = path_of(key);
  std::string blob;
  switch (read_blob(path, key, blob)) {
    case Reading::kMissing:
      log_topic("cache", "cache: miss " + path);
      return std::nullopt;
    case Reading::kUnusable:
      log_topic("cache", "cache: damaged, removed " + path);
      ::unlink(path.c_str());
      return std::nullopt;
    case Reading::kGood:
      break;
  }
  log_topic("cache", "cache: hit " + path);
  return blob;
}

void DiskCache::put(std::string_view key, std::string_view blob) {
  if (!usable_ || blob.size() + sizeof(FileHeader) > limit_bytes_ / 2) return;
  FileHeader header;
  header.payload_bytes = blob.size();
  header.key = sha256(key);
  header.payload = sha256(blob);

  // Aside under a name of its own, then renamed: a reader sees the old file, the new one or none.
  static std::atomic<std::uint64_t> sequence{0};
  const std::string path = path_of(key);
  const std::string aside = path + "." + std::to_string(::getpid()) + "." +
                            std::to_string(sequence.fetch_add(1)) + std::string(kAsideSuffix);
  Descriptor fd(::open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) {
    warn_once("cannot write into the cache directory '" + directory_ +
              "': " + std::strerror(errno));
    return;
  }
  const bool written = write_all(fd.get(), &header, sizeof(header)) &&
                       write_all(fd.get(), blob.data(), blob.size()) && fd.close() &&
                       ::rename(aside.c_str(), path.c_str()) == 0;
  if (!written) {
    warn_once("cannot write into the cache directory '" + directory_ +
              "': " + std::strerror(errno));
    ::unlink(aside.c_str());
    return;
  }
  log_topic("cache", "cache: put " + path + " (" + std::to_string(blob.size()) + " bytes)");
  // Looking through the directory is slow, so not after every file: at the first one, which finds
  // what earlier processes left, and then for every sixteenth of the limit.
  const std::uint64_t size = blob.size() + sizeof(header);
  const std::uint64_t before = written_bytes_.fetch_add(size);
  if (before == 0 || before + size > limit_bytes_ / 16) {
    written_bytes_.store(1);
    trim();
  }
}

void DiskCache::trim() {
  struct Entry {
    fs::path path;
    fs::file_time_type used;
    std::uint64_t bytes;
  };
  std::vector<Entry> entries;
  std::uint64_t total_bytes = 0;
  const auto now = fs::file_time_type::clock::now();
  std::error_code error;
  fs::directory_iterator it(directory_, error);
  for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code gone;  // another process may trim as well
    if (!it->is_regular_file(gone) || it->is_symlink(gone)) continue;
    const fs::file_time_type used = it->last_write_time(gone);
    const std::uint64_t bytes = it->file_size(gone);
    if (gone) continue;
    if (name.ends_with(kAsideSuffix)) {
      if (now - used > kAsideAge) fs::remove(it->path(), gone);
    } else if (name.ends_with(kSuffix)) {
      entries.push_back({it->path(), used, bytes});
      total_bytes += bytes;
    }
  }
  if (total_bytes <= limit_bytes_) return;
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.used < b.used; });
  const std::uint64_t wanted_bytes = limit_bytes_ - limit_bytes_ / 8;
  for (const Entry& entry : entries) {
    if (total_bytes <= wanted_bytes) break;
    fs::remove(entry.path, error);
    total_bytes -= entry.bytes;
  }
}

}  // namespace backplane::runtime
