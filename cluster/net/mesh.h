// All connections of a rank as a Transport, and the threads that wait for them.
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
  /// Transport::name().
  std::string name = {};
  /// Of messages that came before their recv(), in all.
  std::size_t bytes_kept = std::size_t{1} << 30;
  /// Transport::host_memory().
  std::shared_ptr<HostMemory> memory = nullptr;
};

/// Moves bytes while somebody waits. One waiting thread *leads*: it looks at all sockets, first
/// again and again, then asleep in the system. The others follow: they sleep until their operation
/// has ended or nobody leads; then one of them does. Threads: any.
class Mesh final : public Transport, public std::enable_shared_from_this<Mesh> {
 public:
  /// `peers` by rank; its own is not used. Where more of them share this machine's cores than there
  /// are, no thread spins.
  Mesh(int rank, std::vector<ConnectedPeer> peers, MeshOptions options);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  std::string_view name() const override { return options_.name; }
  std::unique_ptr<Work> send(int peer, std::uint64_t tag, std::span<const std::byte> head,
                             std::span<const std::byte> body) override;
  std::unique_ptr<Work> recv(int peer, std::uint64_t tag, std::span<std::byte> head,
                             std::span<std::byte> body) override;
  /// The first one counts and is told to all peers, also when a peer has said it.
  void abort(const Error& reason) noexcept override;
  std::optional<int> lost_peer() const override;
  TransportStats stats() const override;
  std::shared_ptr<HostMemory> host_memory() override { return options_.memory; }
  /// All peers read end-of-file after what was written. Lingers until the system of each peer has
  /// all of it, or the peer is gone: for 2 s at most, and 0.2 s if the group was aborted.
  void close() noexcept;

 private:
  static constexpr int kNone = -1;

  class Leadership;
  template <class Side>
  class MessageWork;

  Connection& peer(int rank) { return *peers_[static_cast<std::size_t>(rank)]; }
  void check(int peer, std::size_t head_bytes, std::size_t body_bytes) const;
  /// False: the deadline came first.
  bool wait(const Operation& operation, int peer, TimePoint deadline);
  /// Looks once.
  void test(const Operation& operation, int peer);
  void lead(const Operation& operation, int peer, TimePoint deadline);
  bool look(TimePoint deadline);
  bool look_at(int rank);
  bool may_spin() const;
  static bool may_yield();
  /// Something that a thread waits for may have ended.
  void tell_waiters();
  void flush_last_words() noexcept;
  void wait_until_sent(Duration duration) noexcept;

  const int rank_;
  const MeshOptions options_;
  const bool spins_;
  KeptBytes kept_;
  std::vector<std::unique_ptr<Connection>> peers_;  // by rank; its own is null
  std::vector<std::uint8_t> is_looked_at_;  // by rank: for the next test() until look_again_
  FileDescriptor wake_event_;
  // Of the thread that leads, for test().
  TimePoint look_again_ = TimePoint::min();

  Mutex mutex_;
  CondVar changed_;
  bool has_leader_ TUTTI_GUARDED_BY(mutex_) = false;
  std::atomic<int> followers_{0};
  std::atomic<bool> leader_sleeps_{false};
  std::atomic<std::uint64_t> wishes_{0};  // what happened beside the leader
  std::atomic<bool> is_aborted_{false};
  std::atomic<int> lost_peer_{kNone};
};

/// The mesh as its users share it: closed when the last of them is gone. Works may live longer.
std::shared_ptr<Transport> shared_mesh(int rank, std::vector<ConnectedPeer> peers,
                                       MeshOptions options);

}  // namespace tutti::internal
