#include "core/runtime/isolate/channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace backplane::runtime {

namespace {

constexpr std::uint64_t kBodyLimit = std::uint64_t{1} << 36;

bool receive_all(int fd, void* memory, std::size_t size) {
  auto* at = static_cast<char*>(memory);
  while (size != 0) {
    const ssize_t got = ::recv(fd, at, size, 0);
    if (got == 0 || (got < 0 && errno != EINTR)) return false;
    if (got < 0) continue;
    at += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
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

Channel::Channel(Channel&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Channel& Channel::operator=(Channel&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Channel::~Channel() {
  if (fd_ >= 0) ::close(fd_);
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

Channel::Heard Channel::receive(FrameHead& head, std::string& body, int timeout_ms) {
  pollfd wanted{fd_, POLLIN, 0};
  const int found = ::poll(&wanted, 1, timeout_ms);
  if (found == 0 || (found < 0 && errno == EINTR)) return Heard::kNothingYet;
  if (found < 0 || !receive_all(fd_, &head, sizeof head) || head.size_bytes > kBodyLimit)
    return Heard::kEnd;
  body.resize(head.size_bytes);
  return receive_all(fd_, body.data(), body.size()) ? Heard::kAll : Heard::kEnd;
}

bool Channel::send_descriptor(int fd) {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(fd_, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == 1;
}

int Channel::receive_descriptor() {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  const cmsghdr* const head = got == 1 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (head == nullptr || head->cmsg_type != SCM_RIGHTS) return -1;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(head), sizeof fd);
  return fd;
}

bool make_channels(Channel& here, Channel& there) {
  std::array<int, 2> pair{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) return false;
  here = Channel(pair[0]);
  there = Channel(pair[1]);
  return true;
}

}  // namespace backplane::runtime
