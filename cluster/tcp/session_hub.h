// Where peers connect again when a connection broke.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/cluster/tcp/door.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// A rank's door after all have connected. Connections of ranks of this run wait here for their
/// sessions; those of other runs are told so. Threads: any.
class SessionHub {
 public:
  /// `nonces` by rank, this rank's among them.
  SessionHub(std::vector<std::uint64_t> nonces, std::unique_ptr<Door> door);

  struct Arrival {
    FileDescriptor socket;
    std::uint64_t received = 0;  // bytes that the peer has
    Digest256 key{};             // of the answer
    bool is_first = false;       // it has not had the answer to its first opening; it has it now
  };
  /// Takes who has come.
  void look();
  /// The latest connection of a rank.
  std::optional<Arrival> take(int rank);
  bool has_arrivals() const { return door_->has_arrivals() || num_waiting_.load() > 0; }
  void watch(std::vector<pollfd>& descriptors) const;

  const RankIdentity& own() const { return door_->own(); }
  int rank() const { return own().rank; }
  int size() const { return static_cast<int>(nonces_.size()); }
  std::uint64_t nonce(int rank) const { return nonces_[static_cast<std::size_t>(rank)]; }

 private:
  void receive(Door::Arrival arrival) TUTTI_REQUIRES(mutex_);
  void answer_first(const Door::Arrival& arrival, bool is_ours) const;
  bool belongs(const Hello& hello) const;

  const std::vector<std::uint64_t> nonces_;
  const std::unique_ptr<Door> door_;
  std::atomic<int> num_waiting_{0};
  mutable Mutex mutex_;
  std::vector<std::optional<Arrival>> arrivals_ TUTTI_GUARDED_BY(mutex_);  // by rank
};

}  // namespace tutti::internal
