// A plugin's file, opened once: what is checked, hashed and loaded is one content.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "core/base/status.h"

namespace backplane::runtime {

// Reads never leave the file. Messages complete "PLUGIN was refused: ".
class LibraryFile {
 public:
  // Regular files only; a FIFO does not block.
  static Result<LibraryFile> open(const std::string& path);
  LibraryFile(LibraryFile&& other) noexcept;
  LibraryFile& operator=(LibraryFile&& other) noexcept;
  ~LibraryFile();

  const std::string& path() const { return path_; }  // as it was given
  std::uint64_t size() const { return size_; }
  bool contains(std::uint64_t offset, std::uint64_t bytes) const {
    return offset <= size_ && bytes <= size_ - offset;
  }
  bool read(std::uint64_t offset, void* target, std::uint64_t bytes) const;
  template <class T>
  std::optional<T> read_as(std::uint64_t offset) const {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    if (!read(offset, &value, sizeof(value))) return std::nullopt;
    return value;
  }
  // `bytes` of the file, or nothing when they are not all there or absurdly many.
  std::optional<std::string> read_bytes(std::uint64_t offset, std::uint64_t bytes) const;

  bool is_writable_to_all() const { return (mode_ & 0002) != 0; }
  // "/proc/self/fd/N": the opened file, whatever its path leads to by now.
  std::string descriptor_path() const;
  Result<std::string> sha256() const;  // hex
  // Whether its bytes have that hash still. Reads them only where a time stamp changed.
  bool is_still(const std::string& sha256) const;
  // Whether `address` is mapped from this very file.
  bool is_mapped_at(const void* address) const;
  // The same bytes in memory that nobody can write to, the file's owner included.
  Result<LibraryFile> sealed_copy() const;

 private:
  // What tells a written file from one that was not; no program can set the change time back.
  struct Stamp {
    std::int64_t modified_s = 0, modified_ns = 0, changed_s = 0, changed_ns = 0;
    off_t size = 0;
    bool operator==(const Stamp&) const = default;
  };
  LibraryFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  Status read_facts();
  std::optional<Stamp> stamp_now() const;

  int fd_ = -1;
  std::string path_;
  std::uint64_t size_ = 0;
  mode_t mode_ = 0;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  Stamp stamp_;
};

}  // namespace backplane::runtime
