// Server for variables and sessions; tracks the clients that still need it.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/session/server.h"

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "strategy/parameter_server/server/server_store.h"
#include "strategy/parameter_server/session/rpc_options.h"
#include "strategy/parameter_server/session/task_sessions.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/logging.h"
#include "tutti/core/sync.h"

namespace tutti {
namespace {

/// Returns the tasks of other jobs that must connect, such as "worker 0". A chief or an evaluator
/// may send no requests, so neither is included.
std::set<std::string> clients_of(const ClusterSpec& cluster, const Task& self) {
  std::set<std::string> clients;
  for (const Task& task : cluster.tasks()) {
    const bool may_stay_away = task.type == "chief" || task.type == "evaluator";
    if (task.type != self.type && !may_stay_away) clients.insert(task.to_string());
  }
  return clients;
}

Task own_task(const ClusterResolver& resolver) {
  if (const auto task = resolver.task()) return *task;
  fail(ErrorCode::kInvalidArgument, "Server: ", resolver.name(),
       " does not name the task of this process; expected a task of job ps; set its task_type and "
       "task_id");
}

}  // namespace

struct Server::Impl final : internal::VariableHandler {
  Impl(const ClusterSpec& given, Task self, const ServerOptions& options, bool awaits_coordinator)
      : VariableHandler(store),
        cluster(given),
        task(std::move(self)),
        // With a coordinator, versions of values are distinguished by its generations instead.
        store(task.to_string(), awaits_coordinator ? 0 : internal::restarts_of_task(),
              !awaits_coordinator),
        sessions(cluster, task, options,
                 [this] {
                   MutexLock lock(mutex);
                   changed.notify_all();
                 }),
        missing(clients_of(cluster, task)),
        rpc(RpcServer::start(internal::rpc_server_options(cluster, task, options),
                             {{RpcMethod::kApply, this}, {RpcMethod::kOperate, &sessions}})) {}

  void take(std::shared_ptr<RpcCall> call) override {
    {
      MutexLock lock(mutex);
      missing.erase(call->peer().task.to_string());
      here.insert_or_assign(call->peer().client, Client{call->peer()});
      // The task has reconnected, perhaps as a new process: forget its lost connection.
      std::erase_if(here, [&](const auto& each) {
        return each.second.lost_at && each.second.peer.task.same_task(call->peer().task);
      });
      any_came = true;
    }
    VariableHandler::take(std::move(call));
  }

  void client_left(const RpcPeer& peer) override {
    VariableHandler::client_left(peer);
    MutexLock lock(mutex);
    here.erase(peer.client);
    changed.notify_all();
  }

  /// Does not end this server immediately, because the client may reconnect.
  void client_lost(const RpcPeer& peer) override {
    VariableHandler::client_left(peer);
    MutexLock lock(mutex);
    if (const auto found = here.find(peer.client); found != here.end()) {
      found->second.lost_at = Clock::system().now();
    }
    changed.notify_all();
  }

  void stop() {
    MutexLock lock(mutex);
    stopped = true;
    changed.notify_all();
  }

  void join() {
    MutexLock lock(mutex);
    const auto is_over = [this]() TUTTI_REQUIRES(mutex) {
      return stopped || sessions.are_over() || (any_came && missing.empty() && here.empty());
    };
    TimePoint now = Clock::system().now();
    while (!changed.wait_until(mutex, deadline_after(now, durations::kHeartbeatEvery), is_over)) {
      now = Clock::system().now();
      std::erase_if(here, [&](const auto& each) {
        const auto& lost_at = each.second.lost_at;
        return lost_at && deadline_after(*lost_at, durations::kUnreachableAfter) <= now;
      });
    }
  }

  /// A client that uses this server's variables.
  struct Client {
    RpcPeer peer;
    std::optional<TimePoint> lost_at = {};  // time at which the client's connection broke
  };

  const ClusterSpec cluster;
  const Task task;
  internal::VariableStore store;
  Mutex mutex;
  CondVar changed;
  internal::TaskSessions sessions;
  std::set<std::string> missing TUTTI_GUARDED_BY(mutex);  // tasks that have not connected yet
  std::map<std::uint64_t, Client> here TUTTI_GUARDED_BY(mutex);  // keyed by RpcPeer::client
  bool any_came TUTTI_GUARDED_BY(mutex) = false;
  bool stopped TUTTI_GUARDED_BY(mutex) = false;
  std::unique_ptr<RpcServer> rpc;  // last member: stops before the members it calls
};

Server::Server(const ClusterSpec& cluster, const std::string& job_name, int task_index,
               ServerOptions options)
    : Server(cluster, job_name, task_index, options, /*awaits_coordinator=*/false) {}

Server::Server(const ClusterSpec& cluster, const std::string& job_name, int task_index,
               const ServerOptions& options, bool awaits_coordinator)
    : impl_(std::make_unique<Impl>(cluster, Task{job_name, task_index}, options,
                                   awaits_coordinator)) {
  log_info(concat("server: ", impl_->task, " serves at ", target()));
}

Server::Server(const ClusterResolver& resolver, ServerOptions options)
    : Server((internal::check_rpc_layer(resolver), resolver.cluster_spec()),
             own_task(resolver).type, own_task(resolver).index, std::move(options)) {}

std::unique_ptr<Server> Server::create_local_server(ServerOptions options) {
  return std::make_unique<Server>(ClusterSpec({{"local", {"127.0.0.1:0"}}}), "local", 0,
                                  std::move(options));
}

Server::~Server() { impl_->rpc.reset(); }

std::string Server::target() const { return impl_->rpc->target(); }
const ClusterSpec& Server::cluster() const { return impl_->cluster; }
const Task& Server::task() const { return impl_->task; }
void Server::join() { impl_->join(); }
void Server::stop() { impl_->stop(); }
}  // namespace tutti
