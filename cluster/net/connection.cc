// A connection and the system; how it ends.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/net/connection.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "cluster/net/socket.h"
#include "tutti/cluster/net/job_durations.h"

namespace tutti::internal {
namespace {

constexpr Duration kSilence = durations::kLinkSilence;

std::optional<tcp_info> info_of(const FileDescriptor& socket) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (::getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return std::nullopt;
  return info;
}

}  // namespace

Connection::Connection(FileDescriptor socket, std::string peer, bool is_local, KeptBytes& kept)
    : socket_(std::move(socket)),
      peer_(std::move(peer)),
      is_local_(is_local),
      process_(is_local_ ? watch_process(peer_process(socket_).pid) : FileDescriptor()),
      kept_(kept),
      checked_at_(Clock::system().now()),
      stuck_since_(checked_at_) {
  if (!is_local_) keep_watch(socket_);
}

Connection::News Connection::move() {
  News news;
  MutexLock lock(mutex_);
  news.moved = flush_locked();
  if (!failure_) read(news);
  return news;
}

/// What is there; 0: nothing now. Throws once the peer is gone and all of its bytes were read.
std::size_t Connection::read_socket(std::span<const iovec> places) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(places.data());  // which is not changed
  message.msg_iovlen = places.size();
  const ssize_t count = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (count > 0) return static_cast<std::size_t>(count);
  if (count < 0 && is_only_later(errno)) return 0;
  const std::string reason =
      is_silent_ && is_local_ ? "its process has ended"
      : is_silent_            ? concat("nothing that was sent to it was acknowledged for ",
                                       kSilence / std::chrono::seconds(1), " s")
      : count == 0            ? "it closed the connection"
                              : concat("the connection broke (", std::strerror(errno), ")");
  tutti::fail(ErrorCode::kUnavailable, peer_, " is gone: ", reason);
}

pollfd Connection::watched() const {
  return {socket_.get(), static_cast<short>(has_bytes() ? POLLIN | POLLOUT : POLLIN), 0};
}

/// Not TCP_USER_TIMEOUT: it ends connections to peers that do not read for so long, too.
void Connection::check_silence(TimePoint now) {
  if (is_local_) {
    pollfd end{process_.get(), POLLIN, 0};
    is_silent_ = poll_until(std::span(&end, 1), TimePoint::min()) > 0;
  } else if (const auto info = info_of(socket_)) {
    const bool waits = info->tcpi_unacked > 0 && info->tcpi_bytes_acked == acked_;
    acked_ = info->tcpi_bytes_acked;
    // Time in which nobody waited says nothing.
    if (!waits || now - checked_at_ > kSilence / 2) stuck_since_ = now;
    checked_at_ = now;
    is_silent_ = now - stuck_since_ >= kSilence;
  }
  if (is_silent_) reset();
}

bool Connection::has_unsent() const {
  constexpr int kClosed = 7;  // TCP_CLOSE: reset, so nothing of it will arrive
  const auto info = info_of(socket_);
  int left = 0;
  return info && info->tcpi_state != kClosed && ::ioctl(socket_.get(), SIOCOUTQ, &left) == 0 &&
         left > 0;
}

void Connection::fail(const Error& reason) {
  MutexLock lock(mutex_);
  fail_locked(reason);
}

void Connection::fail_locked(const Error& reason) {
  is_open_ = false;
  const bool is_abort = reason.code() == ErrorCode::kAborted;
  if (!failure_ || (is_abort && failure_->code() != ErrorCode::kAborted)) failure_ = reason;
  if (reading_) {  // it will not be complete
    std::erase(messages_kept_, reading_);
    if (reading_->receiver) reading_->receiver->end(failure_);
    release_body(*reading_);
    reading_ = nullptr;
  }
  if (is_abort) {
    for (const auto& message : messages_kept_) release_body(*message);
    messages_kept_.clear();
  }
  for (const auto& receiver : receivers_) receiver->end(failure_);
  receivers_.clear();
  for (const auto& message : queue_) {
    if (!message->has_ended()) message->end(failure_);
  }
  queue_.clear();
  has_bytes_ = false;
}

void Connection::abort(const Error& reason) {
  MutexLock lock(mutex_);
  const bool tells_the_peer = is_open_;
  std::shared_ptr<Outgoing> begun;
  if (!queue_.empty() && queue_.front()->written > 0) begun = queue_.front();
  if (begun) begun->own_body();
  fail_locked(reason);
  if (!tells_the_peer) return;
  const std::string_view text = std::string_view(reason.message()).substr(0, kLongestAbortText);
  const FrameHeader header{FrameHeader::Kind::kAbort, 0, 0, text.size()};
  const auto last = std::make_shared<Outgoing>(header, std::span<const std::byte>(),
                                               std::as_bytes(std::span(text)));
  last->own_body();
  if (begun) queue_.push_back(begun);
  queue(last);
  flush_locked();
}

void Connection::close() noexcept { ::shutdown(socket_.get(), SHUT_RDWR); }

/// An end behind bytes that do not arrive would not arrive, either.
void Connection::reset() noexcept {
  sockaddr nowhere{};
  nowhere.sa_family = AF_UNSPEC;
  if (::connect(socket_.get(), &nowhere, sizeof(nowhere)) != 0) close();
}

}  // namespace tutti::internal
