// All connections of a rank, and the threads that wait for them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "tutti/cluster/tcp/inbox.h"
#include "tutti/cluster/tcp/outbox.h"
#include "tutti/cluster/tcp/rendezvous.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// One connection, both directions.
class Peer {
 public:
  Peer(int rank, Connection connection, KeptBytes& kept);
  const std::string& name() const { return name_; }  // "rank 2 (127.0.0.1:4711)"
  int socket() const { return connection_.socket.get(); }
  void fail(const Error& reason);

 private:
  Connection connection_;
  std::string name_;

 public:
  Inbox inbox;
  Outbox outbox;
  std::atomic<bool> is_open{true};
};

/// Moves bytes while somebody waits. One waiting thread *leads*: it looks at all sockets, first
/// again and again, then asleep in the system. The others follow: they sleep until their operation
/// has ended or nobody leads; then one of them does. Threads: any.
class Mesh {
 public:
  Mesh(int rank, int size, Connections connections, const TcpOptions& options);
  int rank() const { return rank_; }
  int size() const { return size_; }
  Peer& peer(int rank) { return *peers_[static_cast<std::size_t>(rank)]; }
  const Peer& peer(int rank) const { return *peers_[static_cast<std::size_t>(rank)]; }

  void send(int peer, const std::shared_ptr<Outgoing>& message);
  /// False: the deadline came first.
  bool wait(const Operation& operation, int peer, TimePoint deadline);
  /// Looks once.
  void test(const Operation& operation, int peer);
  /// The first one counts and is told to all peers, also when a peer has said it.
  void abort(const Error& reason) noexcept;
  /// Says good-bye to all: they read end-of-file after what was written.
  void close() noexcept;

 private:
  class Leadership;

  void lead(const Operation& operation, int peer, TimePoint deadline);
  bool read(Peer& peer);
  bool look(TimePoint deadline);
  bool look_at(int peer);
  bool may_spin() const;
  /// Something that a thread waits for may have ended.
  void tell_waiters();
  void flush_for(Duration duration) noexcept;
  void wait_until_sent(Duration duration) noexcept;

  const int rank_;
  const int size_;
  const bool spins_;
  KeptBytes kept_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; its own is null
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
