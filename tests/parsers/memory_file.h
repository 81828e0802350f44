// Bytes as a file that has a path.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace backplane::parsers {

class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* data, std::size_t size) : fd_(::memfd_create("fuzzed", 0)) {
    std::size_t written = 0;
    while (written < size) {
      const ssize_t put = ::write(fd_, data + written, size - written);
      if (put <= 0) std::abort();
      written += static_cast<std::size_t>(put);
    }
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace backplane::parsers
