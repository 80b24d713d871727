// Registry of all sessions on one task, and of its connections to the other tasks of the cluster.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cluster/rpc/rpc_client.h"
#include "cluster/rpc/rpc_server.h"
#include "strategy/parameter_server/session/task_session.h"
#include "tutti/cluster/cluster_spec.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/session/server.h"

namespace tutti::internal {

/// Opens sessions, forwards requests to them, and ends those whose client has disconnected.
/// Thread-safe.
class TaskSessions final : public RpcHandler {
 public:
  /// `left` is called after a client has disconnected.
  TaskSessions(
      const ClusterSpec& cluster, const Task& self, const ServerOptions& options,
      std::function<void()> left = [] {});
  ~TaskSessions() override;

  void take(std::shared_ptr<RpcCall> call) override;
  void client_left(const RpcPeer& peer) override;
  /// Returns true if a session was opened, but none is open or announced now.
  bool are_over() const;

 private:
  struct Open {
    std::uint64_t client = 0;  // RpcPeer::client
    std::shared_ptr<TaskSession> session = {};
  };
  void open(RpcCall& call, const v1::SessionRequest& request);
  void stay(std::uint64_t milliseconds);
  std::shared_ptr<TaskSession> find(std::uint64_t number) const;
  TaskDescription description() const;
  /// Returns the connection to another task, which is opened on the first call and reopened after a
  /// loss. Connections are opened one at a time, which is fast enough because live tasks respond
  /// immediately.
  std::shared_ptr<RpcClient> peer(const Task& task);

  const ClusterSpec cluster_;
  const ServerOptions options_;
  TaskParts parts_;
  const std::function<void()> left_;
  Mutex connecting_;
  std::map<Task, std::shared_ptr<RpcClient>> peers_ TUTTI_GUARDED_BY(connecting_);
  mutable Mutex mutex_;
  std::map<std::uint64_t, Open> open_ TUTTI_GUARDED_BY(mutex_);
  /// Ended sessions whose threads may still be running.
  std::vector<std::shared_ptr<TaskSession>> ended_ TUTTI_GUARDED_BY(mutex_);
  TimePoint stays_until_ TUTTI_GUARDED_BY(mutex_) = {};
  bool had_one_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti::internal
