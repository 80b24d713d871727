// Reading and writing a socket that does not block.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/tcp/socket_stream.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

class SocketStream final : public ByteStream {
 public:
  SocketStream(FileDescriptor socket, std::string peer)
      : socket_(std::move(socket)), peer_(std::move(peer)) {}

  std::size_t read(std::span<const iovec> places) override {
    msghdr call = call_with(places);
    for (;;) {
      const ssize_t count = ::recvmsg(socket_.get(), &call, MSG_DONTWAIT);
      if (count > 0) return static_cast<std::size_t>(count);
      if (count == 0) {
        fail(ErrorCode::kUnavailable, "tcp: ", peer_, " is gone: it closed the connection");
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
      if (errno == EINTR) continue;
      fail(ErrorCode::kUnavailable, "tcp: ", peer_, " is gone: ", std::strerror(errno));
    }
  }

  std::optional<std::size_t> write(std::span<const iovec> parts) override {
    const msghdr call = call_with(parts);
    for (;;) {
      const ssize_t count = ::sendmsg(socket_.get(), &call, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count >= 0) return static_cast<std::size_t>(count);
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return 0;
      if (errno != EINTR) return std::nullopt;
    }
  }

  void watch(std::vector<pollfd>& descriptors, bool wants_room) const override {
    const short events = static_cast<short>(wants_room ? POLLIN | POLLOUT : POLLIN);
    descriptors.push_back({socket_.get(), events, 0});
  }
  bool on_ready(std::span<const pollfd> descriptors) override {
    return (descriptors[0].revents & ~POLLOUT) != 0;
  }

  bool has_unsent() const override {
    int left = 0;
    return ::ioctl(socket_.get(), SIOCOUTQNSD, &left) == 0 && left > 0;
  }
  void close() noexcept override { ::shutdown(socket_.get(), SHUT_RDWR); }

 private:
  static msghdr call_with(std::span<const iovec> parts) {
    msghdr call{};
    // Neither call writes to the list, msghdr cannot say so.
    call.msg_iov = const_cast<iovec*>(parts.data());
    call.msg_iovlen = parts.size();
    return call;
  }

  const FileDescriptor socket_;
  const std::string peer_;
};

}  // namespace

std::unique_ptr<ByteStream> socket_stream(FileDescriptor socket, std::string peer) {
  return std::make_unique<SocketStream>(std::move(socket), std::move(peer));
}

}  // namespace tutti::internal
