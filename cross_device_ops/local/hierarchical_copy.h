// Adds within groups of devices, then across groups, then copies down.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti {

/// Groups are whole subtrees of the canonical tree (the largest power of two not above the square
/// root of V), so that the sums of groups, added across groups, are the canonical sum. Bytes: 2
/// (V-1) x size, of which only (groups - 1) x 2 cross groups.
/// tf.distribute.HierarchicalCopyAllReduce.
class HierarchicalCopy final : public CrossDeviceOps {
 public:
  std::string_view name() const override { return "hierarchical_copy"; }
  bool supports(ReduceOp op, DType dtype, DeviceType device) const override;
  Determinism determinism() const override { return Determinism::kCanonical; }

 protected:
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override;
};

}  // namespace tutti
