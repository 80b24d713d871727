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

/// This worker's replicas, and how workers find, watch and compare each other. The same on all
/// workers but for the devices in `local`.
struct MultiWorkerOptions {
  /// For this worker, except `replicas` (of all workers, shared out evenly, the first workers
  /// getting one more; 0: one per local device) and `replica_weights` (of all replicas).
  /// cross_device_ops names what sums gradients between workers (canonical, ring,
  /// halving_doubling, tree, hierarchical_copy, auto, mpi or a plugin that spans processes; nccl,
  /// for replicas that all have a GPU of their own). By default nccl where all workers can, unless
  /// `deterministic`, else canonical; one line in the log says why. Other values are combined in
  /// canonical order.
  LocalStrategyOptions local = {};
  /// How workers find and watch each other.
  WorkerGroupOptions cluster = {};
  /// When a worker that the others wait for is named in a warning.
  StragglerOptions stragglers = {};
  /// After every so many steps all workers compare eight bytes, the digest of their mirrored
  /// variables; a difference (a bit that flipped in one worker's memory) is kDataLoss on all,
  /// naming worker and variable. 0: never.
  int digest_steps = 0;
};

/// MirroredStrategy over the devices of all workers: replicas are numbered over the workers, in
/// worker order, and the same number of replicas gives the same bits on one worker or many (with
/// the operations that add in canonical order). Every worker runs the same program and makes the
/// same calls: run(), reduce(), gather(), variables, reads of ON_READ variables outside run, and
/// saves are calls of all workers. A worker that fails, or is gone, ends the step on all of them
/// with an error that names it; afterwards the strategy refuses to run.
/// tf.distribute.MultiWorkerMirroredStrategy.
class MultiWorkerMirroredStrategy final : public Strategy {
 public:
  /// The workers are the cluster's chief and workers; an empty cluster is this process alone.
  /// Waits for all of them. Throws as WorkerGroup::join(), kInvalidArgument as MirroredStrategy,
  /// when the workers' options contradict each other, and for NCCL where a worker cannot;
  /// kUnimplemented for compressed gradients on GPUs, or with what does not add in canonical order.
  explicit MultiWorkerMirroredStrategy(const ClusterResolver& resolver,
                                       MultiWorkerOptions options = {});
  /// The same for workers that are connected otherwise: this one is communicator->rank(), and
  /// gradients are summed between workers by the communicator's algorithm, or NCCL as above.
  /// options.cluster is of no use here.
  explicit MultiWorkerMirroredStrategy(std::unique_ptr<Communicator> communicator,
                                       MultiWorkerOptions options = {});
  MultiWorkerMirroredStrategy(std::unique_ptr<Communicator> communicator,
                              LocalStrategyOptions local)
      : MultiWorkerMirroredStrategy(std::move(communicator),
                                    MultiWorkerOptions{.local = std::move(local)}) {}
  ~MultiWorkerMirroredStrategy() override;

  /// Whether this process takes the place of one that died while the others went on; it can make
  /// variables and datasets, and trains once Recovery::run() has connected it. Without Recovery the
  /// others end as well; when all were started again, the first step connects them as a new job.
  bool is_replacement() const;
  /// The worker that a warning named last: the others wait for it, step after step. The same on all
  /// workers.
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
