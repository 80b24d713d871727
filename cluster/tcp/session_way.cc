// Connecting again, step by step, without waiting.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/tcp/session_way.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

using namespace std::chrono_literals;

constexpr Duration kFirstPause = 5ms;
constexpr Duration kLongestPause = 100ms;
constexpr Duration kConnecting = 1s;
constexpr Duration kAnswering = 2s;
// A listener that is gone refuses each time; a full one never does.
constexpr int kRefusalsOfTheDead = 3;

}  // namespace

SessionWay::SessionWay(SessionParts parts)
    : hub_(std::move(parts.hub)),
      peer_(parts.peer),
      endpoint_(std::move(parts.endpoint)),
      patience_(parts.patience),
      socket_(std::move(parts.socket)) {
  keep_watch(socket_);
}

void SessionWay::lose(const std::string& why) {
  if (state_ == State::kGone) return;
  socket_ = FileDescriptor();
  state_ = State::kDown;
  why_ = why;
  again_ = alive_at_ = Clock::system().now();
  pause_ = kFirstPause;
  times_refused_ = 0;
}

std::optional<std::uint64_t> SessionWay::step(std::uint64_t received) {
  if (is_gone()) return std::nullopt;
  hub_->look();
  if (const auto taken = take_arrival(received)) return taken;
  if (is_up()) return std::nullopt;
  return step_once(received, Clock::system().now());
}

std::optional<std::uint64_t> SessionWay::take_arrival(std::uint64_t received) {
  std::optional<SessionHub::Arrival> arrival = hub_->take(peer_);
  if (!arrival || connects()) return std::nullopt;
  const auto answer = encode(Resumed{received});
  socket_ = std::move(arrival->socket);
  keep_watch(socket_);
  // So few bytes fit a new connection; one that has broken already shows when it is read.
  if (!arrival->is_first) {
    (void)!::send(socket_.get(), answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  state_ = State::kUp;
  return arrival->received;
}

std::optional<std::uint64_t> SessionWay::step_once(std::uint64_t received, TimePoint now) {
  if (state_ == State::kDown && now >= again_) begin(now);
  if (state_ == State::kConnecting) finish_connecting(received, now);
  if (state_ == State::kAnswering) return read_answer(now);
  return std::nullopt;
}

void SessionWay::begin(TimePoint now) {
  socket_ = start_connecting(endpoint_);
  if (!socket_.is_open()) return fail_attempt(Failure::kRefused, now);
  state_ = State::kConnecting;
  again_ = deadline_after(now, kConnecting);
}

void SessionWay::finish_connecting(std::uint64_t received, TimePoint now) {
  pollfd ready{socket_.get(), POLLOUT, 0};
  if (::poll(&ready, 1, 0) <= 0) {
    if (now >= again_) fail_attempt(Failure::kOther, now);
    return;
  }
  if (const int error = connect_result(socket_); error != 0) {
    return fail_attempt(error == ECONNREFUSED ? Failure::kRefused : Failure::kOther, now);
  }
  times_refused_ = 0;
  if (!connects()) {  // it was to know whether the peer lives
    alive_at_ = now;
    socket_ = FileDescriptor();
    state_ = State::kDown;
    again_ = deadline_after(now, kLongestPause);
    return;
  }
  const Resume resume{
      {hub_->rank(), peer_, hub_->size(), hub_->nonce(hub_->rank()), hub_->nonce(peer_)}, received};
  const auto bytes = encode(resume);
  if (::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
      static_cast<ssize_t>(bytes.size())) {
    return fail_attempt(Failure::kOther, now);
  }
  state_ = State::kAnswering;
  answered_ = 0;
  again_ = deadline_after(now, kAnswering);
}

std::optional<std::uint64_t> SessionWay::read_answer(TimePoint now) {
  while (answered_ < answer_.size()) {
    const ssize_t count =
        ::recv(socket_.get(), answer_.data() + answered_, answer_.size() - answered_, MSG_DONTWAIT);
    if (count > 0) {
      answered_ += static_cast<std::size_t>(count);
    } else if (count < 0 && errno == EINTR) {
      continue;
    } else if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (now < again_) return std::nullopt;
      alive_at_ = now;  // somebody listens, and is busy
      fail_attempt(Failure::kOther, now);
      return std::nullopt;
    } else {
      fail_attempt(Failure::kOther, now);
      return std::nullopt;
    }
  }
  try {
    const Resumed resumed = decode_resumed(answer_);
    keep_watch(socket_);
    state_ = State::kUp;
    return resumed.received;
  } catch (const Error& error) {
    why_ = error.message();
    fail_attempt(Failure::kOther, now);
    return std::nullopt;
  }
}

void SessionWay::fail_attempt(Failure failure, TimePoint now) {
  socket_ = FileDescriptor();
  state_ = State::kDown;
  times_refused_ = failure == Failure::kRefused ? times_refused_ + 1 : 0;
  if (times_refused_ == kRefusalsOfTheDead) return end("nobody listens at its address any more");
  if (now - alive_at_ >= patience_) {
    return end(concat("it could not be reached for ",
                      std::chrono::duration<double>(patience_).count(), " s"));
  }
  again_ = deadline_after(now, pause_);
  pause_ = std::min(2 * pause_, kLongestPause);
}

void SessionWay::end(const std::string& why) {
  state_ = State::kGone;
  reason_ = concat(" is gone: the connection broke (", why_, "), and ", why);
}

void SessionWay::watch(std::vector<pollfd>& descriptors, bool wants_room) const {
  if (state_ == State::kDown || state_ == State::kGone) return;
  const bool to_write = state_ == State::kConnecting || (is_up() && wants_room);
  descriptors.push_back(
      {socket_.get(), static_cast<short>(to_write ? POLLIN | POLLOUT : POLLIN), 0});
}

bool SessionWay::has_unsent() const {
  int left = 0;
  return is_up() && ::ioctl(socket_.get(), SIOCOUTQNSD, &left) == 0 && left > 0;
}

void SessionWay::close() noexcept {
  if (is_up()) ::shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace tutti::internal
