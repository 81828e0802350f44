// One connection to a worker, for one call at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace backplane::runtime {

// What a call asks for: an entry of bp_plugin_api, by its name.
enum class WorkerEntry : std::uint32_t {
  kHello = 1,
  kDeviceCount,
  kDeviceDescribe,
  kDeviceOpen,
  kDeviceClose,
  kBufferCreate,
  kBufferRelease,
  kCopy,
  kClaims,
  kCompile,
  kExecutableDescribe,
  kExecutableRelease,
  kExecute,
  kShutdown,
  kDeviceCounters,
  kStreamCreate,
  kStreamRelease,
  kEventCreate,
  kEventRelease,
  kEventQuery,
  kEventWait,
  kLayoutBytes,
  kLayoutConvert,
  kExecutableWorkspace,
  kExecutableSave,
  kBlobCheck,
  kExecutableLoad,
  kProfileBegin,
  kProfileEnd,
};
std::string_view entry_name(WorkerEntry entry);

// In front of every request and of every answer.
struct FrameHead {
  std::uint64_t size_bytes = 0;  // of what follows
  WorkerEntry entry = WorkerEntry::kHello;
  std::uint32_t thread_count = 1;    // requests: of the host's pool
  std::uint32_t collects_spans = 0;  // requests: whether tracing is on
  std::uint32_t reserved = 0;
  std::uint64_t cancel_offset = 0;  // requests: a std::uint32_t in shared memory, 1: end the call
};

// A socket that owns its descriptor, and that no child of fork() holds: a worker ends when nobody
// has the other end. Not thread-safe.
class Channel {
 public:
  Channel() = default;
  explicit Channel(int fd);
  Channel(Channel&& other) noexcept;
  Channel& operator=(Channel&& other) noexcept;
  ~Channel();
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

  enum class Heard : std::uint8_t { kAll, kNothingYet, kEnd };
  bool send(const FrameHead& head, std::string_view body);
  // Waits until a frame begins, at most for what set_patience said, and then for all of it. One is
  // under way at a time, so that what comes together belongs together.
  Heard receive(FrameHead& head, std::string& body);
  void set_patience(int milliseconds);  // of receive; at first without an end

  // Over a socket that carries descriptors.
  bool send_descriptor(int fd);
  int receive_descriptor();  // -1 at the end

 private:
  friend bool make_channels(Channel& here, Channel& there);
  Channel(int fd, std::uint32_t forks) : fd_(fd), forks_(forks) {}
  int fd_ = -1;
  std::uint32_t forks_ = 0;  // fork_count() where it was opened; in a child it is closed
};

// Two connected channels. False: the process has no more descriptors.
bool make_channels(Channel& here, Channel& there);

}  // namespace backplane::runtime
