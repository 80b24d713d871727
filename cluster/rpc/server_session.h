// One client of one method, over all its streams.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "tutti/cluster/rpc/call_messages.h"
#include "tutti/cluster/rpc/rpc_server.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

class ServerStream;

/// Hands a client's calls to the handler one at a time in the order in which they came, and its
/// answers to the stream that the client has now. Threads: any.
class ServerSession final : public std::enable_shared_from_this<ServerSession> {
 public:
  /// `on_change` is called when the client has gone away, or has left.
  ServerSession(RpcHandler& handler, RpcPeer peer, const RpcServerOptions& options,
                std::function<void()> on_change);
  ~ServerSession();

  const RpcPeer& peer() const { return peer_; }

  /// A new stream takes the place of the last one. False: this client is just leaving.
  bool attach(const std::shared_ptr<ServerStream>& stream);
  /// Asked before memory for a call is taken. Null: not now, stream.read_on() follows.
  std::shared_ptr<void> lease(const ServerStream& stream, std::size_t bytes);
  /// A small call goes to the handler before this returns, if it may. Throws kDataLoss for a call
  /// that does not follow the last one.
  void take(const ServerStream& stream, CallMessage message, bool may_run_here);
  /// This stream has ended.
  void detach(const ServerStream& stream);

  /// When its last stream ended; nothing: it has one, or leaves already.
  std::optional<TimePoint> away_since() const;
  /// After all its calls the handler is told that it left.
  void leave();
  bool is_leaving() const;
  bool has_left() const;
  /// Waits for the handler's function under way; none runs later, and answers go nowhere.
  void end();

 private:
  class Call;
  void answer(CallMessage message);
  void release(std::size_t bytes);
  void start_worker() TUTTI_REQUIRES(mutex_);
  void work();
  bool hand_next(bool goes_on);
  void hand(const std::shared_ptr<Call>& call);

  RpcHandler& handler_;
  const RpcPeer peer_;
  const std::size_t most_bytes_, longest_payload_;
  const std::function<void()> on_change_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<ServerStream> stream_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t last_on_stream_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool is_short_ TUTTI_GUARDED_BY(mutex_) = false;  // stream_ waits for room
  std::size_t leased_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<Call>> queue_ TUTTI_GUARDED_BY(mutex_);  // null: the client leaves
  bool is_handing_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_leaving_ TUTTI_GUARDED_BY(mutex_) = false;
  bool has_left_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_ended_ TUTTI_GUARDED_BY(mutex_) = false;
  std::optional<TimePoint> away_since_ TUTTI_GUARDED_BY(mutex_);
  std::unique_ptr<Thread> worker_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
