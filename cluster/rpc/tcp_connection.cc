// Writing at once what fits, reading straight to where it belongs.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/rpc/tcp_connection.h"

#include <sys/socket.h>
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
/// So long the thread that serves leaves its role to those who come and wait now and then.
constexpr Duration kHelpersPause = std::chrono::milliseconds(2);
constexpr std::size_t kLeastToWake = std::size_t{256} << 10;
constexpr Duration kSpin = std::chrono::microseconds(50);
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
  MutexLock lock(role_mutex_);
  has_work_ = true;
  role_changed_.notify_all();
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
    if (!can_write_) return;
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
  for (int i = 0; i < kWritesInARow && !writer_.is_empty() && can_write_; ++i) {
    const auto places = writer_.next();
    std::size_t count = 0, wanted = 0;
    for (const iovec& place : places) wanted += place.iov_len;
    // What the other side said before it left is still to be read; its end will be, too.
    if (write_now(socket_, places, count) == ByteFlow::kClosed) can_write_ = false;
    writer_.wrote(count, sent);
    if (count < wanted) break;
  }
  return !writer_.is_empty() && can_write_;
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
  return writer_.is_empty() || !can_write_ || Clock::system().now() >= *finish_at_;
}

/// In the middle of a long payload it does not pay to wake for every segment.
void RpcTcpConnection::set_least_to_wake() {
  const std::size_t left = reader_.payload_left();
  const int least = left > kLeastToWake ? static_cast<int>(kLeastToWake) : 1;
  if (least == least_to_wake_) return;
  (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVLOWAT, &least, sizeof(least));
  least_to_wake_ = least;
}

/// Small calls come and go within microseconds: waking would take longer than they do.
void RpcTcpConnection::look_or_sleep(std::span<pollfd> descriptors, TimePoint deadline) {
  const bool may_spin = deadline != TimePoint::min() && least_to_wake_ == 1;
  const auto has_news = [&] { return poll_until(descriptors, TimePoint::min()) != 0; };
  if (may_spin && spin_for(kSpin, habit_, has_news)) return;
  (void)poll_until(descriptors, deadline);
}

/// For something to read or to write, wake() or the deadline.
void RpcTcpConnection::wait(TimePoint deadline) {
  const bool writes = flush();
  const bool reads = !reader_.waits_for_room();
  if (reads) set_least_to_wake();
  {
    MutexLock lock(mutex_);
    if (finish_at_) deadline = std::min(deadline, *finish_at_);
  }
  const auto events = static_cast<short>((reads ? POLLIN : 0) | (writes ? POLLOUT : 0));
  std::array<pollfd, 2> descriptors{{{socket_.get(), events, 0}, {wake_.get(), POLLIN, 0}}};
  look_or_sleep(descriptors, deadline);
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

/// False: the connection has ended.
bool RpcTcpConnection::step(TimePoint deadline) {
  try {
    wait(has_more_ ? TimePoint::min() : deadline);
    has_more_ = true;
    for (int i = 0; i < kReadsInARow && has_more_; ++i) {
      while (auto frame = reader_.next(lease_)) take_(*std::move(frame));
      has_more_ = is_readable_ && is_open_ && read_some();
    }
    while (auto frame = reader_.next(lease_)) take_(*std::move(frame));
  } catch (const std::exception& damaged) {  // a new connection makes it good
    reason_ = damaged.what();
    is_open_ = false;
  }
  return is_open_;
}

std::string RpcTcpConnection::serve(const RpcReader::Lease& lease,
                                    const std::function<void(RpcFrame)>& take) {
  lease_ = lease;
  take_ = take;
  {
    MutexLock lock(role_mutex_);
    is_served_ = is_taken_ = true;
  }
  while (is_open_ && !is_finished() && step(TimePoint::max())) make_way();
  close();
  MutexLock lock(role_mutex_);
  is_served_ = is_taken_ = false;
  role_changed_.notify_all();
  return reason_.empty() ? std::string(kClosed) : reason_;
}

/// Leaves the role to those who wait for answers, as long as there are some now and then.
void RpcTcpConnection::make_way() {
  MutexLock lock(role_mutex_);
  if (num_helpers_ == 0) return;
  is_taken_ = has_work_ = false;
  role_changed_.notify_all();
  const auto has_work = [this]() TUTTI_REQUIRES(role_mutex_) { return has_work_; };
  for (bool was_taken = false;;) {
    had_helpers_ = false;
    if (role_changed_.wait_for(role_mutex_, kHelpersPause, has_work)) break;
    if (!is_taken_ && num_helpers_ == 0 && !had_helpers_) break;
    is_asleep_ = is_taken_ && was_taken && !had_helpers_;  // somebody waits for long
    if (is_asleep_) {
      role_changed_.wait_until(role_mutex_, TimePoint::max(), [this]() TUTTI_REQUIRES(role_mutex_) {
        return has_work_ || !is_taken_;
      });
    }
    is_asleep_ = false;
    was_taken = is_taken_;
  }
  role_changed_.wait_until(role_mutex_, TimePoint::max(),
                           [this]() TUTTI_REQUIRES(role_mutex_) { return !is_taken_; });
  is_taken_ = true;
}

/// Whether this thread has the role now.
bool RpcTcpConnection::take_role(TimePoint deadline, const std::function<bool()>& is_done) {
  MutexLock lock(role_mutex_);
  if (!is_served_ || !is_open_) return false;
  ++num_helpers_;
  if (is_taken_ && num_helpers_ == 1) {  // by serve(), in poll()
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof(one));
  }
  role_changed_.wait_until(role_mutex_, deadline, [&]() TUTTI_REQUIRES(role_mutex_) {
    return !is_served_ || !is_taken_ || is_done();
  });
  // One that has broken is left to serve(): nothing would end a wait for bytes of it.
  const bool takes = is_served_ && is_open_ && !is_taken_ && !is_done();
  if (takes) is_taken_ = true;
  if (!takes) --num_helpers_;
  return takes;
}

void RpcTcpConnection::serve_until(TimePoint deadline, const std::function<bool()>& is_done) {
  if (!take_role(deadline, is_done)) return;
  bool goes_on = true;
  while (goes_on && !is_done() && Clock::system().now() < deadline && !is_finished()) {
    goes_on = step(deadline);
    MutexLock lock(role_mutex_);
    if (num_helpers_ > 1) role_changed_.notify_all();  // their answers may have come
  }
  MutexLock lock(role_mutex_);
  is_taken_ = false;
  --num_helpers_;
  had_helpers_ = true;
  has_work_ = has_work_ || !goes_on || has_more_;
  if (has_work_ || is_asleep_ || num_helpers_ > 0) role_changed_.notify_all();
}

}  // namespace tutti::internal
