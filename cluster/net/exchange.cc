// Descriptors in messages of a local socket (SCM_RIGHTS).
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/net/exchange.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

union Control {  // cmsghdr wants its alignment
  cmsghdr header;
  std::array<char, CMSG_SPACE(sizeof(int))> bytes;
};

/// The descriptor of a received message, if it has one.
FileDescriptor descriptor_in(msghdr& message) {
  cmsghdr* const first = CMSG_FIRSTHDR(&message);
  if (first == nullptr || first->cmsg_level != SOL_SOCKET || first->cmsg_type != SCM_RIGHTS ||
      first->cmsg_len != CMSG_LEN(sizeof(int))) {
    return FileDescriptor();
  }
  int number = -1;
  std::memcpy(&number, CMSG_DATA(first), sizeof(number));
  return FileDescriptor(number);
}

}  // namespace

void send_segment(const FileDescriptor& socket, const Segment& own, const std::string& peer) {
  auto bytes = encode(own.layout());
  iovec part{bytes.data(), bytes.size()};
  Control control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  const int number = own.file().get();
  std::memcpy(CMSG_DATA(rights), &number, sizeof(number));
  // So few bytes always fit a new connection.
  if (::sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) !=
      static_cast<ssize_t>(bytes.size())) {
    fail(ErrorCode::kUnavailable, "shm: ", peer, " is gone: ", std::strerror(errno));
  }
}

std::shared_ptr<Segment> receive_segment(const FileDescriptor& socket, int peer_rank, int size,
                                         const std::string& peer, TimePoint deadline,
                                         const Interruption* interruption) {
  std::array<std::byte, kLayoutBytes> bytes{};
  Control control{};
  FileDescriptor file;
  for (std::size_t filled = 0; filled < bytes.size();) {
    pollfd ready{socket.get(), POLLIN, 0};
    if (poll_unless_interrupted(ready, deadline, interruption) <= 0 &&
        Clock::system().now() >= deadline) {
      fail(ErrorCode::kDeadlineExceeded, "shm: ", peer, " has not sent its segment in time");
    }
    iovec part{bytes.data() + filled, bytes.size() - filled};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    const ssize_t count = ::recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count <= 0) {
      fail(ErrorCode::kUnavailable, "shm: ", peer, " is gone before it has sent its segment");
    }
    if (!file.is_open()) file = descriptor_in(message);
    filled += static_cast<std::size_t>(count);
  }
  const SegmentLayout layout = decode_layout(bytes);
  if (!file.is_open() || layout.rank != peer_rank || layout.size != size) {
    fail(ErrorCode::kDataLoss, "shm: ", peer, ": expected the segment of rank ", peer_rank, " of ",
         size, ", got that of rank ", layout.rank, " of ", layout.size,
         file.is_open() ? "" : " without its descriptor");
  }
  return std::make_shared<Segment>(layout, std::move(file));
}

}  // namespace tutti::internal
