// A server's clients, on any wire.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "tutti/cluster/rpc/server_session.h"

namespace tutti::internal {

/// Knows the clients by their numbers and lets those go that have said good-bye or stay away for
/// `linger`. Threads: any.
class ServerCore {
 public:
  ServerCore(const RpcServerOptions& options, RpcHandler& handler);
  ~ServerCore() { stop(); }
  ServerCore(const ServerCore&) = delete;
  ServerCore& operator=(const ServerCore&) = delete;

  const RpcServerOptions& options() const { return options_; }
  /// The client behind a connection that proved to be `peer` and said `open` first. Null: not now,
  /// drop the connection. Throws kDataLoss for a frame that opens nothing, kFailedPrecondition for
  /// another task's number.
  std::shared_ptr<ServerSession> open(const std::shared_ptr<RpcLink>& link, RpcPeer peer,
                                      const RpcFrame& frame);
  /// No handler function runs afterwards. Stop the wire first.
  void stop();

 private:
  void keep();
  std::vector<std::shared_ptr<ServerSession>> sessions() const;
  void let_go(TimePoint now);
  TimePoint look_again() const;
  void look_now();

  const RpcServerOptions options_;
  RpcHandler& handler_;
  const std::uint64_t run_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::map<std::uint64_t, std::shared_ptr<ServerSession>> sessions_ TUTTI_GUARDED_BY(mutex_);
  bool looks_ TUTTI_GUARDED_BY(mutex_) = false;
  bool stops_ TUTTI_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Thread> keeper_;
};

}  // namespace tutti::internal
