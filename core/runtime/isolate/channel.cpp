#include "core/runtime/isolate/channel.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "core/base/fork.h"

namespace backplane::runtime {

namespace {

constexpr std::size_t kAtOnce = 4096;
constexpr std::uint64_t kBodyLimit = std::uint64_t{1} << 36;

// Descriptors of all channels.
struct Descriptors {
  std::mutex mutex;
  std::vector<int> open;
};
void close_descriptors(void* inherited) {
  auto& all = *static_cast<Descriptors*>(inherited);
  for (const int one : all.open) ::close(one);
  all.open.clear();
}
Descriptors& descriptors() {
  static Descriptors* const kept = [] {
    auto* const made = new Descriptors;
    hold_over_fork(made->mutex, ForkRank::kLeaf, close_descriptors, made);
    return made;
  }();
  return *kept;
}

bool receive_all(int fd, void* memory, std::size_t size) {
  auto* at = static_cast<char*>(memory);
  while (size != 0) {
    const ssize_t got = ::recv(fd, at, size, 0);
    if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) return false;
    if (got < 0) continue;
    at += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

// One byte with room for a descriptor beside it.
struct DescriptorMessage {
  DescriptorMessage() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;

  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
};

// Until it is not interrupted.
template <class Call>
ssize_t whole(Call&& call) {
  ssize_t result = 0;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

}  // namespace

std::string_view entry_name(WorkerEntry entry) {
  constexpr std::array<std::string_view, 29> kNames{"load",
                                                    "device_count",
                                                    "device_describe",
                                                    "device_open",
                                                    "device_close",
                                                    "buffer_create",
                                                    "buffer_release",
                                                    "copy",
                                                    "claims",
                                                    "compile",
                                                    "executable_describe",
                                                    "executable_release",
                                                    "execute",
                                                    "shutdown",
                                                    "device_counters",
                                                    "stream_create",
                                                    "stream_release",
                                                    "event_create",
                                                    "event_release",
                                                    "event_query",
                                                    "event_wait",
                                                    "layout_bytes",
                                                    "layout_convert",
                                                    "executable_workspace",
                                                    "executable_save",
                                                    "blob_check",
                                                    "executable_load",
                                                    "profile_begin",
                                                    "profile_end"};
  const auto index = static_cast<std::size_t>(entry) - 1;
  return index < kNames.size() ? kNames[index] : "an unknown entry";
}

Channel::Channel(int fd) : Channel(fd, fork_count()) {
  if (fd_ < 0) return;
  const std::lock_guard lock(descriptors().mutex);
  descriptors().open.push_back(fd_);
}

Channel::Channel(Channel&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), forks_(other.forks_) {}

Channel& Channel::operator=(Channel&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(forks_, other.forks_);
  return *this;
}

Channel::~Channel() {
  if (fd_ < 0 || forks_ != fork_count()) return;
  const std::lock_guard lock(descriptors().mutex);
  std::erase(descriptors().open, fd_);
  ::close(fd_);
}

bool Channel::send(const FrameHead& head, std::string_view body) {
  FrameHead first = head;
  first.size_bytes = body.size();
  std::array<iovec, 2> parts{
      {{&first, sizeof first}, {const_cast<char*>(body.data()), body.size()}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  while (parts[0].iov_len + parts[1].iov_len != 0) {
    const ssize_t sent = ::sendmsg(fd_, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    auto left = static_cast<std::size_t>(sent);
    for (iovec& part : parts) {
      const std::size_t taken = std::min(left, part.iov_len);
      part.iov_base = static_cast<char*>(part.iov_base) + taken;
      part.iov_len -= taken;
      left -= taken;
    }
  }
  return true;
}

Channel::Heard Channel::receive(FrameHead& head, std::string& body) {
  std::array<char, kAtOnce> first;  // most frames as a whole: one question to the system
  const ssize_t got = ::recv(fd_, first.data(), first.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Heard::kNothingYet;
  if (got <= 0) return Heard::kEnd;
  const auto size = static_cast<std::size_t>(got);
  std::memcpy(&head, first.data(), std::min(size, sizeof head));
  if (size < sizeof head &&
      !receive_all(fd_, reinterpret_cast<char*>(&head) + size, sizeof head - size))
    return Heard::kEnd;
  if (head.size_bytes > kBodyLimit) return Heard::kEnd;
  body.resize(head.size_bytes);
  const std::size_t had = size - std::min(size, sizeof head);
  if (had > body.size()) return Heard::kEnd;
  std::memcpy(body.data(), first.data() + sizeof head, had);
  return receive_all(fd_, body.data() + had, body.size() - had) ? Heard::kAll : Heard::kEnd;
}

void Channel::set_patience(int milliseconds) {
  const timeval wait{milliseconds / 1000, milliseconds % 1000 * 1000};
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
}

bool Channel::send_descriptor(int fd) {
  DescriptorMessage message;
  cmsghdr* const head = CMSG_FIRSTHDR(&message.header);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
  return whole([&] { return ::sendmsg(fd_, &message.header, MSG_NOSIGNAL); }) == 1;
}

int Channel::receive_descriptor() {
  DescriptorMessage message;
  const ssize_t got = whole([&] { return ::recvmsg(fd_, &message.header, MSG_CMSG_CLOEXEC); });
  const cmsghdr* const head = got == 1 ? CMSG_FIRSTHDR(&message.header) : nullptr;
  if (head == nullptr || head->cmsg_type != SCM_RIGHTS) return -1;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(head), sizeof fd);
  return fd;
}

bool make_channels(Channel& here, Channel& there) {
  std::array<int, 2> pair{};
  {
    // A child comes before they are open or when they are known.
    const std::lock_guard lock(descriptors().mutex);
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) return false;
    descriptors().open.insert(descriptors().open.end(), pair.begin(), pair.end());
  }
  here = Channel(pair[0], fork_count());
  there = Channel(pair[1], fork_count());
  return true;
}

}  // namespace backplane::runtime
