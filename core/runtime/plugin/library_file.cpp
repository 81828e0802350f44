#include "core/runtime/plugin/library_file.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <utility>

#include "core/runtime/host/sha256.h"

#ifndef MFD_EXEC  // Linux 6.3
#define MFD_EXEC 0x0010U
#endif

namespace backplane::runtime {

namespace {

constexpr std::uint64_t kReadLimit = std::uint64_t{1} << 30;
constexpr std::size_t kChunk = std::size_t{1} << 20;

Status bad(std::string text) { return {Code::kInvalidArgument, std::move(text)}; }
Status shrunk() { return bad("the file changed while it was read; start again"); }

std::string error_text(const std::string& what) { return what + " (" + std::strerror(errno) + ")"; }

Status for_each_chunk(const LibraryFile& file,
                      const std::function<Status(std::string_view)>& take) {
  std::string chunk(std::min<std::uint64_t>(file.size(), kChunk), '\0');
  for (std::uint64_t at = 0; at < file.size(); at += chunk.size()) {
    chunk.resize(std::min<std::uint64_t>(file.size() - at, kChunk));
    if (!file.read(at, chunk.data(), chunk.size())) return shrunk();
    BP_RETURN_IF_ERROR(take(chunk));
  }
  return {};
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(done));
  }
  return true;
}

// "DEVICE INODE" of the file mapped at an address, as the kernel names it there: stat() of a file
// in an overlay answers another pair. Empty where nothing is mapped or /proc cannot be read.
std::string mapped_file(std::uintptr_t address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    char device[32] = {};
    unsigned long inode = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %*s %31s %lu", &begin, &end, device, &inode) == 4 &&
        address >= begin && address < end)
      return std::string(device) + " " + std::to_string(inode);
  }
  return {};
}

int make_memory_file(const std::string& name) {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int fd = ::memfd_create(name.c_str(), flags | MFD_EXEC);
  return fd < 0 && errno == EINVAL ? ::memfd_create(name.c_str(), flags) : fd;  // before 6.3
}

}  // namespace

Result<LibraryFile> LibraryFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const Code code = errno == ENOENT ? Code::kNotFound : Code::kInvalidArgument;
    return Status(code, error_text("it cannot be opened"));
  }
  LibraryFile file(fd, path);
  BP_RETURN_IF_ERROR(file.read_facts());
  return file;
}

LibraryFile::LibraryFile(LibraryFile&& other) noexcept { *this = std::move(other); }

LibraryFile& LibraryFile::operator=(LibraryFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  size_ = other.size_;
  mode_ = other.mode_;
  device_ = other.device_;
  inode_ = other.inode_;
  stamp_ = other.stamp_;
  return *this;
}

LibraryFile::~LibraryFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status LibraryFile::read_facts() {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) return bad("its size cannot be read");
  if (S_ISDIR(info.st_mode)) return bad("it is a directory; expected a shared library (.so)");
  if (!S_ISREG(info.st_mode)) return bad("it is not a regular file");
  size_ = static_cast<std::uint64_t>(info.st_size);
  mode_ = info.st_mode;
  device_ = info.st_dev;
  inode_ = info.st_ino;
  stamp_ = stamp_now().value_or(Stamp());
  return {};
}

std::optional<LibraryFile::Stamp> LibraryFile::stamp_now() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) return std::nullopt;
  return Stamp{info.st_mtim.tv_sec, info.st_mtim.tv_nsec, info.st_ctim.tv_sec, info.st_ctim.tv_nsec,
               info.st_size};
}

bool LibraryFile::read(std::uint64_t offset, void* target, std::uint64_t bytes) const {
  if (!contains(offset, bytes)) return false;
  auto* out = static_cast<char*>(target);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_, out, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;  // shrunk since fstat
    out += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::uint64_t>(got);
  }
  return true;
}

std::optional<std::string> LibraryFile::read_bytes(std::uint64_t offset,
                                                   std::uint64_t bytes) const {
  if (bytes > kReadLimit || !contains(offset, bytes)) return std::nullopt;
  std::string data(bytes, '\0');
  if (!read(offset, data.data(), bytes)) return std::nullopt;
  return data;
}

std::string LibraryFile::descriptor_path() const { return "/proc/self/fd/" + std::to_string(fd_); }

Result<std::string> LibraryFile::sha256() const {
  Sha256 hash;
  BP_RETURN_IF_ERROR(for_each_chunk(*this, [&](std::string_view chunk) {
    hash.update(chunk);
    return Status();
  }));
  return to_hex(hash.finish());
}

bool LibraryFile::is_still(const std::string& sha256) const {
  const std::optional<Stamp> now = stamp_now();
  if (!now || now->size != stamp_.size) return false;
  if (*now == stamp_) return true;
  const Result<std::string> hash = this->sha256();  // a new name or mode changes stamps as well
  return hash.ok() && *hash == sha256;
}

bool LibraryFile::is_mapped_at(const void* address) const {
  const std::string there = mapped_file(reinterpret_cast<std::uintptr_t>(address));
  if (there.empty()) {  // no /proc: whether the path leads to this file still
    struct stat info {};
    return ::stat(path_.c_str(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_;
  }
  void* const page = ::mmap(nullptr, 1, PROT_READ, MAP_PRIVATE, fd_, 0);
  if (page == MAP_FAILED) return false;
  const std::string here = mapped_file(reinterpret_cast<std::uintptr_t>(page));
  ::munmap(page, 1);
  return here == there;
}

Result<LibraryFile> LibraryFile::sealed_copy() const {
  const int fd = make_memory_file(std::filesystem::path(path_).filename().string().substr(0, 200));
  if (fd < 0)
    return bad(error_text("the load policy wants a copy in memory, and there is none to have"));
  LibraryFile copy(fd, path_);
  BP_RETURN_IF_ERROR(for_each_chunk(*this, [&](std::string_view chunk) {
    return write_all(fd, chunk) ? Status() : bad(error_text("it cannot be copied to memory"));
  }));
  if (::fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0)
    return bad(error_text("its copy in memory cannot be sealed"));
  BP_RETURN_IF_ERROR(copy.read_facts());
  return copy;
}

}  // namespace backplane::runtime
