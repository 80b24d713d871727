// Sums of GPUs' buffers to the host's memory, and values from there to all of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/cross_device_ops/replica_buffer.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti::internal {

// Buffers of one length and dtype, one per replica, with a `work`, into whose streams all of it
// goes: nobody waits. Each GPU brings its slice, so that all links to the host are used at once.

/// Combines each node's replicas (numbers of `buffers`) along the canonical tree and copies that to
/// outputs[i], in host memory. The buffers hold something else afterwards. Types that are rounded
/// in between (16-bit ones) are widened first, by the caller.
void sums_to_host(ReduceOp op, std::span<const ReplicaBuffer> buffers,
                  std::span<const CanonicalNode> nodes, std::span<std::byte* const> outputs);

/// The elements at `values`, in host memory, to all buffers.
void spread_from_host(const std::byte* values, std::span<const ReplicaBuffer> buffers);

}  // namespace tutti::internal
