// What a layer, loss or metric may know of the other replicas.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "tutti/tensor/reduce_op.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// The replicas that run the same step. The strategy installs one per replica thread; the default
/// is a group of one, whose operations are the identity. All replicas must make the same calls in
/// the same order; a mismatch is an error that names the replicas, not a hang.
class ReplicaGroup {
 public:
  virtual ~ReplicaGroup() = default;
  virtual int replica_id() const = 0;
  virtual int num_replicas() const = 0;
  /// Differentiable: the gradient of all_reduce(op) is all_reduce(op) of the gradient (SUM and
  /// MEAN).
  virtual Tensor all_reduce(ReduceOp op, const Tensor& value) = 0;
  /// Differentiable: concatenates along `axis` in replica order; lengths along `axis` may differ.
  /// The gradient is this replica's slice of the gradient summed over replicas.
  virtual Tensor all_gather(const Tensor& value, int axis) = 0;
  /// Tells that the caller takes every replica to have `rows` rows as this one does. A group that
  /// finds that they differ warns once. Never waits.
  virtual void assume_equal_rows(std::int64_t rows) { static_cast<void>(rows); }

  /// Never null. Throws kFailedPrecondition inside a strategy's scope but outside run (the
  /// cross-replica context), naming `who`.
  static ReplicaGroup& current(std::string_view who);
};

/// Makes `group` current on this thread until destroyed; nullptr: the cross-replica context, where
/// there is no replica.
class ReplicaGroupScope {
 public:
  explicit ReplicaGroupScope(ReplicaGroup* group);
  ~ReplicaGroupScope();
  ReplicaGroupScope(const ReplicaGroupScope&) = delete;
  ReplicaGroupScope& operator=(const ReplicaGroupScope&) = delete;

 private:
  ReplicaGroup* previous_;
};

}  // namespace tutti
