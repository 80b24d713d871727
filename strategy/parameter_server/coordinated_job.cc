// Chief, workers and servers part ways in start(); the job's verdicts bring them to an end
// together.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinated_job.h"

#include <utility>

#include "tutti/core/logging.h"
#include "tutti/strategy/parameter_server/coordinator/remote_worker.h"
#include "tutti/strategy/parameter_server/coordinator/step_registry.h"
#include "tutti/strategy/parameter_server/coordinator/worker_service.h"

namespace tutti::internal {
namespace {

/// The link's thread tries again; it must not stay long when the coordinator ends.
constexpr Duration kOneTry = std::chrono::milliseconds(500);
/// A connection that broke while the worker lives; a dead one the job knows at once.
constexpr Duration kPatience = std::chrono::seconds(10);

ParameterServerRole role_with_chief(const ClusterResolver& resolver) {
  const ParameterServerRole role = parameter_server_role(resolver);
  if (resolver.cluster_spec().count("chief") == 1) return role;
  fail(ErrorCode::kInvalidArgument, "ParameterServerStrategy: ", resolver.name(),
       ": expected a chief, which coordinates, in ", resolver.cluster_spec(),
       "; try tutti run --chief, or coordinated = false for synchronous training");
}

}  // namespace

CoordinatedJob::CoordinatedJob(const ClusterResolver& resolver, const WorkerGroupOptions& group,
                               ServerOptions server)
    : role_(role_with_chief(resolver)),
      cluster_(resolver.cluster_spec()),
      task_(*resolver.task()),
      group_(group),
      options_(std::move(server)) {
  if (!resolver.rpc_layer().empty()) options_.wire = parse_rpc_wire(resolver.rpc_layer());
  if (role_ == ParameterServerRole::kServer) {
    server_ = std::make_unique<Server>(cluster_, task_.type, task_.index, options_);
  }
  watch_ = std::make_unique<JobWatch>(cluster_, task_, group_);
  if (!server_) servers_ = connect_to_servers(cluster_, task_, group_, options_);
}

/// Connections first: servers end when the chief has left.
CoordinatedJob::~CoordinatedJob() {
  rpc_.reset();
  service_.reset();
  servers_.clear();
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
  options.connect = [client, target = concat(to_string(options_.wire), "://", address)] {
    return RpcClient::connect(target, client);
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
    rpc_ = RpcServer::start(rpc_server_options(cluster_, task_, options_), *service_);
  }
  log_info(
      concat(task_, ": serves ", server_ ? "variables" : "closures", " until the chief is done"));
  const RunEnd end = watch_->wait_for_end(group_.join_timeout);
  if (end.code != 0) log(LogLevel::kError, concat(task_, ": ends: ", end.text));
  watch_->leave();
  return end.code;
}

void CoordinatedJob::require_closure_or_chief(const std::string& what) const {
  if (is_chief() || is_serving_.load()) return;
  fail(ErrorCode::kFailedPrecondition, task_, ": ", what,
       " before ClusterCoordinator::start(); expected the chief alone, or a closure, to do that; ",
       "try it after start(), which returns on the chief only");
}

}  // namespace tutti::internal
