// Reduction that follows the canonical tree and writes to all replicas' memory in one pass, and the
// operation "canonical", which uses it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti::internal {

/// Best prefetch distance for memory outside all caches, in bytes: less than a small page.
inline constexpr std::size_t kAheadBytes = 3072;

/// Combines `inputs` along the canonical tree into each of `outputs`; an output may also be an
/// input. Each cache line is read and written once. Memory may have any alignment. `ahead` is the
/// prefetch distance, in bytes, for in-place sums of up to eight float32 or float64 buffers; 0
/// disables prefetching. `nodes`: nodes of the inputs, see combine_nodes(); if empty, each input is
/// the value of one replica.
void reduce_to_all(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs,
                   std::span<std::byte* const> outputs, std::size_t count, std::size_t ahead = 0,
                   std::span<const CanonicalNode> nodes = {});

/// Returns true if this type supports this reduction, which may be MEAN.
inline bool has_reduction(ReduceOp op, DType dtype) {
  return op == ReduceOp::kMean ? is_floating(dtype) : can_combine(op, dtype);
}
/// Throws kInvalidArgument, with `who` first in the message, unless has_reduction() returns true.
void require_reduction(ReduceOp op, DType dtype, std::string_view who = "");

}  // namespace tutti::internal

namespace tutti {

/// The default operation: computes each element's sum once along the tree and writes it to all
/// buffers. Disjoint ranges may be reduced concurrently.
class Canonical final : public CrossDeviceOps {
 public:
  std::string_view name() const override { return "canonical"; }
  bool supports(ReduceOp op, DType dtype, DeviceType) const override {
    return internal::can_combine(op, dtype);
  }
  Determinism determinism() const override { return Determinism::kCanonical; }
  bool sliceable() const override { return true; }
  /// Sums the segments without copying them, for any nodes of the tree.
  void sum_segments(const SegmentedSum& sum, const CommunicationOptions& options) override;

 protected:
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override;
};

}  // namespace tutti
