// One client of a server, over all its connections.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tutti/cluster/rpc/rpc_wires.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Hands a client's requests to the handler one at a time in the order of their numbers, and its
/// answers to the connection that the client has now. An answer is kept until the client says that
/// it has it, as far as `bytes` and kMostCalls allow: a request that comes again meanwhile gets it,
/// or the one to come, without the handler; later it is a request as any other. Threads: any.
class ServerSession final : public std::enable_shared_from_this<ServerSession> {
 public:
  struct Limits {
    std::size_t bytes = 0;  // requests under way, and kept answers
    std::size_t longest_payload = 0;
  };
  /// `on_change` is called when the client has gone away, or has left.
  ServerSession(RpcHandler& handler, RpcPeer peer, const Limits& limits,
                std::function<void()> on_change);
  ~ServerSession();

  const RpcPeer& peer() const { return peer_; }
  const Limits& limits() const { return limits_; }

  /// A new connection takes the place of the last one; says `welcome` on it first. False: this
  /// client is just leaving.
  bool attach(const std::shared_ptr<RpcLink>& link, std::span<const std::uint64_t> unanswered,
              RpcFrame welcome);
  /// Asked before memory for a request is taken. Null: not now, link.read_on() follows.
  std::shared_ptr<void> lease(const RpcLink& link, std::size_t bytes);
  /// Throws kDataLoss for a frame that no client sends: drop the connection.
  void received(const RpcLink& link, RpcFrame frame);
  /// This connection has ended.
  void detach(const RpcLink& link);

  /// When its last connection ended; nothing: it has one, or leaves already.
  std::optional<TimePoint> away_since() const;
  /// After all its requests the handler is told that it left.
  void leave();
  bool has_left() const;
  /// Waits for the handler's function under way; none runs later, and answers go nowhere.
  void end();

 private:
  class Call;
  class Lease;
  using Kept = std::shared_ptr<const RpcFrame>;
  struct KeptAnswer {
    std::uint64_t call = 0;
    std::size_t bytes = 0;
  };
  void take_request(const RpcLink& link, RpcFrame frame);
  void return_probe(const RpcLink& link, RpcFrame frame);
  bool answer(std::uint64_t call, RpcFrame frame);
  bool answers_may_get_lost() const;
  void keep(std::uint64_t call, const Kept& kept, std::vector<Kept>& dropped)
      TUTTI_REQUIRES(mutex_);
  void forget(std::span<const std::uint64_t> calls, std::vector<Kept>& dropped)
      TUTTI_REQUIRES(mutex_);
  void release(std::size_t bytes);
  void start_worker() TUTTI_REQUIRES(mutex_);
  void work();
  bool hand_next(bool goes_on);
  void hand(const std::shared_ptr<Call>& call);

  RpcHandler& handler_;
  const RpcPeer peer_;
  const Limits limits_;
  const std::function<void()> on_change_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<RpcLink> link_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t last_on_link_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool is_short_ TUTTI_GUARDED_BY(mutex_) = false;  // link_ waits for room
  std::size_t leased_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, Kept> calls_ TUTTI_GUARDED_BY(mutex_);      // null: under way
  std::deque<KeptAnswer> kept_ TUTTI_GUARDED_BY(mutex_);              // oldest first
  std::size_t kept_bytes_ TUTTI_GUARDED_BY(mutex_) = 0;               // of those
  std::deque<std::shared_ptr<Call>> queue_ TUTTI_GUARDED_BY(mutex_);  // null: the client leaves
  bool is_handing_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_leaving_ TUTTI_GUARDED_BY(mutex_) = false;
  bool has_left_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_ended_ TUTTI_GUARDED_BY(mutex_) = false;
  std::optional<TimePoint> away_since_ TUTTI_GUARDED_BY(mutex_);
  std::unique_ptr<Thread> worker_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
