// All streams of a rank, and the threads that wait for them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "tutti/cluster/messages/byte_stream.h"
#include "tutti/cluster/messages/inbox.h"
#include "tutti/cluster/messages/outbox.h"
#include "tutti/cluster/tcp/socket.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// The way to one peer.
struct PeerLink {
  std::unique_ptr<ByteStream> stream;
  std::string kind;  // "tcp"
  std::string name;  // "rank 2 (127.0.0.1:4711)"
};

/// One peer, both directions.
class Peer {
 public:
  Peer(PeerLink link, KeptBytes& kept);
  const std::string& name() const { return link_.name; }
  const std::string& kind() const { return link_.kind; }
  ByteStream& stream() { return *link_.stream; }
  const ByteStream& stream() const { return *link_.stream; }
  void fail(const Error& reason);

 private:
  PeerLink link_;

 public:
  Inbox inbox;
  Outbox outbox;
  std::atomic<bool> is_open{true};
};

struct MeshOptions {
  /// Ranks that share this machine's cores: with more than cores nobody spins.
  int ranks_on_this_machine = 1;
  /// Of messages that came before their recv(), in all.
  std::size_t bytes_kept = std::size_t{1} << 30;
};

/// Moves bytes while somebody waits. One waiting thread *leads*: it looks at all sockets, first
/// again and again, then asleep in the system. The others follow: they sleep until their operation
/// has ended or nobody leads; then one of them does. Threads: any.
class Mesh {
 public:
  /// `links` by rank; its own is not used.
  Mesh(int rank, std::vector<PeerLink> links, const MeshOptions& options);
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  Peer& peer(int rank) { return *peers_[static_cast<std::size_t>(rank)]; }
  const Peer& peer(int rank) const { return *peers_[static_cast<std::size_t>(rank)]; }

  void send(int peer, const std::shared_ptr<Outgoing>& message);
  /// False: the deadline came first.
  bool wait(const Operation& operation, int peer, TimePoint deadline);
  /// Looks once.
  void test(const Operation& operation, int peer);
  /// The first one counts and is told to all peers, also when a peer has said it.
  void abort(const Error& reason) noexcept;
  /// Says good-bye to all: they read end-of-file after what was written. Unless the group was
  /// aborted, stays until each peer has all of it or is gone, for 2 s at most.
  void close() noexcept;

 private:
  class Leadership;

  void lead(const Operation& operation, int peer, TimePoint deadline);
  bool read(Peer& peer);
  bool look(TimePoint deadline);
  bool look_at(Peer& peer);
  bool look_at_memory();
  bool may_spin() const;
  static bool may_yield();
  /// Something that a thread waits for may have ended.
  void tell_waiters();
  void flush_for(Duration duration) noexcept;
  void stay_while_missed();
  bool is_missed() const;
  void wait_until_sent(Duration duration) noexcept;

  const int rank_;
  const bool spins_;
  KeptBytes kept_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; its own is null
  std::size_t num_memory_ = 0;                // peers whose bytes are looked at without the system
  FileDescriptor wake_event_;

  Mutex mutex_;
  CondVar changed_;
  bool has_leader_ TUTTI_GUARDED_BY(mutex_) = false;
  std::atomic<int> followers_{0};
  std::atomic<bool> leader_sleeps_{false};
  std::atomic<std::uint64_t> wishes_{0};  // what happened beside the leader
  std::atomic<bool> is_aborted_{false};
};

}  // namespace tutti::internal
