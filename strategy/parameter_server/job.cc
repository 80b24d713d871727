// Who trains, who serves, who waits; and how workers reach their servers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/job.h"

#include <cstdio>
#include <cstdlib>
#include <set>
#include <utility>

#include "tutti/cluster/control/join_job.h"
#include "tutti/cluster/environment.h"
#include "tutti/cluster/multi_worker_util.h"
#include "tutti/cluster/resolvers/static_resolver.h"
#include "tutti/cluster/rpc/rpc_client.h"
#include "tutti/core/logging.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/client/remote_service.h"

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

std::vector<MemberTask> members_of(const ClusterSpec& cluster) {
  std::vector<MemberTask> members;
  for (const Task& task : training_tasks(cluster)) {
    members.push_back({task.type, task.index, cluster.task_address(task.type, task.index)});
  }
  return members;
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

std::vector<std::shared_ptr<VariableService>> connect_to_servers(const ClusterSpec& cluster,
                                                                 const Task& self,
                                                                 const WorkerGroupOptions& group,
                                                                 const ServerOptions& options,
                                                                 bool outlives_servers) {
  std::vector<std::shared_ptr<VariableService>> servers;
  for (const int index : cluster.task_indices("ps")) {
    const std::string& address = cluster.task_address("ps", index);
    RpcClientOptions client = rpc_client_options(self, {"ps", index, address}, group, options);
    if (outlives_servers) {
      client.survives_restarts = true;
      client.patience = kPatienceWithServers;
    }
    servers.push_back(std::make_shared<RemoteService>(
        RpcClient::connect(concat(to_string(options.wire), "://", address), client)));
  }
  return servers;
}

void end_process(int code) {
  std::fflush(nullptr);
  std::_Exit(code);
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

/// A chief's place in the job, where there is a launcher who expects it: says good-bye when the
/// workers have.
class ParameterServerJob::Bystander {
 public:
  Bystander(const ClusterSpec& cluster, WorkerGroupOptions group)
      : num_workers_(cluster.count("worker")) {
    JoinOptions options = std::move(group.join);
    options.client.on_verdict = [this](const Verdict& verdict) { take(verdict); };
    plane_ = join_job(members_of(cluster), 0, options);
    plane_.client->wait_for_members(deadline_after(Clock::system().now(), group.join_timeout));
  }

  int wait() {
    MutexLock lock(mutex_);
    const auto is_over = [this]() TUTTI_REQUIRES(mutex_) {
      return failed_ || static_cast<int>(gone_.size()) == num_workers_;
    };
    while (!changed_.wait_for(mutex_, std::chrono::hours(1), is_over)) {
    }
    return failed_ ? 1 : 0;
  }

 private:
  void take(const Verdict& verdict) {
    MutexLock lock(mutex_);
    if (verdict.kind == VerdictKind::kLeft) gone_.insert(verdict.who.task.to_string());
    failed_ = failed_ || verdict.is_fatal;
    changed_.notify_all();
  }

  const int num_workers_;
  Mutex mutex_;
  CondVar changed_;
  std::set<std::string> gone_ TUTTI_GUARDED_BY(mutex_);
  bool failed_ TUTTI_GUARDED_BY(mutex_) = false;
  ControlPlane plane_;
};

ParameterServerJob::ParameterServerJob(const ClusterResolver& resolver,
                                       const WorkerGroupOptions& cluster, ServerOptions server,
                                       bool trains_apart)
    : role_(parameter_server_role(resolver)), task_(resolver.task()->to_string()) {
  const ClusterSpec spec = resolver.cluster_spec();
  const Task self = *resolver.task();
  if (!resolver.rpc_layer().empty()) server.wire = parse_rpc_wire(resolver.rpc_layer());
  switch (role_) {
    case ParameterServerRole::kServer:
      server_ = std::make_unique<Server>(spec, self.type, self.index, server);
      return;
    case ParameterServerRole::kChief:
      if (Environment::of_process().has("TUTTI_CONTROL")) {
        bystander_ = std::make_unique<Bystander>(spec, cluster);
      }
      return;
    case ParameterServerRole::kWorker:
      break;
  }
  if (!trains_apart) workers_ = WorkerGroup::join(workers_alone(resolver), cluster);
  servers_ = connect_to_servers(spec, self, cluster, server);
}

ParameterServerJob::~ParameterServerJob() = default;

int ParameterServerJob::stand_aside() {
  TUTTI_CHECK(role_ != ParameterServerRole::kWorker, "stand_aside: a worker trains");
  log_info(concat(task_, role_ == ParameterServerRole::kServer
                             ? ": serves variables until the workers are done"
                             : ": the workers train by themselves; waits until they are done"));
  if (server_) {
    server_->join();
    server_.reset();
    return 0;
  }
  const int code = bystander_ ? bystander_->wait() : 0;
  bystander_.reset();
  return code;
}

}  // namespace tutti::internal
