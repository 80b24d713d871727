// Copies everything to one device, adds there, copies the result back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti {

/// What a machine without peer access does: V-1 copies to the first device, a sum there along the
/// tree, V-1 copies back. Bytes: 2 (V-1) x size. tf.distribute.ReductionToOneDevice.
class ReductionToOneDevice final : public CrossDeviceOps {
 public:
  std::string_view name() const override { return "reduction_to_one_device"; }
  bool supports(ReduceOp op, DType dtype, DeviceType device) const override;
  Determinism determinism() const override { return Determinism::kCanonical; }

 protected:
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override;
};

}  // namespace tutti
