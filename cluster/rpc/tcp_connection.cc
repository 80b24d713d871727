// Writing at once what fits, reading straight to where it belongs.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/rpc/tcp_connection.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "tutti/cluster/tcp/stream.h"

namespace tutti::internal {
namespace {

Handshake::Side other(Handshake::Side side) {
  return side == Handshake::Side::kClient ? Handshake::Side::kServer : Handshake::Side::kClient;
}

constexpr std::string_view kClosed = "the connection was closed";
constexpr int kReadsInARow = 32;  // then what is to be sent gets its turn
constexpr int kWritesInARow = 2;  // of 2 MiB: whoever sends leaves the rest to the thread

}  // namespace

RpcTcpConnection::RpcTcpConnection(FileDescriptor socket, const Handshake& handshake,
                                   Handshake::Side own, std::size_t longest_payload)
    : socket_(std::move(socket)),
      wake_(make_wake_event()),
      reader_(handshake.session_key(other(own)), longest_payload),
      writer_(handshake.session_key(own)) {
  keep_watch(socket_);
}

void RpcTcpConnection::wake() {
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
}

void RpcTcpConnection::close() {
  is_open_ = false;
  end_connection(socket_);
  wake();
}

void RpcTcpConnection::send(RpcFrame frame) {
  if (!is_open_) return;
  bool is_first = false;
  {
    MutexLock lock(mutex_);
    is_first = writer_.is_empty();
    writer_.push(std::move(frame));
  }
  // Behind others it goes when they have gone.
  if (is_first && flush()) wake();
}

/// Writes what fits; whether something is left to be written.
bool RpcTcpConnection::flush() {
  std::vector<RpcFrame> sent;  // ends after the lock
  MutexLock lock(mutex_);
  for (int i = 0; i < kWritesInARow && !writer_.is_empty() && is_open_; ++i) {
    const auto places = writer_.next();
    std::size_t count = 0, wanted = 0;
    for (const iovec& place : places) wanted += place.iov_len;
    // What the other side said before it left is still to be read; its end will be, too.
    if (write_now(socket_, places, count) == ByteFlow::kClosed) is_open_ = false;
    writer_.wrote(count, sent);
    if (count < wanted) break;
  }
  return !writer_.is_empty() && is_open_;
}

void RpcTcpConnection::finish(TimePoint deadline) {
  {
    MutexLock lock(mutex_);
    finish_at_ = deadline;
  }
  wake();
}

bool RpcTcpConnection::is_finished() {
  MutexLock lock(mutex_);
  if (!finish_at_) return false;
  return writer_.is_empty() || !is_open_ || Clock::system().now() >= *finish_at_;
}

/// For something to read or to write, wake() or the deadline.
void RpcTcpConnection::wait(TimePoint deadline) {
  const bool writes = flush();
  const bool reads = !reader_.waits_for_room();
  {
    MutexLock lock(mutex_);
    if (finish_at_) deadline = std::min(deadline, *finish_at_);
  }
  const auto events = static_cast<short>((reads ? POLLIN : 0) | (writes ? POLLOUT : 0));
  std::array<pollfd, 2> descriptors{{{socket_.get(), events, 0}, {wake_.get(), POLLIN, 0}}};
  (void)poll_until(descriptors, deadline);
  std::uint64_t count = 0;
  if (descriptors[1].revents != 0) (void)!::read(wake_.get(), &count, sizeof(count));
  const bool is_broken = (descriptors[0].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0;
  is_readable_ = reads && (is_broken || (descriptors[0].revents & POLLIN) != 0);
  if (is_broken && !reads) is_open_ = false;
}

/// Whether there may be more.
bool RpcTcpConnection::read_some() {
  const auto places = reader_.places();
  std::array<iovec, 2> parts{};
  std::size_t num_parts = 0, wanted = 0, count = 0;
  for (const auto& place : places) {
    if (place.empty()) continue;
    parts[num_parts++] = {place.data(), place.size()};
    wanted += place.size();
  }
  if (num_parts == 0) return false;
  if (read_now(socket_, std::span(parts).first(num_parts), count) == ByteFlow::kClosed) {
    is_open_ = false;
    if (reason_.empty()) reason_ = kClosed;
  }
  reader_.filled(count);
  return count == wanted;
}

RpcFrame RpcTcpConnection::receive(TimePoint deadline) {
  for (;;) {
    if (auto frame = reader_.next({})) return *std::move(frame);
    if (!is_open_) fail(ErrorCode::kUnavailable, reason_.empty() ? kClosed : reason_);
    if (Clock::system().now() >= deadline) fail(ErrorCode::kUnavailable, "no first words in time");
    wait(deadline);
    if (is_readable_) (void)read_some();
  }
}

std::string RpcTcpConnection::serve(const RpcReader::Lease& lease,
                                    const std::function<void(RpcFrame)>& take) {
  try {
    while (!is_finished()) {
      bool has_more = true;
      for (int i = 0; i < kReadsInARow && has_more; ++i) {
        while (auto frame = reader_.next(lease)) take(*std::move(frame));
        has_more = is_readable_ && is_open_ && read_some();
      }
      while (auto frame = reader_.next(lease)) take(*std::move(frame));
      if (!is_open_) break;
      if (!has_more) is_readable_ = false;
      wait(has_more ? TimePoint::min() : TimePoint::max());
    }
  } catch (const std::exception& damaged) {  // a new connection makes it good
    reason_ = damaged.what();
  }
  close();
  return reason_.empty() ? std::string(kClosed) : reason_;
}

}  // namespace tutti::internal
