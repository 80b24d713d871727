// The system's calls behind a stream.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/net/tcp_stream.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

bool is_only_later(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR || error == ENOBUFS;
}

class TcpStream final : public ByteStream {
 public:
  TcpStream(FileDescriptor socket, std::string peer)
      : socket_(std::move(socket)), peer_(std::move(peer)) {
    keep_watch(socket_);
  }

  std::size_t read(std::span<const iovec> places) override {
    msghdr message = message_of(places);
    const ssize_t count = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
    if (count > 0) return static_cast<std::size_t>(count);
    if (count < 0 && is_only_later(errno)) return 0;
    fail(ErrorCode::kUnavailable, "tcp: ", peer_, " is gone: ",
         count == 0 ? "it closed the connection"
                    : concat("the connection broke (", std::strerror(errno), ")"));
  }

  std::optional<std::size_t> write(std::span<const iovec> parts) override {
    const msghdr message = message_of(parts);
    const ssize_t count = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) return static_cast<std::size_t>(count);
    if (is_only_later(errno)) return 0;
    return std::nullopt;
  }

  void watch(std::vector<pollfd>& descriptors, bool wants_room) const override {
    descriptors.push_back(
        {socket_.get(), static_cast<short>(wants_room ? POLLIN | POLLOUT : POLLIN), 0});
  }

  bool has_unsent() const override {
    int left = 0;
    return ::ioctl(socket_.get(), SIOCOUTQ, &left) == 0 && left > 0;
  }

  void close() noexcept override { ::shutdown(socket_.get(), SHUT_RDWR); }

 private:
  static msghdr message_of(std::span<const iovec> places) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(places.data());  // which is not changed
    message.msg_iovlen = places.size();
    return message;
  }

  const FileDescriptor socket_;
  const std::string peer_;
};

}  // namespace

std::unique_ptr<ByteStream> tcp_stream(FileDescriptor socket, std::string peer) {
  return std::make_unique<TcpStream>(std::move(socket), std::move(peer));
}

}  // namespace tutti::internal
