// Implements the fault-injecting TCP proxy with one thread that polls all sockets.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/chaos_proxy.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace tutti::testing {

using internal::FileDescriptor;

ChaosProxy::ChaosProxy(internal::Endpoint target, const ChaosPlan& plan)
    : target_(std::move(target)),
      plan_(plan),
      listener_(internal::listen_at({"127.0.0.1", 0})),
      stop_event_(internal::make_wake_event()),
      state_(plan.seed * 0x9E3779B97F4A7C15u + 1) {
  cut_at_ = plan_.spares + next_distance(plan_.cut_every);
  half_close_at_ = plan_.spares + next_distance(plan_.half_close_every);
  flip_at_ = plan_.spares + next_distance(plan_.flip_every);
  thread_ = Executor::system().start("chaos-proxy", [this] { run(); });
}

ChaosProxy::~ChaosProxy() {
  stops_ = true;
  const std::uint64_t one = 1;
  (void)!::write(stop_event_.get(), &one, sizeof(one));
  thread_->join();
}

std::uint64_t ChaosProxy::next_distance(std::uint64_t mean) {
  if (mean == 0) return kNever;
  state_ ^= state_ << 13;  // xorshift
  state_ ^= state_ >> 7;
  state_ ^= state_ << 17;
  return 1 + state_ % (2 * mean);
}

void ChaosProxy::reset(FileDescriptor& socket) {
  if (!socket.is_open()) return;
  const linger at_once{1, 0};  // makes close() send a reset
  ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  socket = FileDescriptor();
}

void ChaosProxy::accept_all() {
  for (;;) {
    FileDescriptor client = internal::accept_from(listener_.socket);
    if (!client.is_open()) return;
    ++accepted_;
    FileDescriptor server = internal::start_connecting(target_);
    pollfd ready{server.get(), POLLOUT, 0};
    const TimePoint end = deadline_after(Clock::system().now(), std::chrono::seconds(1));
    const bool connected = server.is_open() &&
                           internal::poll_until(std::span(&ready, 1), end) > 0 &&
                           internal::connect_result(server) == 0;
    if (!connected) continue;
    Pair& pair = pairs_.emplace_back();
    pair.client = std::move(client);
    pair.server = std::move(server);
    pair.is_swallowed = swallow_next_.exchange(false) || swallows_new_;
    pair.ways.push_back({&pair.client, &pair.server, {}, false});
    pair.ways.push_back({&pair.server, &pair.client, {}, false});
  }
}

void ChaosProxy::count_event(std::atomic<int>& events) {
  last_event_ = Clock::system().now();
  ++events;
}

/// Applies the plan's faults to the last `count` bytes of way.waiting, which were just read.
void ChaosProxy::disturb(Pair& pair, Direction& way, std::size_t count) {
  const std::uint64_t begin = passed_, end = begin + count;
  passed_ = end;
  if (const auto after = cut_after_.exchange(kNever); after != kNever) cut_at_ = begin + after;
  if (const auto after = flip_after_.exchange(kNever); after != kNever) flip_at_ = begin + after;
  const auto may = [this] { return cuts_ + half_closes_ + flips_ < plan_.most_events; };
  for (; flip_at_ < end; flip_at_ += next_distance(plan_.flip_every)) {
    if (flip_at_ < begin || !may()) continue;
    const std::size_t place = way.waiting.size() - count + (flip_at_ - begin);
    way.waiting[place] ^= std::byte{1} << (next_distance(4) % 8);
    count_event(flips_);
  }
  if (cut_at_ < end) {
    if (may()) {
      // Forwards as many of the bytes before the fault as fit into the socket's send buffer.
      (void)!::send(way.to->get(), way.waiting.data(),
                    way.waiting.size() - std::min<std::size_t>(count, end - cut_at_),
                    MSG_NOSIGNAL | MSG_DONTWAIT);
      pair.is_broken = true;
      count_event(cuts_);
    }
    cut_at_ = end + next_distance(plan_.cut_every);
  } else if (half_close_at_ < end) {
    if (may()) {
      way.waiting.clear();
      way.is_closed = true;
      ::shutdown(way.to->get(), SHUT_WR);
      count_event(half_closes_);
    }
    half_close_at_ = end + next_distance(plan_.half_close_every);
  }
}

/// Reads and discards data without closing a connection, so that neither end sees a disconnection.
void ChaosProxy::swallow(Direction& way) {
  way.waiting.resize(65536);
  const ssize_t count = ::recv(way.from->get(), way.waiting.data(), 65536, MSG_DONTWAIT);
  way.waiting.clear();
  way.is_closed = count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
}

/// Moves bytes in one direction; returns true if any were moved.
bool ChaosProxy::move(Pair& pair, Direction& way) {
  bool moved = false;
  if (way.waiting.size() < 65536) {
    const std::size_t old = way.waiting.size();
    way.waiting.resize(old + 65536);
    const ssize_t count = ::recv(way.from->get(), way.waiting.data() + old, 65536, MSG_DONTWAIT);
    way.waiting.resize(old + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) pair.is_broken = true;
    if (count > 0 && way.is_closed) way.waiting.clear();
    if (count > 0 && !way.is_closed) disturb(pair, way, static_cast<std::size_t>(count));
    moved = count > 0;
  }
  if (way.waiting.empty() || pair.is_broken) return moved;
  if (plan_.delay > Duration::zero()) Clock::system().sleep_for(plan_.delay);
  const std::size_t most =
      plan_.trickle == 0 ? way.waiting.size() : std::min(plan_.trickle, way.waiting.size());
  const ssize_t count =
      ::send(way.to->get(), way.waiting.data(), most, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count > 0) way.waiting.erase(way.waiting.begin(), way.waiting.begin() + count);
  if (count < 0 && errno != EAGAIN && errno != EINTR) pair.is_broken = true;
  return moved || count > 0;
}

/// Executes the requests that the test has made since the last poll.
void ChaosProxy::obey() {
  const bool swallows = swallow_now_.exchange(false), cuts_all = cut_now_.exchange(false);
  for (Pair& pair : pairs_) {
    if (cuts_all && !pair.is_broken) count_event(cuts_);
    pair.is_broken = pair.is_broken || cuts_all;
    pair.is_swallowed = pair.is_swallowed || swallows;
  }
}

void ChaosProxy::run() {
  while (!stops_) {
    std::vector<pollfd> descriptors{{stop_event_.get(), POLLIN, 0},
                                    {listener_.socket.get(), POLLIN, 0}};
    for (const Pair& pair : pairs_) {
      for (const Direction& way : pair.ways) {
        if (pair.is_swallowed && way.is_closed) continue;
        const bool may_read = way.waiting.size() < 65536;
        descriptors.push_back({way.from->get(), static_cast<short>(may_read ? POLLIN : 0), 0});
        if (!way.waiting.empty()) descriptors.push_back({way.to->get(), POLLOUT, 0});
      }
    }
    internal::poll_until(descriptors,
                         deadline_after(Clock::system().now(), std::chrono::milliseconds(50)));
    accept_all();
    obey();
    for (Pair& pair : pairs_) {
      for (Direction& way : pair.ways) {
        if (pair.is_swallowed) {
          swallow(way);
        } else if (!pair.is_broken) {
          move(pair, way);
        }
      }
      if (!pair.is_broken) continue;
      reset(pair.client);
      reset(pair.server);
    }
    pairs_.remove_if([](const Pair& pair) { return pair.is_broken; });
  }
}

}  // namespace tutti::testing
