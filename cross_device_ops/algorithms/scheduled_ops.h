// Algorithms of algorithms/ on the buffers of one process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/cross_device_ops/algorithms/algorithm.h"

namespace tutti {

/// ring, halving_doubling, tree or hierarchical_copy among the replicas of a process: the same
/// schedules as between processes (algorithms/algorithm.h), run by one thread, so that a program
/// has the same bits in both.
class ScheduledOps final : public CrossDeviceOps {
 public:
  /// Throws kNotFound for a name that is no algorithm.
  explicit ScheduledOps(std::string_view algorithm);
  std::string_view name() const override { return algorithm_.name; }
  /// Not 16-bit types where values are combined in several steps: each would round.
  bool supports(ReduceOp op, DType dtype, DeviceType device) const override;
  Determinism determinism() const override { return algorithm_.determinism; }

 protected:
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override;

 private:
  const internal::Algorithm& algorithm_;
};

}  // namespace tutti
