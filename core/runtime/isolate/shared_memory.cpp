#include "core/runtime/isolate/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace backplane::runtime {

namespace {

constexpr std::uint64_t kSmallestBytes = std::uint64_t{4} << 30;
constexpr std::uint64_t kKeptBytes = std::uint64_t{16} << 20;  // blocks up to this keep their pages

Status no_memory(const std::string& what) {
  return {Code::kOutOfMemory, what + ": " + std::strerror(errno)};
}

}  // namespace

Result<SharedMapping> SharedMapping::map(int fd, std::uint64_t bytes) {
  SharedMapping made;
  made.fd_ = fd;
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED)
    return no_memory("cannot map " + std::to_string(bytes) + " bytes of shared memory");
  // A core file of either process would have all of it.
  static_cast<void>(::madvise(memory, bytes, MADV_DONTDUMP));
  made.data_ = static_cast<char*>(memory);
  made.bytes_ = bytes;
  return made;
}

SharedMapping::SharedMapping(SharedMapping&& other) noexcept { *this = std::move(other); }

SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedMapping::~SharedMapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
  if (fd_ >= 0) ::close(fd_);
}

SharedMemory::SharedMemory(SharedMapping mapping) : mapping_(std::move(mapping)) {
  free_[0] = mapping_.bytes();
}

Result<std::unique_ptr<SharedMemory>> SharedMemory::create() {
  const int fd = ::memfd_create("backplane", MFD_CLOEXEC);
  if (fd < 0) return no_memory("no shared memory");
  const auto pages = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES));
  const std::uint64_t bytes = std::max(2 * pages * kAlignment, kSmallestBytes);
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    Status status = no_memory("no shared memory of " + std::to_string(bytes) + " bytes");
    ::close(fd);
    return status;
  }
  BP_ASSIGN_OR_RETURN(SharedMapping mapping, SharedMapping::map(fd, bytes));
  return std::unique_ptr<SharedMemory>(new SharedMemory(std::move(mapping)));
}

Result<std::uint64_t> SharedMemory::take(std::uint64_t bytes) {
  const std::uint64_t wanted =
      bytes > mapping_.bytes()
          ? bytes
          : (std::max<std::uint64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  const std::lock_guard lock(mutex_);
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [offset, size] = *it;
    if (size < wanted) continue;
    free_.erase(it);
    if (size > wanted) free_[offset + wanted] = size - wanted;
    taken_[offset] = wanted;
    return offset;
  }
  return Status(Code::kOutOfMemory,
                "no " + std::to_string(bytes) + " bytes of shared memory are left");
}

void SharedMemory::give(std::uint64_t offset) {
  const std::lock_guard lock(mutex_);
  const auto found = taken_.find(offset);
  if (found == taken_.end()) return;
  std::uint64_t size = found->second;
  taken_.erase(found);
  if (size > kKeptBytes)
    static_cast<void>(::fallocate(mapping_.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                  static_cast<off_t>(offset), static_cast<off_t>(size)));
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + size == next->first) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  free_[offset] = size;
}

SharedBlock::SharedBlock(SharedBlock&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)), offset_(other.offset_) {}

SharedBlock& SharedBlock::operator=(SharedBlock&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(offset_, other.offset_);
  return *this;
}

SharedBlock::~SharedBlock() {
  if (memory_ != nullptr) memory_->give(offset_);
}

Result<SharedBlock> take_block(SharedMemory& memory, std::uint64_t bytes) {
  BP_ASSIGN_OR_RETURN(const std::uint64_t offset, memory.take(bytes));
  return SharedBlock(&memory, offset);
}

}  // namespace backplane::runtime
