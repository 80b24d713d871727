// Strategy with variables on parameter servers, in processes of the job "ps" or in this process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef TUTTI_WITHOUT_GRPC
#error "this build of tutti has no parameter servers, which need gRPC; build it with libgrpc++-dev"
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
#include "tutti/strategy/parameter_server/session/server.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti {

class Communicator;
class CoordinatedStrategy;
namespace internal {
class VariableService;
}  // namespace internal

/// Options of ParameterServerStrategy. Must be the same on all tasks, except `local` and `server`.
/// The strategy's constructor throws kInvalidArgument for invalid values.
struct ParameterServerOptions {
  /// Options for this worker. Its cross_device_ops sum the gradients of a synchronous step.
  LocalStrategyOptions local = {};
  /// Function that chooses the number of shards of each variable; empty: one shard.
  Partitioner variable_partitioner = {};
  VariablePlacement placement = VariablePlacement::kRoundRobin;
  /// Except in kSync, `local.replicas` is the number of replicas on this worker. In kSyncReplicas,
  /// a read waits for other workers for at most the longer of `local.timeout` and `timeout`, and
  /// then throws an error that names the missing workers.
  UpdateMode update_mode = UpdateMode::kSync;
  /// kSyncReplicas: number of gradients that complete a step, and total number of workers; 0: all
  /// workers of the cluster. If a step needs fewer gradients than there are workers, the surplus
  /// workers are backups: the gradients that arrive last are dropped.
  int replicas_to_aggregate = 0;
  int total_num_replicas = 0;
  /// Without a cluster: number of servers in this process, and number of worker threads of a
  /// ClusterCoordinator.
  int num_servers = 1;
  int num_workers = 2;
  /// Timeout for each response from a server.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  /// With a cluster: options for connecting workers and detecting failed ones, and for servers.
  WorkerGroupOptions cluster = {};
  ServerOptions server = {};
  /// With a cluster: if true, the chief assigns steps with a ClusterCoordinator, and workers run
  /// these steps without waiting for each other.
  bool coordinated = false;
};

/// Location of rows [first_row, first_row + num_rows) of a variable.
struct ShardPlace {
  std::string device;  // "/job:ps/replica:0/task:1/device:CPU:0"
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  bool operator==(const ShardPlace&) const = default;
};

/// Strategy that stores variables on parameter servers. Each variable, or each shard of one, is
/// stored on one server together with the optimizer's slots, and that server applies the updates.
/// run() is one synchronous step of all replicas of all workers; results are bit-identical to
/// MirroredStrategy's with the same number of replicas. Every worker makes the same calls, as under
/// MultiWorkerMirroredStrategy. Corresponds to tf.distribute.ParameterServerStrategy.
///
/// In the other update modes, each worker trains independently, with its own loop. Workers share
/// the variables; the first worker to define a variable creates it on the servers. Replicas are
/// numbered across all workers, all workers have the same number of them, and distribute_dataset()
/// divides a global batch among all replicas. Exchanges between replicas in a step (all_reduce,
/// reduce(), assignments, ON_READ variables) stay within a worker. kSyncReplicas with the gradients
/// of all workers gives results bit-identical to MirroredStrategy's.
///
/// With a ClusterCoordinator, run(), reduce() and distributed datasets outside its steps run on the
/// chief alone; a warning about this is logged once.
class ParameterServerStrategy final : public Strategy {
 public:
  /// Runs everything in this process: `num_servers` servers, and replicas on the local devices.
  /// Throws the same errors as MirroredStrategy, and kInvalidArgument if num_servers is below 1.
  explicit ParameterServerStrategy(ParameterServerOptions options = {});
  /// Joins the cluster; with an empty cluster, same as the constructor above. All tasks run the
  /// same program. Workers train; `local.replicas` is the total number of replicas across all
  /// workers. Tasks of the job "ps", and the chief, run the program up to serve(), in which the
  /// servers process requests and the chief waits until the workers are done. With `coordinated`,
  /// workers and servers run the program up to ClusterCoordinator::serve(), `local.replicas` is the
  /// number on each worker, and the run ends when the chief destroys this object. Throws
  /// kInvalidArgument for a cluster without workers or without servers, and for `coordinated`
  /// without a chief; also throws the same errors as MultiWorkerMirroredStrategy.
  explicit ParameterServerStrategy(const ClusterResolver& resolver,
                                   ParameterServerOptions options = {});
  /// Uses workers that `communicator` connects, and servers that all these workers can reach.
  ParameterServerStrategy(std::unique_ptr<Communicator> communicator,
                          std::vector<std::shared_ptr<internal::VariableService>> servers,
                          ParameterServerOptions options = {});
  /// Creates one of `num_workers` workers that train independently, with servers that all of them
  /// can reach. Throws kInvalidArgument for kSync, or if `worker` is not in [0, num_workers).
  ParameterServerStrategy(int worker, int num_workers,
                          std::vector<std::shared_ptr<internal::VariableService>> servers,
                          ParameterServerOptions options);
  ~ParameterServerStrategy() override;
  std::vector<Device> parameter_devices() const override { return {Device{}}; }
  /// Returns false on tasks that do not train. With `coordinated`, returns true only on the chief.
  bool is_chief() const override;
  int num_workers() const override;
  int worker() const override;
  /// With `coordinated`, returns nullopt on all tasks, which call ClusterCoordinator::serve()
  /// instead. If the run was lost (docs/parameter_server.md, "Failures"), returns 1 and logs the
  /// reason.
  std::optional<int> serve() override;

  UpdateMode update_mode() const;
  int num_parameter_servers() const;
  /// Allows `ClusterCoordinator coordinator(strategy)`. Throws kInvalidArgument for kSyncReplicas
  /// (a coordinator's steps are asynchronous). Throws kFailedPrecondition on tasks of a cluster if
  /// `coordinated` is false.
  operator CoordinatedStrategy&();
  /// Returns a variable's shards in row order. Throws kInvalidArgument for a variable of another
  /// strategy.
  std::vector<ShardPlace> shards_of(const Variable& variable) const;

  /// Scope in which the strategy stores each new variable as one shard, on the server that stores
  /// shard `shard` of `variable`. Not thread-safe. Corresponds to tf's colocate_vars_with.
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
