// Sorting the peers that connect again.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/tcp/session_hub.h"

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
      door_(std::move(door)) {
  door_->call_every(kBeat, [this] { beat(); });
}

void SessionHub::add(SignOfLife& sign) {
  MutexLock lock(signs_mutex_);
  signs_.insert(&sign);
}

void SessionHub::remove(SignOfLife& sign) {
  MutexLock lock(signs_mutex_);
  signs_.erase(&sign);
}

void SessionHub::beat() {
  MutexLock lock(signs_mutex_);
  for (SignOfLife* const sign : signs_) sign->beat();
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
}

}  // namespace tutti::internal
