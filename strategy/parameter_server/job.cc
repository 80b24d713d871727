// Implements ParameterServerJob: tasks that train, serve, coordinate or wait, and are ended
// together by the job's verdicts.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/job.h"

#include <utility>

#include "strategy/parameter_server/coordinator/remote_worker.h"
#include "strategy/parameter_server/coordinator/server_group.h"
#include "strategy/parameter_server/coordinator/worker_service.h"
#include "strategy/parameter_server/session/rpc_options.h"
#include "tutti/cluster/cluster_resolver.h"
#include "tutti/cluster/multi_worker_util.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/logging.h"
#include "tutti/strategy/parameter_server/coordinator/step_registry.h"
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"
#include "tutti/strategy/recovery.h"

namespace tutti::internal {
namespace {

constexpr const char* kStrategy = "ParameterServerStrategy";

/// Returns the cluster without the chief and the servers: the tasks that train and wait for each
/// other.
StaticResolver workers_alone(const ClusterResolver& resolver) {
  const ClusterSpec cluster = resolver.cluster_spec();
  StaticResolverOptions options;
  options.task_type = "worker";
  options.task_id = resolver.task()->index;
  options.name = resolver.name();
  return StaticResolver(ClusterSpec({{"worker", cluster.as_dict().at("worker")}}), options);
}

ParameterServerRole role_in(const ClusterResolver& resolver, bool is_coordinated) {
  const ParameterServerRole role = parameter_server_role(resolver);
  if (!is_coordinated || resolver.cluster_spec().count("chief") == 1) return role;
  fail(ErrorCode::kInvalidArgument, kStrategy, ": ", resolver.name(),
       ": expected a chief as the coordinator in ", resolver.cluster_spec(),
       "; use tutti run --chief, or coordinated = false for synchronous training");
}

}  // namespace

void ServerConnections::connect(const ClusterSpec& cluster, const Task& self,
                                const WorkerGroupOptions& group, const ServerOptions& options,
                                bool outlives_servers) {
  for (const int index : cluster.task_indices("ps")) {
    const std::string& address = cluster.task_address("ps", index);
    RpcClientOptions client = rpc_client_options(self, {"ps", index, address}, group, options);
    client.interruption = interruption_;
    RemoteService::Options connection{concat("grpc://", address), client};
    connection.outlives_restarts = outlives_servers;
    if (outlives_servers) connection.patience = group.join_timeout;
    auto service = std::make_shared<RemoteService>(std::move(connection));
    const MutexLock lock(mutex_);
    services_.push_back(std::move(service));
  }
  interruption_->check();
}

void ServerConnections::fail_all(const Error& error) {
  interruption_->raise(error);
  const MutexLock lock(mutex_);
  for (const auto& each : services_) each->fail_all(error);
}

std::vector<std::shared_ptr<VariableService>> ServerConnections::services() const {
  const MutexLock lock(mutex_);
  return {services_.begin(), services_.end()};
}

ParameterServerRole parameter_server_role(const ClusterResolver& resolver) {
  validate_cluster(resolver);
  const ClusterSpec cluster = resolver.cluster_spec();
  for (const char* const needed : {"worker", "ps"}) {
    if (cluster.count(needed) > 0) continue;
    fail(ErrorCode::kInvalidArgument, kStrategy, ": ", resolver.name(), ": expected at least one ",
         needed, " in ", cluster);
  }
  const std::string& type = resolver.task_type();
  if (type == "evaluator") {
    fail(ErrorCode::kInvalidArgument, kStrategy, ": ", resolver.name(),
         ": this process is the evaluator, which does not train; try a single-process strategy");
  }
  if (type == "ps") return ParameterServerRole::kServer;
  return type == "chief" ? ParameterServerRole::kChief : ParameterServerRole::kWorker;
}

ParameterServerJob::ParameterServerJob(const ClusterResolver& resolver,
                                       const ParameterServerOptions& options, int workers_needed)
    : is_coordinated_(options.coordinated),
      role_(role_in(resolver, is_coordinated_)),
      cluster_(resolver.cluster_spec()),
      task_(*resolver.task()),
      group_(options.cluster),
      options_(options.server) {
  check_rpc_layer(resolver);
  if (is_coordinated_) {
    join_coordinated();
  } else {
    join_workers(resolver, options.update_mode != UpdateMode::kSync, workers_needed);
  }
}

/// Closes the connections first, because servers exit once the chief has left the job.
ParameterServerJob::~ParameterServerJob() {
  rpc_.reset();
  service_.reset();
  subscriptions_.clear();
}

/// Starts serving variables. Called after this task has joined the job: a server that serves
/// earlier could miss the end of a short run, and would then wait for the next run.
void ParameterServerJob::serve_variables() {
  server_ = std::unique_ptr<Server>(new Server(cluster_, task_.type, task_.index, options_,
                                               /*awaits_coordinator=*/is_coordinated_));
}

void ParameterServerJob::join_coordinated() {
  watch_ = std::make_shared<JobWatch>(cluster_, task_, group_);
  if (role_ == ParameterServerRole::kServer) return serve_variables();
  servers_.connect(cluster_, task_, group_, options_, /*outlives_servers=*/true);
}

void ParameterServerJob::join_workers(const ClusterResolver& resolver, bool trains_apart,
                                      int workers_needed) {
  const bool is_worker = role_ == ParameterServerRole::kWorker;
  const bool has_group = is_worker && !trains_apart && num_workers() > 1;
  const RunRules rules{false, num_workers(), workers_needed, starts_workers_again()};
  WorkerGroupOptions group = group_;
  if (Environment::of_process().has("TUTTI_CONTROL")) {
    // A worker group is itself a member of the job, and forwards its verdicts to the watch.
    watch_ = has_group ? std::make_shared<JobWatch>(task_, group_, rules)
                       : std::make_shared<JobWatch>(cluster_, task_, group_, rules);
    group.ends_calls = [watch = watch_](const Verdict& verdict) {
      return watch->evaluate(verdict);
    };
  }
  if (role_ == ParameterServerRole::kServer) serve_variables();
  if (!is_worker) return;
  if (watch_) {
    subscriptions_.push_back(watch_->when_over([this](const std::string& why) {
      servers_.fail_all(Error(ErrorCode::kUnavailable, why));
    }));
  }
  if (!trains_apart) workers_ = WorkerGroup::join(workers_alone(resolver), group);
  if (watch_) watch_->wait_for_servers(group_.join_timeout);
  servers_.connect(cluster_, task_, group_, options_);
}

void ParameterServerJob::coordinate(const std::shared_ptr<ServerGroup>& group) {
  for (const int index : cluster_.task_indices("ps")) {
    subscriptions_.push_back(
        watch_->when_lost({"ps", index}, [this, group](std::uint64_t, const Error& error) {
          if (!group->note_loss(error.message())) servers_.fail_all(error);
        }));
  }
  group->begin();
}

std::string ParameterServerJob::worker_name(int worker) const {
  return concat("worker ", worker, " (", cluster_.task_address("worker", worker), ")");
}

std::unique_ptr<WorkerLink> ParameterServerJob::connect_worker(int worker,
                                                               const StepRegistry& registry) {
  const std::string& address = cluster_.task_address("worker", worker);
  RpcClientOptions client =
      rpc_client_options(task_, {"worker", worker, address}, group_, options_);
  client.connect_timeout = durations::kOneTry;  // must not block the link's thread for long
  RemoteWorkerOptions link;
  link.worker = worker;
  link.connect = [client, target = concat("grpc://", address)] {
    return RpcClient::connect(target, RpcMethod::kRun, client);
  };
  link.when_lost = [this, worker](auto lost) {
    return watch_->when_lost({"worker", worker}, std::move(lost));
  };
  link.steps = [&registry] { return registry.text(); };
  return std::make_unique<RemoteWorker>(std::move(link));
}

int ParameterServerJob::serve(CoordinatedStrategy& strategy, const StepRegistry& registry) {
  TUTTI_CHECK(is_coordinated_ && !is_chief(),
              "serve: expected a coordinated strategy on a task other than the chief");
  is_serving_.store(true);
  if (role_ == ParameterServerRole::kWorker) {
    service_ = std::make_unique<WorkerService>(task_.index, strategy, registry);
    rpc_ = RpcServer::start(rpc_server_options(cluster_, task_, options_),
                            {{RpcMethod::kRun, service_.get()}});
  }
  return serve();
}

int ParameterServerJob::serve() {
  TUTTI_CHECK(is_coordinated_ || role_ != ParameterServerRole::kWorker,
              "serve: expected a server or a chief, got a worker, which trains");
  log_info(concat(task_, ": serving until ", is_coordinated_ ? "the chief is" : "the workers are",
                  " done"));
  if (!watch_) {
    if (server_) server_->join();
    server_.reset();
    return 0;
  }
  const RunEnd end = watch_->wait_for_end(group_.join_timeout);
  if (end.code != 0) log(LogLevel::kError, concat(task_, ": ends: ", end.text));
  watch_->leave();
  servers_.fail_all(Error(ErrorCode::kCancelled, concat(task_, ": the run has ended")));
  subscriptions_.clear();
  rpc_.reset();
  service_.reset();
  server_.reset();
  return end.code;
}

void ParameterServerJob::require_closure_or_chief(const std::string& what) const {
  if (!is_coordinated_ || is_chief()) return;
  if (is_serving_.load() && ClosureContext::current() != nullptr) return;
  fail(ErrorCode::kFailedPrecondition, task_, ": ", what,
       " before ClusterCoordinator::serve(); expected this only on the chief or in a closure; ",
       "first call `if (const auto code = coordinator.serve()) return *code;`");
}

}  // namespace tutti::internal
