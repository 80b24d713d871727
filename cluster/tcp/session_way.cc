// Connecting again, step by step, without waiting.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/tcp/session_way.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tutti/cluster/tcp/stream.h"
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

SessionWay::SessionWay(const SessionParts& parts, std::size_t number, FileDescriptor socket,
                       PeerSigns& signs)
    : hub_(parts.hub),
      peer_(parts.peer),
      number_(number),
      endpoint_(parts.endpoint),
      patience_(parts.patience),
      signs_(signs),
      again_(Clock::system().now()),
      pause_(kFirstPause) {
  if (socket.is_open()) come_up(std::move(socket));
}

void SessionWay::come_up(FileDescriptor socket) {
  socket_ = std::move(socket);
  keep_watch(socket_);
  if (!is_up()) ++signs_.num_up;
  state_ = State::kUp;
  is_new_ = false;
}

void SessionWay::lose(const std::string& why) {
  if (state_ == State::kGone) return;
  const TimePoint now = Clock::system().now();
  if (is_up() && --signs_.num_up == 0) signs_.alive_at = now;
  socket_ = FileDescriptor();
  state_ = State::kDown;
  why_ = why;
  again_ = now;
  pause_ = kFirstPause;
  times_refused_ = 0;
}

void SessionWay::give_up(const std::string& reason) {
  lose(reason);
  state_ = State::kGone;
  reason_ = concat(" is gone: ", reason);
}

std::optional<std::uint64_t> SessionWay::step(std::uint64_t received) {
  if (is_gone()) return std::nullopt;
  hub_->look();
  if (const auto taken = take_arrival(received)) return taken;
  if (is_up()) return std::nullopt;
  return step_once(received, Clock::system().now());
}

std::optional<std::uint64_t> SessionWay::take_arrival(std::uint64_t received) {
  std::optional<SessionHub::Arrival> arrival = hub_->take(peer_, number_);
  if (!arrival || connects()) return std::nullopt;
  const auto answer = sealed(encode(Resumed{received}), arrival->key);
  come_up(std::move(arrival->socket));
  // One that has broken already shows when it is read.
  if (!arrival->is_first) (void)send_opening(socket_, answer);
  return arrival->received;
}

std::optional<std::uint64_t> SessionWay::step_once(std::uint64_t received, TimePoint now) {
  if (state_ == State::kDown && may_begin() && now >= again_) begin(now);
  if (state_ == State::kConnecting) finish_connecting(now);
  if (state_ == State::kGreeting) greet(received, now);
  if (state_ == State::kAnswering) return read_answer(now);
  return std::nullopt;
}

void SessionWay::begin(TimePoint now) {
  socket_ = start_connecting(endpoint_);
  if (!socket_.is_open()) return fail_attempt(Failure::kRefused, now);
  state_ = State::kConnecting;
  again_ = deadline_after(now, kConnecting);
}

void SessionWay::finish_connecting(TimePoint now) {
  pollfd ready{socket_.get(), POLLOUT, 0};
  if (::poll(&ready, 1, 0) <= 0) {
    if (now >= again_) fail_attempt(Failure::kOther, now);
    return;
  }
  const int error = connect_result(socket_);
  if (error != 0 || is_connected_to_itself(socket_)) {
    const bool is_nobody = error == 0 || error == ECONNREFUSED;
    return fail_attempt(is_nobody ? Failure::kRefused : Failure::kOther, now);
  }
  times_refused_ = 0;
  if (!connects()) {  // it was to know whether the peer lives
    signs_.alive_at = now;
    socket_ = FileDescriptor();
    state_ = State::kDown;
    again_ = deadline_after(now, kLongestPause);
    return;
  }
  handshake_.emplace(rank_handshake(Handshake::Side::kClient, hub_->own()));
  is_answered_ = false;
  state_ = State::kGreeting;
  again_ = deadline_after(now, kAnswering);
}

void SessionWay::greet(std::uint64_t received, TimePoint now) {
  std::array<std::byte, 1024> bytes{};
  while (send_opening(socket_, handshake_->bytes_to_send())) {
    if (handshake_->state() == Handshake::State::kDone) return say_what_came(received, now);
    if (handshake_->state() != Handshake::State::kRunning) {
      why_ = handshake_->reason();
      break;
    }
    std::size_t count = 0;
    const ByteFlow flow = read_now(socket_, bytes, count);
    const auto piece = std::span<const std::byte>(bytes).first(count);
    is_answered_ = is_answered_ || count > 0;
    if (count == 0 && flow == ByteFlow::kOpen) return wait_on(now);
    if (handshake_->take(piece) < count || flow == ByteFlow::kClosed) break;
  }
  fail_attempt(Failure::kOther, now);
}

void SessionWay::say_what_came(std::uint64_t received, TimePoint now) {
  if (!is_rank(*handshake_->peer(), peer_, hub_->nonce(peer_))) {
    why_ = concat(handshake_->peer()->to_string(), " is there now, of another run");
    return fail_attempt(Failure::kOther, now);
  }
  signs_.alive_at = now;
  const Resume resume{
      {hub_->rank(), peer_, hub_->size(), hub_->nonce(hub_->rank()), hub_->nonce(peer_)},
      received,
      false,
      static_cast<std::uint16_t>(number_),
      static_cast<std::uint16_t>(hub_->num_connections())};
  const Digest256 key = handshake_->session_key(Handshake::Side::kClient);
  if (!send_opening(socket_, sealed(encode(resume), key))) {
    return fail_attempt(Failure::kOther, now);
  }
  state_ = State::kAnswering;
  answered_ = 0;
  again_ = deadline_after(now, kAnswering);
}

void SessionWay::wait_on(TimePoint now) {
  if (now < again_) return;
  // Its door answers at once, also when it is busy; what comes then may take longer.
  if (is_answered_) signs_.alive_at = now;
  fail_attempt(Failure::kOther, now);
}

std::optional<std::uint64_t> SessionWay::read_answer(TimePoint now) {
  while (answered_ < answer_.size()) {
    std::size_t count = 0;
    const ByteFlow flow = read_now(socket_, std::span(answer_).subspan(answered_), count);
    answered_ += count;
    if (flow == ByteFlow::kClosed) {
      fail_attempt(Failure::kOther, now);
      return std::nullopt;
    }
    if (count == 0) {
      wait_on(now);
      return std::nullopt;
    }
  }
  try {
    const Digest256 key = handshake_->session_key(Handshake::Side::kServer);
    const Resumed resumed = decode_resumed(unsealed(answer_, key));
    handshake_.reset();
    come_up(std::move(socket_));
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
  if (signs_.num_up > 0) {
    // Another connection says whether the peer is gone.
    times_refused_ = 0;
    signs_.alive_at = now;
  }
  if (times_refused_ == kRefusalsOfTheDead) return end("nobody listens at its address any more");
  if (now - signs_.alive_at >= patience_) {
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

bool SessionWay::has_ended() const {
  if (!is_up()) return false;
  std::byte next{};
  const ssize_t count = ::recv(socket_.get(), &next, 1, MSG_PEEK | MSG_DONTWAIT);
  return count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
}

bool SessionWay::has_unsent() const {
  int left = 0;
  return is_up() && ::ioctl(socket_.get(), SIOCOUTQNSD, &left) == 0 && left > 0;
}

void SessionWay::close() noexcept {
  if (is_up()) ::shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace tutti::internal
