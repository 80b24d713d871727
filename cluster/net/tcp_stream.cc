// The system's calls behind a stream.
// SPDX-License-Identifier: Apache-2.0
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "tutti/cluster/net/byte_stream.h"
#include "tutti/cluster/net/durations.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

constexpr Duration kSilence = durations::kLinkSilence;

std::optional<tcp_info> info_of(const FileDescriptor& socket) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (::getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return std::nullopt;
  return info;
}

bool is_only_later(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR || error == ENOBUFS;
}

class TcpStream final : public ByteStream {
 public:
  TcpStream(FileDescriptor socket, std::string peer)
      : ByteStream(std::move(peer)), socket_(std::move(socket)) {
    keep_watch(socket_);
  }

  std::size_t read(std::span<const iovec> places) override {
    msghdr message = message_of(places);
    const ssize_t count = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
    if (count > 0) return static_cast<std::size_t>(count);
    if (count < 0 && is_only_later(errno)) return 0;
    if (is_silent_) {
      fail(ErrorCode::kUnavailable, peer(), " is gone: nothing that was sent to it was ",
           "acknowledged for ", kSilence / std::chrono::seconds(1), " s");
    }
    fail(ErrorCode::kUnavailable, peer(), " is gone: ",
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

  /// Not TCP_USER_TIMEOUT: it ends connections to peers that do not read for so long, too.
  void check_silence(TimePoint now) override {
    const auto info = info_of(socket_);
    if (!info) return;
    const bool waits = info->tcpi_unacked > 0 && info->tcpi_bytes_acked == acked_;
    acked_ = info->tcpi_bytes_acked;
    // Time in which nobody waited says nothing.
    if (!waits || now - checked_at_ > kSilence / 2) stuck_since_ = now;
    checked_at_ = now;
    if (now - stuck_since_ < kSilence) return;
    is_silent_ = true;
    reset();
  }

  bool has_unsent() const override {
    constexpr int kClosed = 7;  // TCP_CLOSE: reset, so nothing of it will arrive
    const auto info = info_of(socket_);
    int left = 0;
    return info && info->tcpi_state != kClosed && ::ioctl(socket_.get(), SIOCOUTQ, &left) == 0 &&
           left > 0;
  }

  void close() noexcept override { ::shutdown(socket_.get(), SHUT_RDWR); }

  /// An end behind bytes that do not arrive would not arrive, either.
  void reset() noexcept override {
    sockaddr nowhere{};
    nowhere.sa_family = AF_UNSPEC;
    if (::connect(socket_.get(), &nowhere, sizeof(nowhere)) != 0) close();
  }

 private:
  static msghdr message_of(std::span<const iovec> places) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(places.data());  // which is not changed
    message.msg_iovlen = places.size();
    return message;
  }

  const FileDescriptor socket_;
  // Of the thread that looks for silence.
  std::uint64_t acked_ = 0;
  TimePoint checked_at_ = Clock::system().now(), stuck_since_ = checked_at_;
  std::atomic<bool> is_silent_{false};
};

}  // namespace

std::unique_ptr<ByteStream> tcp_stream(FileDescriptor socket, std::string peer) {
  return std::make_unique<TcpStream>(std::move(socket), std::move(peer));
}

}  // namespace tutti::internal
