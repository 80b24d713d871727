// Variables on parameter servers: the processes of the job "ps", or threads of this one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef TUTTI_WITHOUT_GRPC
#error "this build of tutti has no gRPC, so no parameter servers; build it with libgrpc++-dev"
#endif

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/cluster_resolver.h"
#include "tutti/cluster/control/join_options.h"
#include "tutti/strategy/parameter_server/partitioner.h"
#include "tutti/strategy/parameter_server/protocol/parameter_server_modes.h"
#include "tutti/strategy/parameter_server/protocol/server_statistics.h"
#include "tutti/strategy/parameter_server/session/server.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti {

class Communicator;
class CoordinatedStrategy;
namespace internal {
class VariableService;
}  // namespace internal

/// Where variables lie and how workers keep pace; the same on all tasks but for `local` and
/// `server`. What makes no sense is kInvalidArgument when the strategy is made.
struct ParameterServerOptions {
  /// For this worker. cross_device_ops sum the gradients of a synchronous step.
  LocalStrategyOptions local = {};
  /// Into how many shards each variable is cut; none: one.
  Partitioner variable_partitioner = {};
  VariablePlacement placement = VariablePlacement::kRoundRobin;
  /// How workers keep pace. In all modes but kSync `local.replicas` are those of this worker.
  /// kSyncReplicas: `local.timeout` is how long a read waits for other workers before an error
  /// names those that are waited for.
  UpdateMode update_mode = UpdateMode::kSync;
  /// kSyncReplicas: how many workers' gradients make a step, of how many. 0: all workers of the
  /// cluster. Fewer to aggregate than there are: the others are backups.
  int replicas_to_aggregate = 0;
  int total_num_replicas = 0;
  /// Without a cluster: servers in this process, and workers of a ClusterCoordinator, each a
  /// thread.
  int num_servers = 1;
  int num_workers = 2;
  /// For every answer of a server.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  /// With a cluster: how workers find and watch each other, and how servers are reached.
  WorkerGroupOptions cluster = {};
  ServerOptions server = {};
  /// With a cluster: its chief hands out steps with a ClusterCoordinator, and workers run these and
  /// do not wait for each other. The same on all tasks.
  bool coordinated = false;
};

/// Rows [first_row, first_row + num_rows) of a variable and where they are.
struct ShardPlace {
  std::string device;  // "/job:ps/replica:0/task:1/device:CPU:0"
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  bool operator==(const ShardPlace&) const = default;
};

/// Variables made in its scope live on parameter servers, each (or each shard of it) on one, with
/// the optimizer's slots beside it; servers apply updates where the values are. run() is one
/// synchronous step of all replicas of all workers: the same number of replicas gives the bits of
/// MirroredStrategy. Every worker makes the same calls, as under MultiWorkerMirroredStrategy.
/// tf.distribute.ParameterServerStrategy.
///
/// In the other update modes each worker trains apart, with a loop of its own; the variables are
/// common, made by whoever comes first. Replicas are numbered over all workers, each of which has
/// as many, and distribute_dataset() cuts a global batch for all of them; but what replicas
/// exchange in a step (all_reduce, reduce(), assignments, ON_READ variables) stays within a worker.
/// kSyncReplicas with the gradients of all workers gives the bits of MirroredStrategy.
///
/// With a ClusterCoordinator, run(), reduce() and datasets that are distributed outside its steps
/// are the chief's alone: permitted, and warned of once.
class ParameterServerStrategy final : public Strategy {
 public:
  /// All in this process: `num_servers` servers, replicas on the local devices. Throws
  /// kInvalidArgument as MirroredStrategy, and for no servers.
  explicit ParameterServerStrategy(ParameterServerOptions options = {});
  /// The tasks of the cluster, an empty one as above. All run the same program: workers train, with
  /// `local.replicas` over all of them; tasks of job ps, and a chief, do what the program does up
  /// to serve(), in which they serve, or wait, until the workers are done. With `coordinated`,
  /// workers and servers do what the program does up to ClusterCoordinator::serve(),
  /// `local.replicas` are of each worker, and the end of this object on the chief is the end of the
  /// run. Throws kInvalidArgument for a cluster without worker or
  /// ps, or coordinated without chief, and as MultiWorkerMirroredStrategy.
  explicit ParameterServerStrategy(const ClusterResolver& resolver,
                                   ParameterServerOptions options = {});
  /// Workers that are connected otherwise, and servers that all of them reach.
  ParameterServerStrategy(std::unique_ptr<Communicator> communicator,
                          std::vector<std::shared_ptr<internal::VariableService>> servers,
                          ParameterServerOptions options = {});
  /// One of several workers that train apart, on servers that all of them reach. Throws
  /// kInvalidArgument for kSync, and for numbers that make no sense.
  ParameterServerStrategy(int worker, int num_workers,
                          std::vector<std::shared_ptr<internal::VariableService>> servers,
                          ParameterServerOptions options);
  ~ParameterServerStrategy() override;
  std::vector<Device> parameter_devices() const override { return {Device{}}; }
  /// Not where nothing is trained. With `coordinated`: the chief alone.
  bool is_chief() const override;
  int num_workers() const override;
  int worker() const override;
  /// With `coordinated` nothing on all tasks: see ClusterCoordinator::serve(). A run that was lost
  /// (docs/parameter_server.md, "When something dies") gives 1, and a log line that says why.
  std::optional<int> serve() override;

  UpdateMode update_mode() const;
  int num_parameter_servers() const;
  /// What each server has done for all workers so far: lateness of gradients, what was dropped.
  /// Throws as a read of variables.
  std::vector<ServerStatistics> server_statistics();
  /// For `ClusterCoordinator coordinator(strategy)`, whose steps are asynchronous: throws
  /// kInvalidArgument for kSyncReplicas, kFailedPrecondition for the tasks of a cluster without
  /// `coordinated`.
  operator CoordinatedStrategy&();
  /// Where a variable of this strategy is, by rows. Throws kInvalidArgument for other variables.
  std::vector<ShardPlace> shards_of(const Variable& variable) const;

  /// While it lives, variables that this thread makes (in the scope) are not cut, and are put where
  /// that shard of `variable` is. tf's colocate_vars_with.
  class ColocationScope {
   public:
    ColocationScope(ParameterServerStrategy& strategy, const Variable& variable, int shard = 0);
    ~ColocationScope();
    ColocationScope(const ColocationScope&) = delete;
    ColocationScope& operator=(const ColocationScope&) = delete;

   private:
    ParameterServerStrategy& strategy_;
    std::optional<int> previous_;
  };

 protected:
  std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                  VariableOptions options) override;
  std::shared_ptr<VariableStorage> create_storage_from(const Variable::Initializer& initializer,
                                                       const RandomKey& key,
                                                       VariableOptions options) override;
  void run_on_replicas(const std::function<void(ReplicaContext&)>& body) override;
  void complete_input_plan(InputPlan& plan) override;
  std::vector<Tensor> values_of_all_replicas(const PerReplica<Tensor>& local,
                                             std::string_view who) override;

 private:
  struct Impl;
  struct Parts;
  ParameterServerStrategy(Parts parts, const ParameterServerOptions& options);

  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
