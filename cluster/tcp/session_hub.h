// Where peers connect again when a connection broke.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <list>
#include <optional>
#include <vector>

#include "tutti/cluster/tcp/chunk.h"
#include "tutti/cluster/tcp/socket.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// A rank's listener after all have connected. Connections of ranks of this run wait here for their
/// sessions; strangers get at most 5 s, and there are at most 64 of them. Threads: any.
class SessionHub {
 public:
  /// `nonces` by rank, this rank's among them.
  SessionHub(int rank, std::vector<std::uint64_t> nonces, Listener listener);

  struct Arrival {
    FileDescriptor socket;
    std::uint64_t received = 0;  // bytes that the peer has
    bool is_first = false;       // it has not had the answer to its first hello; it has it now
  };
  /// Accepts and reads what is there.
  void look();
  /// The latest connection of a rank.
  std::optional<Arrival> take(int rank);
  bool has_arrivals() const { return num_arrivals_.load() > 0; }
  void watch(std::vector<pollfd>& descriptors) const;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(nonces_.size()); }
  std::uint64_t nonce(int rank) const { return nonces_[static_cast<std::size_t>(rank)]; }

 private:
  struct Newcomer {
    FileDescriptor socket;
    TimePoint end;
    std::array<std::byte, kResumeBytes> bytes{};
    std::size_t filled = 0;
  };
  bool is_settled(Newcomer& newcomer) TUTTI_REQUIRES(mutex_);
  bool answer_hello(Newcomer& newcomer) TUTTI_REQUIRES(mutex_);
  void keep(int rank, Arrival arrival) TUTTI_REQUIRES(mutex_);
  bool belongs(const Hello& hello) const;

  const int rank_;
  const std::vector<std::uint64_t> nonces_;
  const Listener listener_;
  std::atomic<int> num_arrivals_{0};
  mutable Mutex mutex_;
  std::list<Newcomer> newcomers_ TUTTI_GUARDED_BY(mutex_);
  std::vector<std::optional<Arrival>> arrivals_ TUTTI_GUARDED_BY(mutex_);  // by rank
};

}  // namespace tutti::internal
