// Who trains, who serves, who waits; and how workers reach their servers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/job.h"

#include <set>
#include <utility>

#include "tutti/cluster/environment.h"
#include "tutti/cluster/multi_worker_util.h"
#include "tutti/cluster/resolvers/static_resolver.h"
#include "tutti/core/logging.h"
#include "tutti/strategy/parameter_server/server_address.h"
#include "tutti/strategy/recovery.h"

namespace tutti::internal {
namespace {

constexpr const char* kWho = "ParameterServerStrategy";
/// For a server that is to come back: what waits for it has deadlines of its own.
constexpr Duration kPatienceWithServers = std::chrono::seconds(300);

/// The same cluster without chief and servers: those that train and wait for each other.
StaticResolver workers_alone(const ClusterResolver& resolver) {
  const ClusterSpec cluster = resolver.cluster_spec();
  StaticResolverOptions options;
  options.task_type = "worker";
  options.task_id = resolver.task()->index;
  options.name = resolver.name();
  return StaticResolver(ClusterSpec({{"worker", cluster.as_dict().at("worker")}}), options);
}

}  // namespace

RpcClientOptions rpc_client_options(const Task& self, const MemberTask& server,
                                    const WorkerGroupOptions& cluster,
                                    const ServerOptions& options) {
  const Environment environment = Environment::of_process();
  RpcClientOptions client;
  client.self = {self.type, self.index, ""};
  client.server = server;
  client.incarnation =
      static_cast<std::uint64_t>(environment.find_int("TUTTI_RESTART", 0, 1 << 30).value_or(0));
  client.job_id =
      options.job_id.empty() ? environment.find("TUTTI_JOB_ID").value_or("") : options.job_id;
  client.secret = options.secret.is_set() ? options.secret : JobSecret::from_environment();
  client.tls = options.tls;
  client.connect_timeout = cluster.join_timeout;
  // A server that is gone has taken its variables along; nobody starts this step again.
  client.patience = std::chrono::seconds(2);
  return client;
}

void ServerConnections::connect(const ClusterSpec& cluster, const Task& self,
                                const WorkerGroupOptions& group, const ServerOptions& options,
                                bool outlives_servers) {
  for (const int index : cluster.task_indices("ps")) {
    const std::string& address = cluster.task_address("ps", index);
    RpcClientOptions client = rpc_client_options(self, {"ps", index, address}, group, options);
    client.interruption = interruption_;
    if (outlives_servers) {
      client.survives_restarts = true;
      client.patience = kPatienceWithServers;
    }
    auto service = std::make_shared<RemoteService>(
        RpcClient::connect(concat("grpc://", address), RpcMethod::kApply, client));
    const MutexLock lock(mutex_);
    services_.push_back(std::move(service));
  }
  interruption_->check();
}

void ServerConnections::fail_all(const Error& error) {
  interruption_->raise(error);
  const MutexLock lock(mutex_);
  for (const auto& each : services_) each->client().fail_all(error);
}

std::vector<std::shared_ptr<VariableService>> ServerConnections::services() const {
  const MutexLock lock(mutex_);
  return {services_.begin(), services_.end()};
}

ParameterServerRole parameter_server_role(const ClusterResolver& resolver) {
  const ClusterSpec cluster = resolver.cluster_spec();
  for (const std::string& job : cluster.jobs()) {
    static const std::set<std::string> known{"chief", "worker", "ps", "evaluator"};
    if (known.contains(job)) continue;
    fail(ErrorCode::kInvalidArgument, kWho, ": ", resolver.name(), ": Disallowed task type '", job,
         "'; expected chief, worker, ps or evaluator");
  }
  const std::string& type = resolver.task_type();
  if (type != "chief" && type != "worker" && type != "ps" && type != "evaluator") {
    fail(ErrorCode::kInvalidArgument, kWho, ": ", resolver.name(), ": Unrecognized task_type: '",
         type, "'; expected chief, worker, ps or evaluator");
  }
  if (cluster.count("worker") == 0) {
    fail(ErrorCode::kInvalidArgument, kWho, ": ", resolver.name(),
         ": there must be at least one worker in ", cluster);
  }
  if (cluster.count("ps") == 0) {
    fail(ErrorCode::kInvalidArgument, kWho, ": ", resolver.name(),
         ": there must be at least one ps in ", cluster);
  }
  validate_cluster(resolver);
  if (type == "evaluator") {
    fail(ErrorCode::kInvalidArgument, kWho, ": ", resolver.name(),
         ": this process is the evaluator, which does not train; try a strategy of one process");
  }
  if (type == "ps") return ParameterServerRole::kServer;
  return type == "chief" ? ParameterServerRole::kChief : ParameterServerRole::kWorker;
}

ParameterServerJob::ParameterServerJob(const ClusterResolver& resolver,
                                       const WorkerGroupOptions& cluster, ServerOptions server,
                                       bool trains_apart, int workers_needed)
    : role_(parameter_server_role(resolver)), task_(resolver.task()->to_string()), group_(cluster) {
  const ClusterSpec spec = resolver.cluster_spec();
  const Task self = *resolver.task();
  const int num_workers = spec.count("worker");
  check_rpc_layer(resolver);
  if (role_ == ParameterServerRole::kServer) {
    server_ = std::make_unique<Server>(spec, self.type, self.index, server);
  }
  const bool has_group = role_ == ParameterServerRole::kWorker && !trains_apart && num_workers > 1;
  const RunRules rules{false, num_workers, workers_needed, starts_workers_again()};
  WorkerGroupOptions group = cluster;
  if (Environment::of_process().has("TUTTI_CONTROL")) {
    // A group is a member for itself, and hears what the watch is to know.
    watch_ = has_group ? std::make_shared<JobWatch>(self, group_, rules)
                       : std::make_shared<JobWatch>(spec, self, group_, rules);
    group.ends_calls = [watch = watch_](const Verdict& verdict) { return watch->hear(verdict); };
    subscribe(num_workers);
  }
  if (role_ != ParameterServerRole::kWorker) return;
  if (!trains_apart) workers_ = WorkerGroup::join(workers_alone(resolver), group);
  if (watch_) watch_->wait_for_servers(group_.join_timeout);
  servers_.connect(spec, self, group_, server);
}

ParameterServerJob::~ParameterServerJob() = default;

void ParameterServerJob::subscribe(int num_workers) {
  if (role_ == ParameterServerRole::kWorker) {
    subscriptions_.push_back(watch_->when_over([this](const std::string& why) {
      servers_.fail_all(Error(ErrorCode::kUnavailable, why));
    }));
  }
  for (int worker = 0; server_ && worker < num_workers; ++worker) {
    subscriptions_.push_back(
        watch_->when_worker_lost(worker, [this, worker](std::uint64_t incarnation, const Error&) {
          server_->give_up({"worker", worker}, incarnation);
        }));
  }
}

int ParameterServerJob::serve() {
  TUTTI_CHECK(role_ != ParameterServerRole::kWorker, "serve: a worker trains");
  log_info(concat(task_, role_ == ParameterServerRole::kServer
                             ? ": serves variables until the workers are done"
                             : ": the workers train by themselves; waits until they are done"));
  if (!watch_) {
    if (server_) server_->join();
    server_.reset();
    return 0;
  }
  const RunEnd end = watch_->wait_for_end(group_.join_timeout);
  if (end.code != 0) log(LogLevel::kError, concat(task_, ": ends: ", end.text));
  watch_->leave();
  subscriptions_.clear();
  server_.reset();
  return end.code;
}

}  // namespace tutti::internal
