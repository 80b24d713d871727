// Transport over all connections of a rank, and coordination of its waiting threads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/net/connection.h"
#include "core/file.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

struct MeshOptions {
  /// Value of Transport::name().
  std::string name = {};
  /// Limit on the total size, in bytes, of messages that arrived before their recv().
  std::size_t bytes_kept = std::size_t{1} << 30;
  /// Memory that Transport::host_memory() returns.
  std::shared_ptr<HostMemory> memory = nullptr;
};

/// Transport in which waiting threads move the bytes. One of them *leads*: it polls all sockets,
/// first spinning, then sleeping in a system call. The other threads follow: they sleep until their
/// operation has ended or there is no leader, in which case one of them becomes the leader.
/// Thread-safe.
class Mesh final : public Transport, public std::enable_shared_from_this<Mesh> {
 public:
  /// `peers` is indexed by rank; this rank's entry is unused. If this machine has more ranks than
  /// cores, no thread spins.
  Mesh(int rank, std::vector<ConnectedPeer> peers, MeshOptions options);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  std::string_view name() const override { return options_.name; }
  std::unique_ptr<Work> send(int peer, std::uint64_t tag, std::span<const std::byte> head,
                             std::span<const std::byte> body) override;
  std::unique_ptr<Work> recv(int peer, std::uint64_t tag, std::span<std::byte> head,
                             std::span<std::byte> body) override;
  /// Sends the reason to all peers, even if it came from a peer. Only the first call has an effect.
  void abort(const Error& reason) noexcept override;
  std::optional<int> lost_peer() const override;
  TransportStats stats() const override;
  std::shared_ptr<HostMemory> host_memory() override { return options_.memory; }
  /// Closes all connections; peers read end-of-file after the written bytes. Waits until every
  /// peer's system has received all bytes or the peer has exited, but for at most 2 s (0.2 s after
  /// an abort).
  void close() noexcept;

 private:
  static constexpr int kNone = -1;

  class Leadership;
  template <class Side>
  class MessageWork;

  Connection& peer(int rank) { return *peers_[static_cast<std::size_t>(rank)]; }
  void check(int peer, std::size_t head_bytes, std::size_t body_bytes) const;
  /// Waits for the end of the operation; returns false if the deadline passes first.
  bool wait(const Operation& operation, int peer, TimePoint deadline);
  /// Moves bytes without waiting; does nothing if another thread is the leader.
  void test(const Operation& operation, int peer);
  void lead(const Operation& operation, int peer, TimePoint deadline);
  bool poll_peers(TimePoint deadline);
  bool read_from_peer(int rank);
  bool may_spin() const;
  static bool may_yield();
  /// Wakes waiting threads, because an operation may have ended.
  void wake_waiters();
  void flush_aborts() noexcept;
  void wait_until_sent(Duration duration) noexcept;

  const int rank_;
  const MeshOptions options_;
  const bool spins_;
  KeptBytes kept_;
  std::vector<std::unique_ptr<Connection>> peers_;  // indexed by rank; null for this rank
  std::vector<std::uint8_t> is_looked_at_;          // by rank; true if polled since the last test()
  FileDescriptor wake_event_;
  // Time at which test() next polls all peers; used by the leader.
  TimePoint look_again_ = TimePoint::min();

  Mutex mutex_;
  CondVar changed_;
  bool has_leader_ TUTTI_GUARDED_BY(mutex_) = false;
  std::atomic<int> followers_{0};
  std::atomic<bool> leader_sleeps_{false};
  std::atomic<std::uint64_t> wishes_{0};  // number of events that the leader must not miss
  std::atomic<bool> is_aborted_{false};
  std::atomic<int> lost_peer_{kNone};
};

/// Returns a mesh that closes when its last reference is destroyed. Its Work objects may outlive
/// it.
std::shared_ptr<Transport> shared_mesh(int rank, std::vector<ConnectedPeer> peers,
                                       MeshOptions options);

}  // namespace tutti::internal
