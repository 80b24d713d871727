// Connections from a task to others of its cluster.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/session/task_peers.h"

#include <utility>
#include <vector>

#include "tutti/strategy/parameter_server/rpc_options.h"

namespace tutti::internal {
namespace {

/// The session has met all tasks already, so that one that is not there is gone.
constexpr Duration kConnectTimeout = std::chrono::seconds(3);
/// For a connection that broke. A task that is started again is another one.
constexpr Duration kPatience = std::chrono::seconds(2);

}  // namespace

TaskPeers::TaskPeers(ClusterSpec cluster, Task self, ServerOptions options)
    : cluster_(std::move(cluster)), self_(std::move(self)), options_(std::move(options)) {}

std::shared_ptr<RpcClient> TaskPeers::to(const Task& task) {
  if (!cluster_.has_task(task)) {
    fail(ErrorCode::kInvalidArgument, self_, ": no task '", task, "'; expected one of ", cluster_);
  }
  std::shared_ptr<Peer> peer;
  {
    const MutexLock lock(mutex_);
    auto& place = peers_[task];
    if (place == nullptr) place = std::make_shared<Peer>();
    peer = place;
  }
  const MutexLock lock(peer->connecting);
  // A new session may ask before the old connection has found that the task is back.
  if (peer->client == nullptr || !peer->client->takes_calls()) {
    const std::string& address = cluster_.task_address(task.type, task.index);
    RpcClientOptions client =
        rpc_client_options(self_, {task.type, task.index, address}, {}, options_);
    client.connect_timeout = kConnectTimeout;
    client.patience = kPatience;
    peer->client = RpcClient::connect(concat("grpc://", address), RpcMethod::kOperate, client);
  }
  return peer->client;
}

void TaskPeers::fail_all(const Error& error) {
  std::vector<std::shared_ptr<Peer>> peers;
  {
    const MutexLock lock(mutex_);
    for (const auto& [task, peer] : peers_) peers.push_back(peer);
  }
  for (const auto& peer : peers) {
    const MutexLock lock(peer->connecting);
    if (peer->client != nullptr) peer->client->fail_all(error);
  }
}

}  // namespace tutti::internal
