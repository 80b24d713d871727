// ReplicaGroup: collectives between the replicas of a step, for layers, losses and metrics.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "tutti/core/source_location.h"
#include "tutti/core/thread_scope.h"
#include "tutti/tensor/reduce_op.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// A mean over the first axis of values [rows, ...], and the source line that computed it.
struct MeanOfRows {
  std::int64_t rows = 0;
  SourceLocation where;
};

/// The replicas that run one step. A strategy installs one ReplicaGroup per replica thread; the
/// default is a single-replica group, whose operations are the identity. Collective: all replicas
/// must make the same calls in the same order; a mismatch throws an error that names the replicas,
/// instead of hanging.
class ReplicaGroup {
 public:
  virtual ~ReplicaGroup() = default;
  virtual int replica_id() const = 0;
  virtual int num_replicas() const = 0;
  /// Returns the number of replicas in this process. They share variables created outside of
  /// strategies.
  virtual int num_local_replicas() const { return num_replicas(); }
  /// Returns the reduction over all replicas. Differentiable for SUM and MEAN: the gradient of
  /// all_reduce(op) is all_reduce(op) of the gradient.
  virtual Tensor all_reduce(ReduceOp op, const Tensor& value) = 0;
  /// Returns the values of all replicas, concatenated along `axis` in replica order; lengths along
  /// `axis` may differ. Differentiable: the gradient is this replica's slice of the gradient summed
  /// over replicas.
  virtual Tensor all_gather(const Tensor& value, int axis) = 0;
  /// Declares the caller's assumption that every replica has `rows` rows. A group that detects a
  /// difference logs a warning once. Does not wait for other replicas.
  virtual void assume_equal_rows(std::int64_t rows) { static_cast<void>(rows); }
  /// Declares the target of a gradient: a mean over rows (alone or as a term of a sum), or nullopt
  /// for any other target. A group that adds up its replicas' gradients of such means logs a
  /// warning once. Does not wait for other replicas.
  virtual void note_target(const std::optional<MeanOfRows>& mean) { static_cast<void>(mean); }

  /// Returns this thread's group. Throws kFailedPrecondition, naming `who`, in the cross-replica
  /// context (in a strategy's scope but outside of run()).
  static ReplicaGroup& current(std::string_view who);
  /// Same as current(), but returns nullptr in the cross-replica context.
  static ReplicaGroup* find_current();
  /// Returns the group that contains only one replica, for work that does not involve other
  /// replicas. It is each thread's initial group.
  static ReplicaGroup& of_one();
};

/// Scope in which `group` is this thread's group; nullptr: the cross-replica context, which has no
/// replica.
class ReplicaGroupScope : internal::ThreadScope<ReplicaGroup*> {
 public:
  explicit ReplicaGroupScope(ReplicaGroup* group);
};

}  // namespace tutti
