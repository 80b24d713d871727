// The operation "auto": the fastest algorithm for each size.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>

#include "tutti/cross_device_ops/algorithms/select_algorithm.h"
#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti {

/// Chooses by choose_algorithm(), among algorithms that add along the canonical tree: the bits are
/// the same whatever is chosen.
class AutoOps final : public CrossDeviceOps {
 public:
  std::string_view name() const override { return "auto"; }
  bool supports(ReduceOp op, DType dtype, DeviceType device) const override;
  Determinism determinism() const override { return Determinism::kCanonical; }

 protected:
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override;

 private:
  internal::ChoiceLog log_;
  std::map<std::string, std::unique_ptr<CrossDeviceOps>, std::less<>> operations_;
};

}  // namespace tutti
