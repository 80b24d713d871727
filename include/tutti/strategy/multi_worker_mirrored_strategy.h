// Synchronous training on the devices of several processes: variables mirrored on all of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "tutti/cluster/cluster_resolver.h"
#include "tutti/cluster/control/join_options.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/strategy/multi_worker/straggler.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti {

namespace internal {
struct TeamSetup;
class StateDigest;
}  // namespace internal

/// Options for this worker's replicas, for connections between workers, and for detecting slow or
/// corrupt workers. Must be equal on all workers, except for the devices in `local`.
struct MultiWorkerOptions {
  /// Options for this worker, except that `replicas` and `replica_weights` cover all workers.
  /// Replicas are divided evenly; the first workers get one more if needed. If `replicas` is 0,
  /// each local device gets one. cross_device_ops names the algorithm that sums gradients between
  /// workers: canonical, ring, hierarchical_copy, mpi or a plugin that spans processes; or nccl, if
  /// each replica has its own GPU. Default: nccl if all workers support it and `deterministic` is
  /// not set, else canonical; a log line gives the reason. Values other than gradients are combined
  /// in canonical order.
  LocalStrategyOptions local = {};
  /// Options for connecting the workers and for detecting failed ones.
  WorkerGroupOptions cluster = {};
  /// Options for warnings about a slow worker.
  StragglerOptions stragglers = {};
  /// Number of steps between comparisons of an eight-byte digest of the mirrored variables; 0:
  /// never. A difference (e.g. a bit flip in one worker's memory) throws kDataLoss on all workers,
  /// naming the variable and each worker's digest.
  int digest_steps = 0;
};

/// MirroredStrategy over the devices of all workers. Replicas are numbered in worker order. With
/// algorithms that add in canonical order, results depend on the number of replicas, but not on the
/// number of workers. Every worker must run the same program and make the same calls: run(),
/// reduce(), gather(), variable creation, reads of ON_READ variables outside run(), and saves are
/// collective. If a worker fails or is lost, the step ends on all workers with an error that names
/// the failed worker, and later calls to run() throw. Corresponds to
/// tf.distribute.MultiWorkerMirroredStrategy.
class MultiWorkerMirroredStrategy final : public Strategy {
 public:
  /// Trains on the cluster's chief and workers, or in this process alone if the cluster is empty.
  /// Waits until all of them have joined. Throws the same errors as WorkerGroup::join() and
  /// MirroredStrategy. Also throws kInvalidArgument if the workers' options contradict each other,
  /// or if they name NCCL and a worker cannot use it. Throws kUnimplemented if the options compress
  /// gradients on GPUs, or with an algorithm other than canonical.
  explicit MultiWorkerMirroredStrategy(const ClusterResolver& resolver,
                                       MultiWorkerOptions options = {});
  /// Same as above, but for workers that are already connected: this worker is
  /// communicator->rank(), and gradients are summed between workers by the communicator's
  /// algorithm, or by NCCL under the same conditions as above. Ignores options.cluster.
  explicit MultiWorkerMirroredStrategy(std::unique_ptr<Communicator> communicator,
                                       MultiWorkerOptions options = {});
  MultiWorkerMirroredStrategy(std::unique_ptr<Communicator> communicator,
                              LocalStrategyOptions local)
      : MultiWorkerMirroredStrategy(std::move(communicator),
                                    MultiWorkerOptions{.local = std::move(local)}) {}
  ~MultiWorkerMirroredStrategy() override;

  /// Returns true if this process replaces a worker that died while the other workers kept running.
  /// A replacement can create variables and datasets; it can train only once Recovery::run() has
  /// connected it. Without Recovery, the surviving workers exit, too; once all workers have been
  /// restarted, the first step connects them as a new job.
  bool is_replacement() const;
  /// Returns the worker that the last warning named as slow. Same on all workers.
  std::optional<Straggler> straggler() const;

 protected:
  std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                  VariableOptions options) override;
  void run_on_replicas(const std::function<void(ReplicaContext&)>& body) override;

 private:
  MultiWorkerMirroredStrategy(internal::TeamSetup setup, int digest_steps);

  std::unique_ptr<internal::StateDigest> digest_;
};

}  // namespace tutti
