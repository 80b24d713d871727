// The tree's result in all replicas' memory, in one pass, and "canonical", the operation that does
// so.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti::internal {

/// How far ahead memory that no cache holds is best asked for: less than a small page.
inline constexpr std::size_t kAheadBytes = 3072;

/// Combines `inputs` along the canonical tree into every one of `outputs`; outputs[i] may be one of
/// the inputs. Each cache line is read and written once. Memory of any alignment. Of up to eight
/// floating inputs in place it asks for memory `ahead` bytes further on while it sums; 0: for
/// nothing. `nodes`: what the inputs are of, see combine_nodes(); none: of one replica each.
void reduce_to_all(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs,
                   std::span<std::byte* const> outputs, std::size_t count, std::size_t ahead = 0,
                   std::span<const CanonicalNode> nodes = {});

/// Returns true if elements of this type have the reduction; also of MEAN.
inline bool has_reduction(ReduceOp op, DType dtype) {
  return op == ReduceOp::kMean ? is_floating(dtype) : can_combine(op, dtype);
}
/// Throws kInvalidArgument, `who` first in the message, where they have it not.
void require_reduction(ReduceOp op, DType dtype, std::string_view who = "");

}  // namespace tutti::internal

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
  /// Without copies, of any nodes of the tree.
  void sum_segments(const SegmentedSum& sum, const CommunicationOptions& options) override;

 protected:
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override;
};

}  // namespace tutti
