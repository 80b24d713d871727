// Chief, workers and servers part ways in serve(); the job's verdicts bring them to an end
// together.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinated_job.h"

#include <utility>

#include "tutti/cluster/net/hello.h"
#include "tutti/core/logging.h"
#include "tutti/strategy/parameter_server/coordinator/remote_servers.h"
#include "tutti/strategy/parameter_server/coordinator/remote_worker.h"
#include "tutti/strategy/parameter_server/coordinator/step_registry.h"
#include "tutti/strategy/parameter_server/coordinator/worker_service.h"
#include "tutti/strategy/parameter_server/server/durable_handler.h"
#include "tutti/strategy/parameter_server/server_address.h"

namespace tutti::internal {
namespace {

/// The link's thread tries again; it must not stay long when the coordinator ends.
constexpr Duration kOneTry = std::chrono::milliseconds(500);
/// A connection that broke while the worker lives; a dead one the job knows at once.
constexpr Duration kPatience = std::chrono::seconds(10);
/// The same of the way on which servers get their orders.
constexpr Duration kOrderPatience = std::chrono::seconds(2);

ParameterServerRole role_with_chief(const ClusterResolver& resolver) {
  const ParameterServerRole role = parameter_server_role(resolver);
  if (resolver.cluster_spec().count("chief") == 1) return role;
  fail(ErrorCode::kInvalidArgument, "ParameterServerStrategy: ", resolver.name(),
       ": expected a chief, which coordinates, in ", resolver.cluster_spec(),
       "; try tutti run --chief, or coordinated = false for synchronous training");
}

}  // namespace

CoordinatedJob::CoordinatedJob(const ClusterResolver& resolver, const WorkerGroupOptions& group,
                               ServerOptions server, Durability durability)
    : role_(role_with_chief(resolver)),
      cluster_(resolver.cluster_spec()),
      task_(*resolver.task()),
      group_(group),
      options_(std::move(server)),
      durability_(durability) {
  check_rpc_layer(resolver);
  if (role_ == ParameterServerRole::kServer) serve_variables();
  watch_ = std::make_unique<JobWatch>(cluster_, task_, group_);
  if (role_ == ParameterServerRole::kServer) return;
  const bool outlives_servers = durability_ != Durability::kNone;
  if (is_chief() && outlives_servers) meet_servers();
  servers_.connect(cluster_, task_, group_, options_, outlives_servers);
}

/// Connections first: servers end when the chief has left.
CoordinatedJob::~CoordinatedJob() {
  rpc_.reset();
  service_.reset();
  server_group_.reset();
}

void CoordinatedJob::serve_variables() {
  if (durability_ == Durability::kNone) {
    server_ = std::make_unique<Server>(cluster_, task_.type, task_.index, options_);
    return;
  }
  variables_ =
      std::make_unique<DurableHandler>(task_.to_string(), task_.index, cluster_.count("ps"));
  rpc_ = RpcServer::start(
      rpc_server_options(cluster_, task_, options_),
      {{RpcMethod::kApply, variables_.get()}, {RpcMethod::kOrder, &variables_->orders()}});
  log_info(concat("server: ", task_, " serves at ", rpc_->target(), ", durability ", durability_));
}

/// Before anybody asks them for variables: a server of a former run still ends.
void CoordinatedJob::meet_servers() {
  const std::uint64_t run = new_run_nonce();
  std::vector<RemoteServerOptions> all;
  for (const int index : cluster_.task_indices("ps")) {
    const std::string& address = cluster_.task_address("ps", index);
    RpcClientOptions client = rpc_client_options(task_, {"ps", index, address}, group_, options_);
    client.connect_timeout = kOneTry;
    client.patience = kOrderPatience;
    RemoteServerOptions options;
    options.name = concat("ps ", index, " (", address, ")");
    options.run = run;
    options.connect = [client, target = concat("grpc://", address)] {
      return RpcClient::connect(target, RpcMethod::kOrder, client);
    };
    options.when_lost = [this, index](auto lost) {
      return watch_->when_server_lost(index, std::move(lost));
    };
    all.push_back(std::move(options));
  }
  server_group_ = std::make_unique<RemoteServers>(std::move(all), group_.join_timeout);
  server_group_->wait_for_all(deadline_after(Clock::system().now(), group_.join_timeout));
}

std::string CoordinatedJob::worker_name(int worker) const {
  return concat("worker ", worker, " (", cluster_.task_address("worker", worker), ")");
}

std::unique_ptr<WorkerLink> CoordinatedJob::connect_worker(int worker,
                                                           const StepRegistry& registry) {
  const std::string& address = cluster_.task_address("worker", worker);
  RpcClientOptions client =
      rpc_client_options(task_, {"worker", worker, address}, group_, options_);
  client.connect_timeout = kOneTry;
  client.patience = kPatience;
  RemoteWorkerOptions options;
  options.worker = worker;
  options.steps = [&registry] { return registry.text(); };
  options.connect = [client, target = concat("grpc://", address)] {
    return RpcClient::connect(target, RpcMethod::kRun, client);
  };
  options.when_lost = [this, worker](auto lost) {
    return watch_->when_worker_lost(worker, std::move(lost));
  };
  return std::make_unique<RemoteWorker>(std::move(options));
}

int CoordinatedJob::serve(CoordinatedStrategy& strategy, const StepRegistry& registry) {
  TUTTI_CHECK(!is_chief(), "serve: the chief coordinates");
  is_serving_.store(true);
  if (role_ == ParameterServerRole::kWorker) {
    service_ = std::make_unique<WorkerService>(task_.index, strategy, registry);
    rpc_ = RpcServer::start(rpc_server_options(cluster_, task_, options_),
                            {{RpcMethod::kRun, service_.get()}});
  }
  log_info(concat(task_, ": serves ",
                  role_ == ParameterServerRole::kServer ? "variables" : "closures",
                  " until the chief is done"));
  const RunEnd end = watch_->wait_for_end(group_.join_timeout);
  if (end.code != 0) log(LogLevel::kError, concat(task_, ": ends: ", end.text));
  watch_->leave();
  servers_.fail_all(Error(ErrorCode::kCancelled, concat(task_, ": the run has ended")));
  rpc_.reset();
  service_.reset();
  return end.code;
}

void CoordinatedJob::require_closure_or_chief(const std::string& what) const {
  if (is_chief() || is_serving_.load()) return;
  fail(ErrorCode::kFailedPrecondition, task_, ": ", what,
       " before ClusterCoordinator::serve(); expected the chief alone, or a closure, to do that; ",
       "try it after `if (const auto code = coordinator.serve()) return *code;`");
}

}  // namespace tutti::internal
