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

/// Horovod's interface (`horovod.tensorflow`). Variables are local to each process; only equal
/// initial values (broadcast_variables()) and equal gradients keep them equal. All ranks must make
/// the same calls in the same order; if one makes a different call, all of them throw
/// kInvalidArgument, naming both calls. Also throws the errors of Communicator and Strategy::run();
/// after such an error, every later call throws it again. Before init(), every call throws
/// kFailedPrecondition. Not thread-safe.
namespace tutti::hvd {

/// Connects this process to the other processes of its job, found through `tutti run`, mpirun or
/// the environment (resolver_from_environment()); a process started alone is rank 0 of 1.
/// `options.local.devices` is this rank's device, by default cpu:0;
/// `options.local.cross_device_ops` names the algorithm that sums gradients. Has no effect if
/// already initialized. Throws kInvalidArgument for more than one device or replica and for
/// digest_steps other than 0; also throws the errors of WorkerGroup::join().
void init(MultiWorkerOptions options = {});
/// Leaves the job. Also called at program exit.
void shutdown();
bool is_initialized();

/// Return this process's rank, 0 .. size() - 1, and the number of processes.
int rank();
int size();
/// Same as rank() and size(), but among the processes on this host.
int local_rank();
int local_size();

/// Returns the result of `op` (MEAN, SUM, ...) over the tensors of all ranks, on the device of
/// `value`. All tensors must have the same shape and type. MEAN requires a floating-point type.
/// Ranks that have called join() contribute zeros: the mean is still the sum divided by size(), and
/// MIN, MAX and PRODUCT throw kUnimplemented.
Tensor allreduce(const Tensor& value, ReduceOp op = ReduceOp::kMean,
                 SourceLocation where = SourceLocation::current());
/// Returns all ranks' tensors, concatenated along the first dimension, whose length may differ
/// between ranks. Like broadcast() and broadcast_variables(), throws kUnimplemented after a rank
/// has called join().
Tensor allgather(const Tensor& value, SourceLocation where = SourceLocation::current());
/// Returns the tensor of rank `root_rank`. All ranks must pass tensors of the same shape and type.
Tensor broadcast(const Tensor& value, int root_rank,
                 SourceLocation where = SourceLocation::current());
/// Sets every variable to its value on rank `root_rank`. Call it for the weights and for
/// Optimizer::state_variables(), before the first step or after that rank has read a checkpoint.
void broadcast_variables(std::span<const Variable> variables, int root_rank,
                         SourceLocation where = SourceLocation::current());

/// Signals that this rank has no more data. Until all ranks have called join(), this rank
/// contributes zeros to the allreduce() calls and gradients of the remaining ranks, and its
/// variables do not change. Returns the rank that joined last (the highest if several did), whose
/// variables include the last update.
int join(SourceLocation where = SourceLocation::current());

/// A tape that averages or sums gradients over all ranks, bucket by bucket as they become ready.
class DistributedGradientTape {
 public:
  /// `tape` must outlive this object. Throws kInvalidArgument unless `op` is kMean or kSum.
  explicit DistributedGradientTape(GradientTape& tape, ReduceOp op = ReduceOp::kMean);
  /// Same as GradientTape::gradient(), but reduces the gradients over ranks; all ranks must pass
  /// the same variables. A gradient that is missing on only some ranks counts as zeros there.
  std::vector<Gradient> gradient(const Tensor& target, std::span<const Variable> sources,
                                 const SourceLocation& where = SourceLocation::current());

 private:
  GradientTape& tape_;
  const ReduceOp op_;
};

/// An optimizer that averages or sums gradients over all ranks before each update. With
/// gradient_accumulation_steps (Horovod's backward_passes_per_step), it reduces them once per
/// update.
class DistributedOptimizer {
 public:
  /// `optimizer` must outlive this object. Throws kInvalidArgument unless `op` is kMean or kSum.
  explicit DistributedOptimizer(Optimizer& optimizer, ReduceOp op = ReduceOp::kMean);
  /// Same as Optimizer's functions; `loss` is the mean over this rank's examples.
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
