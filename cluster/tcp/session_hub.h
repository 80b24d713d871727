// Where peers connect again when a connection broke.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "tutti/cluster/tcp/door.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// A session, as the door's thread sees it. Both functions wait for nothing.
class TendedSession {
 public:
  virtual ~TendedSession() = default;
  /// Twice a second: says that the rank is there. A session that hears nothing at all for much
  /// longer has a broken connection, whatever the system thinks of it.
  virtual void beat() = 0;
  /// Does what the rank's own threads do when they look, if they have not for long, or if somebody
  /// is at the door: perhaps a peer that wants to leave. Returns when it wants to be called again.
  virtual TimePoint tend(bool has_visitors) = 0;
};

/// A rank's door after all have connected. Connections of ranks of this run wait here for their
/// sessions; those of other runs are told so. Threads: any.
class SessionHub {
 public:
  /// `nonces` by rank, this rank's among them. A session has so many connections.
  SessionHub(std::vector<std::uint64_t> nonces, std::unique_ptr<Door> door,
             std::size_t num_connections);

  struct Arrival {
    FileDescriptor socket;
    std::uint64_t received = 0;  // bytes that the peer has
    Digest256 key{};             // of the answer
    bool is_first = false;       // it has not had the answer to its first opening; it has it now
  };
  /// Takes who has come.
  void look();
  /// The latest connection of a rank with this number in its session.
  std::optional<Arrival> take(int rank, std::size_t connection);
  bool has_arrivals() const { return door_->has_arrivals() || num_waiting_.load() > 0; }
  /// For who sleeps until there is something to read: also what call() says.
  void watch(std::vector<pollfd>& descriptors) const;
  /// The door's thread has changed what a sleeping thread should know.
  void call();
  /// Who was asleep looks now; `descriptors` end with those of watch().
  void hear(std::span<const pollfd> descriptors);
  /// From now on, until remove(), which waits for a call under way.
  void add(TendedSession& session);
  void remove(TendedSession& session);

  const RankIdentity& own() const { return door_->own(); }
  int rank() const { return own().rank; }
  int size() const { return static_cast<int>(nonces_.size()); }
  std::uint64_t nonce(int rank) const { return nonces_[static_cast<std::size_t>(rank)]; }
  std::size_t num_connections() const { return num_connections_; }

 private:
  void receive(Door::Arrival arrival) TUTTI_REQUIRES(mutex_);
  void answer_first(const Door::Arrival& arrival, bool is_ours) const;
  bool belongs(const Resume& opening) const;
  std::size_t place_of(int rank, std::size_t connection) const {
    return static_cast<std::size_t>(rank) * num_connections_ + connection;
  }
  TimePoint tend(bool has_visitors);

  const std::vector<std::uint64_t> nonces_;
  const std::size_t num_connections_;
  std::atomic<int> num_waiting_{0};
  mutable Mutex mutex_;
  std::vector<std::optional<Arrival>> arrivals_ TUTTI_GUARDED_BY(mutex_);  // by place_of()
  const FileDescriptor called_;
  Mutex sessions_mutex_;  // held while they are tended; before their own
  std::set<TendedSession*> sessions_ TUTTI_GUARDED_BY(sessions_mutex_);
  TimePoint beat_at_;                 // the door's thread's own
  const std::unique_ptr<Door> door_;  // its thread uses all of the above
};

}  // namespace tutti::internal
