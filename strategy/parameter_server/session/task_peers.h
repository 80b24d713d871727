// The ways from one task to the others of its cluster.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>

#include "tutti/cluster/cluster_spec.h"
#include "tutti/cluster/rpc/rpc_client.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/server.h"

namespace tutti::internal {

/// Connections, each opened when it is first asked for, and anew where the last one was given up.
/// Threads: any.
class TaskPeers {
 public:
  TaskPeers(ClusterSpec cluster, Task self, ServerOptions options);
  /// Throws as RpcClient::connect(), kInvalidArgument for a task that the cluster has not.
  std::shared_ptr<RpcClient> to(const Task& task);
  /// Ends all calls.
  void fail_all(const Error& error);

 private:
  struct Peer {
    Mutex connecting;
    std::shared_ptr<RpcClient> client;  // guarded by connecting
  };
  const ClusterSpec cluster_;
  const Task self_;
  const ServerOptions options_;
  Mutex mutex_;
  std::map<Task, std::shared_ptr<Peer>> peers_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
