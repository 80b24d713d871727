// Algorithms of algorithms/ on the buffers of one process, and "auto": the fastest for each size.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "cross_device_ops/algorithms/algorithm.h"
#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti {

/// ring, halving_doubling, tree, hierarchical_copy or reduction_to_one_device among the replicas of
/// a process: the same schedules as between processes (algorithms/algorithm.h), run by one thread,
/// so that a program has the same bits in both. "auto" chooses for each call among algorithms that
/// add along the canonical tree: the bits are the same whatever is chosen.
class ScheduledOps final : public CrossDeviceOps {
 public:
  /// Throws kNotFound for a name that is no algorithm.
  explicit ScheduledOps(std::string_view algorithm);
  std::string_view name() const override { return algorithm_ ? algorithm_->name : "auto"; }
  /// Not 16-bit types where values are combined in several steps: each would round.
  bool supports(ReduceOp op, DType dtype, DeviceType device) const override;
  Determinism determinism() const override {
    return algorithm_ ? algorithm_->determinism : Determinism::kCanonical;
  }

 protected:
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override;

 private:
  const internal::Algorithm* const algorithm_;  // nullptr: auto
  internal::AutoAlgorithm auto_;
};

}  // namespace tutti
