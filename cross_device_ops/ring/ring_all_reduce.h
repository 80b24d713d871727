// All-reduce around a ring, in process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti {

/// Every buffer sends and receives 2 (V-1)/V x size: the least possible. The order of additions
/// depends on the position in the buffer, so the bits are those of no other operation (but the same
/// in every run). Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009).
class RingAllReduce final : public CrossDeviceOps {
 public:
  std::string_view name() const override { return "ring"; }
  bool supports(ReduceOp op, DType dtype, DeviceType device) const override;
  Determinism determinism() const override { return Determinism::kRunToRun; }

 protected:
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override;
};

}  // namespace tutti
