// Horovod's functions: each process is a rank, and gradients are averaged over all ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/variable.h"
#include "tutti/core/source_location.h"
#include "tutti/optimizer/optimizer.h"
#include "tutti/strategy/multi_worker_mirrored_strategy.h"
#include "tutti/tensor/reduce_op.h"

/// Horovod's interface (`horovod.tensorflow`). Variables are plain ones of each process, which
/// nothing keeps equal but equal beginnings (broadcast_variables()) and equal gradients. All ranks
/// make the same calls in the same order; a rank that makes another one is kInvalidArgument on all
/// of them, naming both. Other errors are those of Communicator and Strategy::run(); after one of
/// these every call throws its reason. Before init() every call throws kFailedPrecondition.
/// Threads: one at a time.
namespace tutti::hvd {

/// Connects this process with the others of its job, which `tutti run`, mpirun or the environment
/// tells (resolver_from_environment()); started alone it is rank 0 of 1. `options.local.devices` is
/// this rank's device, cpu:0 where there is none; `options.local.cross_device_ops` says how
/// gradients are summed. Does nothing when it was called before. Throws kInvalidArgument for more
/// than one device or replica and for digest_steps; as WorkerGroup::join().
void init(MultiWorkerOptions options = {});
/// Leaves the job, as the end of the program does.
void shutdown();
bool is_initialized();

/// The number of this process, 0 .. size() - 1, and how many there are.
int rank();
int size();
/// The same among the processes of this host.
int local_rank();
int local_size();

/// The mean over all ranks (or their sum, ...) of tensors of one shape and type, on the device of
/// `value`. MEAN wants a floating type. Ranks that have joined count as zeros: the mean is the sum
/// divided by size(); MIN, MAX and PRODUCT are kUnimplemented then.
Tensor allreduce(const Tensor& value, ReduceOp op = ReduceOp::kMean,
                 SourceLocation where = SourceLocation::current());
/// All ranks' tensors, one after the other along the first dimension, of which lengths may differ.
/// kUnimplemented once a rank has joined, as the next two.
Tensor allgather(const Tensor& value, SourceLocation where = SourceLocation::current());
/// Rank `root_rank`'s tensor; the others give one of the same shape and type.
Tensor broadcast(const Tensor& value, int root_rank,
                 SourceLocation where = SourceLocation::current());
/// Gives every variable the value that it has on rank `root_rank`: weights, and
/// Optimizer::state_variables(), before the first step or after reading a checkpoint there.
void broadcast_variables(std::span<const Variable> variables, int root_rank,
                         SourceLocation where = SourceLocation::current());

/// This rank has no more data: takes part in the others' allreduce() and gradients with zeros until
/// all ranks have called it. Its own variables stay as they are. Returns the rank that joined last
/// (of several at once the highest), whose variables are those of the last step.
int join(SourceLocation where = SourceLocation::current());

/// A tape whose gradients are averaged over all ranks, bucket by bucket while they appear.
class DistributedGradientTape {
 public:
  /// `tape` must outlive this. `op`: kMean or kSum, else kInvalidArgument.
  explicit DistributedGradientTape(GradientTape& tape, ReduceOp op = ReduceOp::kMean);
  /// As GradientTape::gradient(); all ranks with the same variables. A variable without a gradient
  /// on some ranks alone counts as zeros there.
  std::vector<Gradient> gradient(const Tensor& target, std::span<const Variable> sources,
                                 const SourceLocation& where = SourceLocation::current());

 private:
  GradientTape& tape_;
  const ReduceOp op_;
};

/// An optimizer that updates with gradients averaged over all ranks. With
/// gradient_accumulation_steps they travel once per update (backward_passes_per_step).
class DistributedOptimizer {
 public:
  /// `optimizer` must outlive this. `op`: kMean or kSum, else kInvalidArgument.
  explicit DistributedOptimizer(Optimizer& optimizer, ReduceOp op = ReduceOp::kMean);
  /// As Optimizer's, for the loss of this rank's batch: its mean over its own examples.
  void minimize(GradientTape& tape, const Tensor& loss,
                const SourceLocation& where = SourceLocation::current());
  void apply_gradients(std::span<const Gradient> gradients,
                       const SourceLocation& where = SourceLocation::current());
  Optimizer& optimizer() const { return optimizer_; }

 private:
  Optimizer& optimizer_;
  const ReduceOp op_;
};

}  // namespace tutti::hvd
