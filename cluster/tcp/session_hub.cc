// Sorting the peers that connect again.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/tcp/session_hub.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

constexpr Duration kBeat = std::chrono::milliseconds(500);

}  // namespace

SessionHub::SessionHub(std::vector<std::uint64_t> nonces, std::unique_ptr<Door> door,
                       std::size_t num_connections)
    : nonces_(std::move(nonces)),
      num_connections_(num_connections),
      arrivals_(nonces_.size() * num_connections),
      called_(make_wake_event()),
      beat_at_(deadline_after(Clock::system().now(), kBeat)),
      door_(std::move(door)) {
  door_->call([this](bool has_visitors) { return tend(has_visitors); });
}

void SessionHub::add(TendedSession& session) {
  MutexLock lock(sessions_mutex_);
  sessions_.insert(&session);
}

void SessionHub::remove(TendedSession& session) {
  MutexLock lock(sessions_mutex_);
  sessions_.erase(&session);
}

TimePoint SessionHub::tend(bool has_visitors) {
  const TimePoint now = Clock::system().now();
  const bool beats = now >= beat_at_;
  if (beats) beat_at_ = deadline_after(now, kBeat);
  TimePoint next = beat_at_;
  MutexLock lock(sessions_mutex_);
  for (TendedSession* const session : sessions_) {
    next = std::min(next, session->tend(has_visitors));
    if (beats) session->beat();
  }
  return next;
}

void SessionHub::call() {
  const std::uint64_t one = 1;
  (void)!::write(called_.get(), &one, sizeof(one));
}

void SessionHub::hear(std::span<const pollfd> descriptors) {
  if (descriptors.back().revents == 0) return;
  std::uint64_t count = 0;
  (void)!::read(called_.get(), &count, sizeof(count));
}

void SessionHub::look() {
  MutexLock lock(mutex_);
  while (auto arrival = door_->take()) receive(*std::move(arrival));
}

bool SessionHub::belongs(const Resume& opening) const {
  const Hello& hello = opening.hello;
  return opening.num_connections == num_connections_ && opening.connection < num_connections_ &&
         hello.to == rank() && hello.size == size() && hello.from != rank() &&
         hello.to_nonce == nonce(rank()) && hello.from_nonce == nonce(hello.from);
}

void SessionHub::receive(Door::Arrival arrival) {
  const Hello& hello = arrival.opening.hello;
  const bool is_first = arrival.opening.is_first;
  const bool is_ours = belongs(arrival.opening) && (!is_first || hello.from > rank());
  if (!is_ours || is_first) answer_first(arrival, is_ours);
  if (!is_ours) return;
  auto& place = arrivals_[place_of(hello.from, arrival.opening.connection)];
  if (!place) num_waiting_.fetch_add(1);
  place = Arrival{std::move(arrival.socket), arrival.opening.received, arrival.key, is_first};
}

/// A rank of a new run has found this run's address, and will look again; or one of this run had no
/// answer before this rank was through with its rendezvous.
void SessionHub::answer_first(const Door::Arrival& arrival, bool is_ours) const {
  const Hello& hello = arrival.opening.hello;
  Welcome welcome;
  if (!is_ours) {
    welcome = {Welcome::Verdict::kStale, concat("rank ", hello.from, " looks for rank ", hello.to,
                                                " of another run; here is rank ", rank())};
  }
  (void)send_opening(arrival.socket, sealed(encode(welcome), arrival.key));
}

std::optional<SessionHub::Arrival> SessionHub::take(int rank, std::size_t connection) {
  MutexLock lock(mutex_);
  auto& place = arrivals_[place_of(rank, connection)];
  if (place) num_waiting_.fetch_sub(1);
  return std::exchange(place, std::nullopt);
}

void SessionHub::watch(std::vector<pollfd>& descriptors) const {
  descriptors.push_back({door_->bell().get(), POLLIN, 0});
  descriptors.push_back({called_.get(), POLLIN, 0});
}

}  // namespace tutti::internal
