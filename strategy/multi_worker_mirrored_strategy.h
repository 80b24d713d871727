// Synchronous training on the devices of several processes: variables mirrored on all of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "tutti/cross_device_ops/communicator.h"
#include "tutti/strategy/local_strategy.h"

namespace tutti {

namespace internal {
struct Placement;
}  // namespace internal

/// MirroredStrategy over the devices of all workers: replicas are numbered over the workers, in
/// worker order, and the same number of replicas gives the same bits on one worker or many (with
/// the operations that add in canonical order). Every worker runs the same program and makes the
/// same calls: run(), reduce(), gather(), variables, reads of ON_READ variables outside run, and
/// saves are calls of all workers. A worker that fails, or is gone, ends the step on all of them
/// with an error that names it; afterwards the strategy refuses to run.
/// tf.distribute.MultiWorkerMirroredStrategy.
class MultiWorkerMirroredStrategy final : public LocalStrategy {
 public:
  /// The worker with the number of communicator->rank(). `options` are those of this worker, but
  /// for `replicas` (of all workers, shared out evenly, the first workers getting one more; 0: one
  /// per local device) and `replica_weights` (of all replicas). options.cross_device_ops names what
  /// combines values within this process; between workers it is the communicator's algorithm.
  /// Throws kInvalidArgument as MirroredStrategy and when the workers' options contradict each
  /// other, kUnimplemented for replicas on GPUs and for compressed gradients.
  explicit MultiWorkerMirroredStrategy(std::unique_ptr<Communicator> communicator,
                                       LocalStrategyOptions options = {});
  ~MultiWorkerMirroredStrategy() override;
  std::string_view name() const override { return "multi_worker_mirrored"; }

 protected:
  std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                  VariableOptions options) override;

 private:
  struct Checked {};
  MultiWorkerMirroredStrategy(Checked, LocalStrategyOptions options,
                              std::unique_ptr<Communicator>&& communicator);
  /// All workers make the same variable with the same initial value, or kInvalidArgument on all.
  void require_equal_everywhere(const Tensor& initial_value, const VariableOptions& options);

  std::shared_ptr<const internal::Placement> placement_;
};

}  // namespace tutti
