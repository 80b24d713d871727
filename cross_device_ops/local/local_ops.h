// The operation "canonical", the default, on buffers of one process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti {

/// The default: each element's sum is formed once along the tree and written to all buffers.
/// Disjoint ranges may be reduced at the same time.
class Canonical final : public CrossDeviceOps {
 public:
  std::string_view name() const override { return "canonical"; }
  bool supports(ReduceOp op, DType dtype, DeviceType) const override {
    return internal::can_combine(op, dtype);
  }
  Determinism determinism() const override { return Determinism::kCanonical; }
  bool sliceable() const override { return true; }

 protected:
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override;
};

}  // namespace tutti
