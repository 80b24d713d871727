// Sums along the canonical tree on GPUs that read each other's memory, or by their hosts.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/cross_device_ops/collective.h"
#include "tutti/tensor/reduce_op.h"
#include "tutti/tensor/tensor.h"

namespace tutti::internal {

// Buffers of one length and dtype, with a `work`.

/// In place: each device forms its slice of the result from all buffers, then the slices are
/// spread. A device reads (V-1)/V of a buffer from its peers, twice: as much as a ring.
void canonical_on_gpus(ReduceOp op, std::span<const ReplicaBuffer> buffers);

/// Tensors of one shape and dtype, each on any GPU, combined by `where`.
Tensor sum_on_gpu(ReduceOp op, std::span<const Tensor> values, Device where);

// Between GPUs and the host's memory: how workers' GPUs are summed by their hosts. All of it goes
// into the streams of `work`: nothing waits. Each GPU brings its slice, so that all links to the
// host are used at once.

/// Combines each node's replicas (numbers of `buffers`) along the canonical tree and copies that to
/// outputs[i], in host memory. The buffers hold something else afterwards. Types that are rounded
/// in between (16-bit ones) are widened first, by the caller.
void sums_to_host(ReduceOp op, std::span<const ReplicaBuffer> buffers,
                  std::span<const CanonicalNode> nodes, std::span<std::byte* const> outputs);

/// The elements at `values`, in host memory, to all buffers.
void spread_from_host(const std::byte* values, std::span<const ReplicaBuffer> buffers);

}  // namespace tutti::internal
